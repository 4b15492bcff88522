"""Checks of what Spark work needs: Java, PySpark, one version of Python on both sides, and pandas."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from smalti.diagnosis.findings import Finding, State, one_line
from smalti.diagnosis.packages import installed_version, requirement
from smalti.errors import MissingDependency
from smalti.java import JAVA_PROGRAMS, PROBE_SECONDS, detect_java, install_advice

_NEWEST_JAVA = ((Version("4.2"), 25), (Version("4.0"), 21), (Version("0"), 17))
"""Newest Java that each release of Spark supports, from that release on, newest first."""
_NO_SECURITY_MANAGER = 24
"""Java that removed the security manager, which the Hadoop of older Sparks needs to start."""
_VERSION_PROGRAM = "import sys; print('.'.join(map(str, sys.version_info[:2])))"


def check_spark(java_places: tuple[str, ...] = JAVA_PROGRAMS) -> Iterator[Finding]:
    """Yield what is found about PySpark and Java.

    `java_places` are patterns of paths at which Java is looked for after JAVA_HOME and PATH.
    """
    spark, connect = installed_version("pyspark"), installed_version("databricks-connect")
    if spark is not None and connect is not None:
        yield Finding(
            "spark",
            State.FAULT,
            f"pyspark {spark} beside databricks-connect {connect}: both install the package `pyspark`",
            "pip uninstall -y pyspark databricks-connect, then install the one that you need",
        )
        return
    if spark is None:
        text = f"databricks-connect {connect}: a client of a cluster" if connect else "PySpark is not installed"
        yield Finding("spark", State.OK if connect else State.SKIPPED, text, "" if connect else _INSTALL_SPARK)
        yield Finding("java", State.SKIPPED, "not needed without PySpark")
        return
    yield _spark(spark)
    yield from _java(spark, java_places)
    yield from _worker_python()


_INSTALL_SPARK = "for Spark work: pip install 'smalti[spark]'"


def _spark(spark: Version) -> Finding:
    wanted = requirement("spark", "pyspark")
    if wanted is not None and not wanted.specifier.contains(spark, prereleases=True):
        text = f"pyspark {spark}; smalti[spark] needs pyspark{wanted.specifier}"
        return Finding("spark", State.FAULT, text, f"pip install 'pyspark{wanted.specifier}'")
    pandas, limit = installed_version("pandas"), requirement("spark", "pandas")
    if pandas is None:
        return Finding("spark", State.FAULT, f"pyspark {spark} without pandas, which it needs", _INSTALL_SPARK)
    if limit is not None and not limit.specifier.contains(pandas, prereleases=True):
        text = f"pandas {pandas}, which pyspark {spark} refuses"
        return Finding("spark", State.FAULT, text, f"pip install 'pandas{limit.specifier}'")
    return Finding("spark", State.OK, f"pyspark {spark}, pandas {pandas}")


def _java(spark: Version, places: tuple[str, ...]) -> Iterator[Finding]:
    home = os.environ.get("JAVA_HOME")
    is_dangling = bool(home) and not (Path(str(home)) / "bin" / "java").is_file()
    try:
        java = detect_java(places)
    except MissingDependency as error:
        found, _, _ = one_line(error).partition(". ")
        where = f"JAVA_HOME is {home}, where no bin/java is; " if is_dangling else ""
        yield Finding("java", State.FAULT, f"{where}{found}", install_advice(platform.system()))
        return
    text = f"Java {java.version} in {java.home}"
    newest = next(limit for release, limit in _NEWEST_JAVA if spark >= release)
    if is_dangling:
        yield Finding(
            "java",
            State.WARNING,
            f"JAVA_HOME is {home}, where no bin/java is; Smalti uses {text}, other Spark programs fail",
            f"export JAVA_HOME={java.home}",
        )
    elif java.version > newest:
        fails = newest < _NO_SECURITY_MANAGER <= java.version
        yield Finding(
            "java",
            State.FAULT if fails else State.WARNING,
            f"{text}; Spark {spark} " + ("does not start on it" if fails else "is not tested with it"),
            f"set JAVA_HOME to a Java 17{f' to {newest}' if newest > 17 else ''}. {install_advice(platform.system())}",
        )
    else:
        yield Finding("java", State.OK, text)


def _worker_python() -> Iterator[Finding]:
    """Yield a finding about the Python of Spark's workers, if a variable names one."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        program = os.environ.get(name)
        if not program:
            continue
        own, remedy = "{}.{}".format(*sys.version_info), f"unset {name}, or export {name}={sys.executable}"
        found = _python_version(program)
        if found is None:
            yield Finding("spark python", State.FAULT, f"{name} is {program}, which does not run", remedy)
        elif found != own:
            text = f"{name} is Python {found}, this is {own}: Spark refuses different versions"
            yield Finding("spark python", State.FAULT, text, remedy)
        else:
            yield Finding("spark python", State.OK, f"{name} is Python {found}, as this one")


def _python_version(program: str) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 -- a program that the user named
            [path, "-c", _VERSION_PROGRAM], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
