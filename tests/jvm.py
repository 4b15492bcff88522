"""Options of every JVM that tests start, and the archive of Spark's classes with which each starts in half the time.

Application class data sharing of the JVM (JEP 350): classes are mapped as they were after loading. The archive is made
once for an environment, while the tests begin, and lies in its folder. A JVM that finds none, or one that does not fit,
loads its classes as ever.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")
SECONDS = 600
"""The longest that making the archive may take; beside the start of the tests it takes a minute."""
# No JVM of the tests lives long enough for the second compiler to pay.
_QUICK = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # about an archive that does not fit, and about classes left out of it
_PROGRAM = """
import tempfile
from pyspark import SparkContext
from pyspark.sql import SparkSession
with tempfile.TemporaryDirectory() as folder:
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    frame = spark.range(100).selectExpr("id", "concat('text ', id) AS text")
    frame.mapInArrow(lambda batches: batches, frame.schema).write.parquet(folder + "/rows")
    spark.read.parquet(folder + "/rows").groupBy("text").count().collect()
    spark.stop()
java = SparkContext._gateway.proc
java.stdin.close()  # which ends it, after it has written the archive
java.wait()
"""


def set_options() -> None:
    """Set the options in the environment of this process, from which programs have them; a person's own stay."""
    with suppress(PackageNotFoundError):  # without Spark no JVM is started
        for name in VARIABLES:
            os.environ.setdefault(name, f"{_QUICK} {_QUIET} -XX:SharedArchiveFile={_archive()}")


def begin_archive() -> "subprocess.Popen[bytes] | None":
    """Return a process that makes the archive; None if it is there, or if there is no Spark."""
    with suppress(PackageNotFoundError):
        if not _archive().exists():
            silent = subprocess.DEVNULL
            return subprocess.Popen([sys.executable, __file__], stdout=silent, stderr=silent, start_new_session=True)
    return None


def end_archive(making: "subprocess.Popen[bytes]") -> None:
    """End a process that makes the archive, with its JVM, if tests end before it; say so if it has failed."""
    if making.poll() is None:
        os.killpg(making.pid, signal.SIGKILL)
        making.wait(60)
    elif making.returncode:
        print(
            f"Spark's classes could not be archived, so each JVM started slowly: `python {__file__}` shows the reason"
        )


def _archive() -> Path:
    return Path(sys.prefix) / f"spark-{version('pyspark')}-classes.jsa"


def _make_archive() -> None:
    made = _archive().with_name(f"{_archive().name}.{os.getpid()}")
    options = f"{_QUICK} {_QUIET} -XX:ArchiveClassesAtExit={made}"
    env = {**os.environ, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
    subprocess.run([sys.executable, "-c", _PROGRAM], env=env, timeout=SECONDS, check=True)
    made.replace(_archive())


if __name__ == "__main__":
    _make_archive()
