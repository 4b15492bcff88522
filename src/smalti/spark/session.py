"""Starting a Spark session that suits this library: quiet, bound to this machine when local, Arrow in small batches."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.errors import MissingDependency
from smalti.interpreter import use_driver_python
from smalti.spark.java import detect_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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


def make_frame(spark: "SparkSession", rows: Any, schema: "StructType | str | None" = None) -> "DataFrame":
    """Return a DataFrame of rows of this process; classic PySpark has them pass through a Python worker."""
    use_driver_python(spark)
    return spark.createDataFrame(rows, schema)


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
