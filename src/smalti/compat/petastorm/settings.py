"""Where converted DataFrames are kept: the Spark setting, and what an address must look like."""

import logging
import os
from typing import Any
from urllib.parse import urlsplit

from smalti.errors import MissingDependency

PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
OUR_CONF = "smalti.converter.cacheDir"

_log = logging.getLogger(__name__)


def driver_session(df: Any) -> Any:
    """The session of a DataFrame, on the driver.

    Raises:
        MissingDependency: PySpark is not installed.
        RuntimeError: this is an executor's task.
        TypeError: `df` is no DataFrame of Spark.
    """
    try:
        from pyspark import TaskContext

        from smalti.spark.frames import require_frame
    except ImportError as error:
        raise MissingDependency(
            "make_spark_converter needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
        ) from error
    if TaskContext.get() is not None:
        raise RuntimeError(
            "make_spark_converter is called on the driver, and this is a Spark task: make the converter there and send "
            "it here, as it pickles."
        )
    require_frame(df, "`df`")
    return df.sparkSession


def parent_folder(session: Any) -> str:
    """The folder that the session's setting names, as it is now.

    Raises:
        ValueError: it is not set, or has no scheme.
    """
    for name in (OUR_CONF, PARENT_CACHE_DIR_URL_CONF):
        url = session.conf.get(name, None)
        if url:
            return _checked(str(url).rstrip("/"), name, session)
    raise ValueError(
        f"set the Spark setting {PARENT_CACHE_DIR_URL_CONF} or {OUR_CONF} to a folder for converted DataFrames that "
        f'the driver, the executors and the trainers see: spark.conf.set("{PARENT_CACHE_DIR_URL_CONF}", '
        '"file:///dbfs/tmp/converted").'
    )


def databricks_path(url: str) -> str:
    """An address of a user's Parquet files, which on Databricks must be one that all machines see.

    Raises:
        ValueError: on Databricks, it is none of those.
    """
    if not _on_databricks():
        return url
    for prefix in ("dbfs:///Volumes/", "dbfs:/Volumes/", "file:///Volumes/", "file:/Volumes/", "/Volumes/"):
        if url.startswith(prefix):
            return f"file:/Volumes/{url[len(prefix) :]}"
    if url.startswith("dbfs:/") and (url.startswith("dbfs:///") or not url.startswith("dbfs://")):
        return f"file:/dbfs/{url.removeprefix('dbfs:').lstrip('/')}"
    if url.startswith(("file:/dbfs/", "file:///dbfs/")):
        return url
    raise ValueError(
        f"{url}: on Databricks a path of Parquet files must be one that all machines see: 'file:/dbfs/...', "
        "'dbfs:/...' or '/Volumes/...'."
    )


def _checked(url: str, name: str, session: Any) -> str:
    parts = urlsplit(url)
    if not parts.scheme:
        raise ValueError(f"{name} is {url!r}, an address without a scheme: prepend file:// for a local folder.")
    shared = parts.path.startswith(("/dbfs/", "/Volumes/"))
    if _on_databricks() and parts.scheme == "file" and not shared and not _is_local(session):
        _log.warning(
            "%s is %s, a folder of one machine, and this cluster has several: give 'file:/dbfs/...' or '/Volumes/...', "
            "unless a shared disk is mounted there on all of them.",
            name,
            url,
        )
    return url


def _on_databricks() -> bool:
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def _is_local(session: Any) -> bool:
    return str(session.conf.get("spark.master", "")).strip().lower().startswith("local")
