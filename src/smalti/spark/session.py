"""Sessions of Spark that suit this library.

A local session is quiet, is bound to this machine, and sends Arrow in small batches.

Also here: Spark's connectors to stores, their settings for given credentials, and the packages that hold them.

Names of settings: hadoop-aws (https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/), hadoop-azure
(https://hadoop.apache.org/docs/stable/hadoop-azure/abfs.html), and the Cloud Storage connector
(https://github.com/GoogleCloudDataproc/hadoop-connectors/blob/master/gcs/CONFIGURATION.md).
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from smalti.errors import MissingDependency
from smalti.java import detect_java
from smalti.process import variables_set
from smalti.redaction import HiddenOptions
from smalti.storage.opening import service_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1024",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
}
"""Limits of the Arrow batches between the JVM and Python. Spark's default of 10,000 rows and 64 MiB is twice as slow
for 15 KB images (0.9 s against 0.4 s for 300 MB, two cores); releases before 4 have only the limit of rows."""
SMALL_FILES = {"spark.sql.files.openCostInBytes": "65536"}
"""Bytes that Spark adds to the size of each file of `binaryFile` when it divides files among tasks. With its default of
4 MiB, 30 photos are a task, and a write takes three times as long (3,000 files of 41 KB, two cores)."""


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

    Blocks until the JVM is up, some 3 to 10 seconds. The caller stops the session with `session.stop()`. A session
    whose JVM has ended, for lack of memory for example, is replaced by a new one.

    Args:
        options: Where Spark runs, and its resources; by default this machine.

    Raises:
        MissingDependency: PySpark is not installed, or no Java that Spark runs on.

    Examples:
        >>> spark = build_session(SparkOptions(master="local[4]", driver_memory="8g"))
        >>> spark.range(3).count()
        3
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependency(
            "Spark work needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
        ) from error
    options, builder_type = options or SparkOptions(), SparkSession.builder
    if os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        return builder_type.getOrCreate()
    if options.is_connect:
        return builder_type.remote(options.master).config(map={**ARROW_BATCHES, **options.conf}).getOrCreate()
    forget_ended_java()
    java = detect_java()
    builder = builder_type.master(options.master).appName(options.app_name)
    builder = builder.config(map={**ARROW_BATCHES, **_quiet_conf(options), **options.conf})
    variables = {"JAVA_HOME": str(java.home)}
    if options.is_local:
        variables |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with variables_set(variables):  # while the JVM starts: its launcher reads these settings nowhere else
        return builder.getOrCreate()


def forget_ended_java() -> None:
    """Have PySpark start another JVM if that of this process has ended.

    PySpark connects to the first JVM of a process only, and when that was killed, even `session.stop()` fails with
    `ConnectionRefusedError`.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process: Any = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        process.stdin.close()
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None
        SparkSession._activeSession = None


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
    if options.master == "local" or options.master.startswith("local["):
        # The executor is a thread of the driver: one whose heartbeats stay unanswered, after a machine was suspended
        # for example, would end the whole JVM (exit status 56) ten minutes later, in the middle of another job.
        conf["spark.executor.heartbeat.maxFailures"] = str(2**31 - 1)
    return conf


_S3A_PROVIDERS = "org.apache.hadoop.fs.s3a."
PACKAGES: Mapping[str, str] = {
    "s3": "org.apache.hadoop:hadoop-aws, of the version of Spark's own Hadoop (jars/hadoop-client-api-*.jar)",
    "gs": "org.apache.hadoop:hadoop-gcp, of the version of Spark's own Hadoop; before 3.5 "
    "com.google.cloud.bigdataoss:gcs-connector",
    "abfs": "org.apache.hadoop:hadoop-azure, of the version of Spark's own Hadoop (jars/hadoop-client-api-*.jar)",
    "delta": "io.delta:delta-spark_2.13, of the version for this Spark",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime, of the version for this Spark",
    "avro": "org.apache.spark:spark-avro_2.13, of this Spark's version",
}
"""Maven packages that Spark needs for a scheme or a format, and has not of its own."""
_MISSING = re.compile(
    r"No FileSystem for scheme \"?(?P<scheme>\w+)|Failed to find the data source: (?P<format>[\w.]+)|"
    r"Class org\.apache\.hadoop\.fs\.(?P<module>s3a|gs|azurebfs)\.\w+ not found"
)
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "azurebfs": "abfs", "wasb": "abfs", "wasbs": "abfs"}


