"""Sessions of Spark that suit this library.

A local session is quiet, is bound to this machine, and sends Arrow in small batches.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from smalti.errors import MissingDependency
from smalti.java import detect_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
