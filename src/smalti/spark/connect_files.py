"""Sizes and times of the files that a Spark Connect DataFrame reads.

A client of Spark Connect sees neither the plan nor what Spark listed for it; it is told names alone. So the server is
asked to list these files, once before the rows are read and once after: as a source of binary files of which no content
is selected, by the server's own credentials, and without a file being opened.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from smalti.errors import StoreNotFound
from smalti.storage.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Listed = list[tuple[str, int, str]]
"""Path, bytes and modification time of files."""

_PARALLELISM = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_TASKS = "64"  # by default a task for each file, 8 ms of the server's for each; by 64, 1 ms
_AT_ONCE = 5_000  # paths in one request, 1 MB
_GLOB = re.compile(r"([\\*?{}\[\]])")
_ESCAPED = re.compile(r"\\([\\*?{}\[\]])")
_GONE = re.compile(r"\[PATH_NOT_FOUND\] Path does not exist: (.*?)\.(?: SQLSTATE: \w+)?$", re.MULTILINE)


def files_now(df: "DataFrame") -> Listed | None:
    """The files of a Spark Connect DataFrame as they are now, for `check_unchanged`; None of any other.

    None as well where the server does not list them (other credentials, a table whose files nobody may name). A million
    take 200 MB.
    """
    if hasattr(df, "_jdf"):
        return None
    from pyspark.errors import PySparkException

    try:
        return list_files(df)
    except (PySparkException, StoreNotFound):
        return None


def list_files(df: "DataFrame") -> Listed:
    """The files of a Spark Connect DataFrame as they are now.

    Raises:
        StoreNotFound: one of them is gone; its `path` says which.
        PySparkException: the server does not list them.
    """
    names = sorted({unquote(name) for name in df.inputFiles()})
    with _few_tasks(df.sparkSession):
        parts = (names[begin : begin + _AT_ONCE] for begin in range(0, len(names), _AT_ONCE))
        return [file for part in parts for file in _list(df.sparkSession, part)]


def _list(spark: "SparkSession", names: Sequence[str]) -> Listed:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions

    try:
        files = spark.read.format("binaryFile").load([_GLOB.sub(r"\\\1", name) for name in names])
        rows = files.select("path", "length", functions.expr("unix_millis(modificationTime)").alias("time")).collect()
    except AnalysisException as error:
        gone = _GONE.search(str(error))
        if gone is None:
            raise
        path = _ESCAPED.sub(r"\1", gone[1])
        raise StoreNotFound(f"{redact(path)} is gone", path=path) from error
    return [(row["path"], row["length"], str(row["time"])) for row in rows]


@contextmanager
def _few_tasks(spark: "SparkSession") -> Iterator[None]:
    """Files listed by few tasks; a number that somebody chose is kept."""
    from pyspark.errors import PySparkException

    if spark.conf.get(_PARALLELISM, None) is not None:
        yield
        return
    with suppress(PySparkException):  # not everybody may set it, and it changes no answer
        spark.conf.set(_PARALLELISM, _TASKS)
    try:
        yield
    finally:
        with suppress(PySparkException):
            spark.conf.unset(_PARALLELISM)
