"""Starting a Spark session that suits this library: quiet, bound to this machine when local, Arrow in small batches.

Finding a Java that Spark can run on, and saying how to install one; nothing here starts Spark.
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

USUAL_PLACES = (
    "/usr/lib/jvm/*17*/bin/java",
    "/usr/lib/jvm/*21*/bin/java",
    "/usr/lib/jvm/*/bin/java",
    "/opt/homebrew/opt/openjdk*/bin/java",  # Homebrew links no Java into PATH
    "/usr/local/opt/openjdk*/bin/java",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
"""Patterns of Java programs on Linux and macOS, best first."""

_PROBE_SECONDS = 20.0  # `java -version` answers in 0.1 s; a cold disk or a busy machine may need longer
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java runtime on this machine."""

    home: Path
    """Its JAVA_HOME."""
    version: int
    """Feature release: 17, 21 and so on."""


def detect_java(places: Sequence[str] = USUAL_PLACES) -> Java:
    """The Java to run Spark on: JAVA_HOME, else the one on PATH, else one in the usual places; blocks below a second.

    Args:
        places: patterns of further programs to try after JAVA_HOME and PATH.

    Raises:
        MissingDependency: none is new enough; the message says how to install one on this machine.
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
    """How to install Java on `system` ("Linux", "Darwin", ...), as one sentence."""
    if system == "Darwin":
        return "Install it with `brew install openjdk@17` (https://brew.sh); it is found without further settings."
    if system == "Linux":
        return (
            "Install it with `sudo apt-get install -y openjdk-17-jre-headless` (Debian, Ubuntu) or "
            "`sudo dnf install -y java-17-openjdk-headless` (Fedora, RHEL)."
        )
    return "Install a build from https://adoptium.net and set JAVA_HOME to its folder."


def _candidates(java_home: str | None, on_path: str | None, patterns: Sequence[str]) -> Iterator[Path]:
    """Programs to try, best first, without repetition; those that are not there are left out."""
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
    """Feature release of a Java program, or None when it does not say one (macOS has a stub that only complains)."""
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
"""Size of the Arrow batches between the JVM and Python. Spark's own 10,000 rows and 64 MiB are twice as slow for
15 KB images (0.9 s against 0.4 s for 300 MB, two cores); releases before 4 know only the rows."""


@dataclass(frozen=True)
class SparkOptions:
    """Where Spark runs and how much it may take."""

    master: str = "local[*]"
    """`local[n]`, `local-cluster[n,cores,MiB]`, `spark://…`, `yarn`, `k8s://…`; `sc://host:port` for Spark Connect."""
    app_name: str = "smalti"
    """Shown in Spark's own UI and logs."""
    driver_memory: str = "2g"
    """Heap of the JVM; in local mode it does all the work."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; they win over those made here."""

    @property
    def is_local(self) -> bool:
        """Whether everything runs on this machine."""
        return self.master.startswith("local")

    @property
    def is_connect(self) -> bool:
        """Whether the session is a client of a Spark Connect server."""
        return self.master.startswith("sc://")


def build_session(options: SparkOptions | None = None) -> "SparkSession":
    """A running session; one that this process already has is returned as it is.

    Blocks until the JVM is up, some 3 to 10 seconds. The caller stops it with `session.stop()`.

    Raises:
        MissingDependency: PySpark is not installed, or no Java that Spark can run on.
    """
    options = options or SparkOptions()
    builder_type = _session_type().builder
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
    """These environment variables while the JVM starts: the only way in which its launcher takes them."""
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