def missing_connector(text: str) -> str | None:
    """Return what to do about an error of Spark's that a connector is missing; None for any other error.

    Args:
        text: The error's text, such as `No FileSystem for scheme "s3"`.
    """
    match = _MISSING.search(text)
    if match is None:
        return None
    name = next(filter(None, match.groups())).rstrip(".")
    package = PACKAGES.get(_SCHEMES.get(name, name))
    if package is None:
        return f"Spark has no connector {name!r}: check the name, or add its package to `spark.jars.packages`."
    return (
        f"Spark has no connector for {name}: add its package to the setting `spark.jars.packages` before the session "
        f"is started ({package})."
    )


def hadoop_settings(url: str, storage_options: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings with which Spark's connectors reach a store as this library does. Pure.

    They hold secrets as the options do, which their `repr` hides. Credentials that neither options nor address name are
    left to the connector's own chain.

    Args:
        url: Address of the store: s3://, gs:// or abfs://; others need no settings.
        storage_options: What `open_store` gets: keyword arguments of s3fs, gcsfs or adlfs.

    Examples:
        >>> for name, value in hadoop_settings("s3://lake/photos", {"key": "me", "secret": "..."}).items():
        ...     spark.conf.set(name, value)
    """
    build = _SETTINGS.get(service_of(url))
    settings = {} if build is None else build(url, storage_options)
    return HiddenOptions({name: value for name, value in settings.items() if value})


def _s3(url: str, options: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG001 -- one signature for all
    provider, endpoint = "", str(options.get("endpoint_url") or "")
    if options.get("anon"):
        provider = f"{_S3A_PROVIDERS}AnonymousAWSCredentialsProvider"
    elif options.get("key"):
        kind = "Temporary" if options.get("token") else "Simple"
        provider = f"{_S3A_PROVIDERS}{kind}AWSCredentialsProvider"
    return {
        "fs.s3.impl": f"{_S3A_PROVIDERS}S3AFileSystem",  # s3:// is this library's name for it
        "fs.s3a.aws.credentials.provider": provider,
        "fs.s3a.access.key": str(options.get("key") or ""),
        "fs.s3a.secret.key": str(options.get("secret") or ""),
        "fs.s3a.session.token": str(options.get("token") or ""),
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": str(dict(options.get("client_kwargs") or {}).get("region_name") or ""),
        "fs.s3a.path.style.access": "true" if endpoint else "",
        "fs.s3a.connection.ssl.enabled": "false" if endpoint.startswith("http:") else "",
    }


def _gs(url: str, options: Mapping[str, Any]) -> dict[str, str]:  # noqa: ARG001 -- one signature for all
    token = options.get("token")
    if token == "anon":  # noqa: S105 -- gcsfs's word for no credentials
        return {"fs.gs.auth.type": "UNAUTHENTICATED"}
    if isinstance(token, str) and token:  # a key's content has no setting: the connector reads files alone
        return {
            "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "fs.gs.auth.service.account.json.keyfile": token,
        }
    return {}


def _abfs(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    pairs = (part.partition("=") for part in str(options.get("connection_string") or "").split(";"))
    named = {name: value for name, _, value in pairs}
    host = (urlsplit(url).hostname or "") if urlsplit(url).username else ""
    account = str(options.get("account_name") or named.get("AccountName") or host.partition(".")[0])
    if not account:
        return {}
    at = f"{account}.dfs.core.windows.net"
    if key := options.get("account_key") or named.get("AccountKey"):
        return {f"fs.azure.account.key.{at}": str(key)}
    if token := options.get("sas_token") or named.get("SharedAccessSignature"):
        return {f"fs.azure.account.auth.type.{at}": "SAS", f"fs.azure.sas.fixed.token.{at}": str(token).lstrip("?")}
    if options.get("client_id") and options.get("client_secret") and options.get("tenant_id"):
        login = f"https://login.microsoftonline.com/{options['tenant_id']}/oauth2/token"
        return {
            f"fs.azure.account.auth.type.{at}": "OAuth",
            f"fs.azure.account.oauth.provider.type.{at}": (
                "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider"
            ),
            f"fs.azure.account.oauth2.client.id.{at}": str(options["client_id"]),
            f"fs.azure.account.oauth2.client.secret.{at}": str(options["client_secret"]),
            f"fs.azure.account.oauth2.client.endpoint.{at}": login,
        }
    return {}


_SETTINGS: Mapping[str, Callable[[str, Mapping[str, Any]], dict[str, str]]] = {
    "s3": _s3,
    "gs": _gs,
    "abfs": _abfs,
    "azure": _abfs,
}
