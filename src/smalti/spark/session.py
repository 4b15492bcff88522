"""Sessions of Spark that suit this library, and the Java that they run on.

A local session is quiet, is bound to this machine, and sends Arrow in small batches. `detect_java` finds a Java that
Spark runs on, without starting Spark.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from smalti.errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
"""Oldest Java that Spark 4 runs on; Spark 3.5 runs on it too."""

JAVA_PROGRAMS = (
    "/usr/lib/jvm/*17*/bin/java",
    "/usr/lib/jvm/*21*/bin/java",
    "/usr/lib/jvm/*/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",  # Homebrew links no Java into PATH
    "/usr/local/opt/openjdk*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
"""Patterns of the usual paths of Java programs on Linux and macOS, best first."""

_PROBE_SECONDS = 20.0  # `java -version` answers in 0.1 s; a cold disk or a busy machine may need longer
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java runtime on this machine."""

    home: Path
    """The folder for JAVA_HOME."""
    version: int
    """Feature release: 17, 21 and so on."""


def detect_java(places: Sequence[str] = JAVA_PROGRAMS) -> Java:
    """Return the Java to run Spark on: that of JAVA_HOME, else of PATH, else of `places`; blocks below a second.

    Raises:
        MissingDependency: None is new enough; the message explains how to install one on this machine.
    """
    seen: list[str] = []
    for program in _candidates(os.environ.get("JAVA_HOME"), shutil.which("java"), places):
        version = _ask_version(program)
        if version is not None and version >= MIN_JAVA:
            return Java(program.resolve().parent.parent, version)
        seen.append(f"{program} is version {version}" if version else f"{program} does not run")
    found = "; ".join(seen) or "none, neither in JAVA_HOME, on PATH nor in the usual places"
    raise MissingDependency(
        f"Spark needs Java {MIN_JAVA} or newer; found: {found}. {install_advice(platform.system())}",
        found=tuple(seen),
    )


def install_advice(system: str) -> str:
    """Return one sentence on how to install Java on `system` ("Linux", "Darwin", ...)."""
    if system == "Darwin":
        return "Install it with `brew install openjdk@17` (https://brew.sh); it is found without further settings."
    if system == "Linux":
        return (
            "Install it with `sudo apt-get install -y openjdk-17-jre-headless` (Debian, Ubuntu) or "
            "`sudo dnf install -y java-17-openjdk-headless` (Fedora, RHEL)."
        )
    return "Install a build from https://adoptium.net and set JAVA_HOME to its folder."


def _candidates(java_home: str | None, on_path: str | None, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the programs to try that exist, best first, without repetition."""
    places = [Path(java_home) / "bin" / "java"] if java_home else []
    if on_path:
        places.append(Path(on_path))
    for pattern in patterns:
        places.extend(sorted(Path("/").glob(pattern.lstrip("/"))))
    seen: set[Path] = set()
    for place in places:
        if place.is_file() and place.resolve() not in seen:
            seen.add(place.resolve())
            yield place


def _ask_version(program: Path) -> int | None:
    """Return the feature release of a Java program; None if it fails, as macOS's stub without a Java does."""
    try:
        done = subprocess.run(  # noqa: S603  the program is a Java that the user installed
            [str(program), "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match.group(1)) if done.returncode == 0 and match else None


ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
}
"""Limits of the Arrow batches between the JVM and Python. Spark's default of 10,000 rows and 64 MiB is twice as slow
for 15 KB images (0.9 s against 0.4 s for 300 MB, two cores); releases before 4 have only the limit of rows."""


@dataclass(frozen=True)
class SparkOptions:
    """The place where Spark runs, and its resources."""

    master: str = "local[*]"
    """`local[n]`, `local-cluster[n,cores,MiB]`, `spark://…`, `yarn`, `k8s://…`; `sc://host:port` for Spark Connect."""
    app_name: str = "smalti"
    """Name in Spark's own UI and logs."""
    driver_memory: str = "2g"
    """Heap of the JVM; in local mode it does all the work."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; they override those of this library."""

    @property
    def is_local(self) -> bool:
        """True if everything runs on this machine."""
        return self.master.startswith("local")

    @property
    def is_connect(self) -> bool:
        """True if the session is a client of a Spark Connect server."""
        return self.master.startswith("sc://")


def build_session(options: SparkOptions | None = None) -> "SparkSession":
    """Return a running session; one that this process already has, or a Databricks cluster, is returned unchanged.

    Blocks until the JVM is up, some 3 to 10 seconds. The caller stops the session with `session.stop()`.

    Raises:
        MissingDependency: PySpark is not installed, or no Java that Spark runs on.
    """
    options = options or SparkOptions()
    builder_type = _session_type().builder
    if os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return builder_type.getOrCreate()
    if options.is_connect:
        builder = builder_type.remote(options.master)
        for name, value in {**ARROW_BATCHES, **options.conf}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    java = detect_java()
    builder = builder_type.master(options.master).appName(options.app_name)
    for name, value in {**ARROW_BATCHES, **_quiet_conf(options), **options.conf}.items():
        builder = builder.config(name, value)
    variables = {"JAVA_HOME": str(java.home)}
    if options.is_local:
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _environment(variables):
        return builder.getOrCreate()


def _session_type() -> "type[SparkSession]":
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            "Spark work needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
        ) from error
    found: type[SparkSession] = SparkSession
    return found


def _quiet_conf(options: SparkOptions) -> dict[str, str]:
    log_settings = Path(str(resources.files("smalti.spark") / "log4j2.properties")).as_uri()
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log_settings}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",  # the same table gives the same samples on every machine
    }
    if options.is_local:
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the JVM starts; its launcher reads these settings nowhere else."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
