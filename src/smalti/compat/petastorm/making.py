"""make_spark_converter: writes a DataFrame as Parquet files, unless an equal one was written before."""

import logging
import statistics
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote

from smalti.compat.petastorm.conversion import checked_codec, checked_precision, converted
from smalti.compat.petastorm.converter import SparkDatasetConverter
from smalti.compat.petastorm.deleting import delete_at_exit, delete_folder
from smalti.compat.petastorm.kept import find, remember
from smalti.compat.petastorm.materialized import Plan, Wanted, written_once
from smalti.compat.petastorm.parquet_set import ParquetSet, open_set
from smalti.compat.petastorm.settings import databricks_path, driver_session, parent_folder
from smalti.compat.petastorm.sources import open_place
from smalti.errors import SmaltiError
from smalti.whole import whole_number

_log = logging.getLogger(__name__)
_ROW_GROUP_BYTES = 32 << 20
_SMALL_FILE_BYTES = 50 << 20


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = _ROW_GROUP_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    storage_options: Mapping[str, Any] | None = None,
    keep: bool = False,
) -> SparkDatasetConverter:
    """A converter of a DataFrame, which is written below the folder that the session's setting names.

    An equal DataFrame (same plan, same source files, same options and folder) of the same Spark application is not
    written again. What was written is removed when the program ends, or by `delete()`.

    Args:
        df: a DataFrame, of a classic session or of Spark Connect; or the address of Parquet files, which are left where
            they are, and for which neither Spark nor the setting is needed.
        parquet_row_group_size_bytes: bytes of a row group, before encoding; a reader holds a few of them in memory.
        compression_codec: None, `uncompressed`, `gzip`, `lz4`, `snappy` or `zstd`.
        dtype: `float32` or `float64`: what floating-point columns and arrays become; None leaves them. Integers stay.
        storage_options: credentials and endpoint for the folder; by default what the environment says.
        keep: the folder stays when the program ends, and a later program finds it again, where Spark tells that an
            equal DataFrame has the same rows (files or a table's version, a deterministic plan; not on Connect).

    Raises:
        ValueError: the setting is missing, or an argument is out of range.
        RuntimeError: an unknown codec, or called in a Spark task.
        TypeError: `df` is neither a DataFrame of Spark nor an address.
        StoreError, FormatError: what was written cannot be read here.
    """
    group_bytes = whole_number("parquet_row_group_size_bytes", parquet_row_group_size_bytes, 1, (1 << 31) - 1)
    if isinstance(df, str):
        url = databricks_path(df)
        return _converter(url, open_set(open_place(url, storage_options)), is_owned=False)
    session = driver_session(df)
    parent = parent_folder(session)
    codec, precision = checked_codec(compression_codec), checked_precision(dtype)
    wanted = Wanted(parent, group_bytes, codec, precision, keep)
    open_place(parent, storage_options)  # an address that cannot be read is refused before anything is written
    application = _application(df)
    from smalti.spark.lineage import source_of, write_id_of

    source = source_of(df)
    plan = Plan.of(df, application, source)
    told = {"converter": 1, "row_group_bytes": wanted.row_group_bytes, "codec": codec, "dtype": precision}
    key = write_id_of(source, told) if keep else None
    url = written_once(
        wanted,
        plan,
        lambda: _found_or_written(df, wanted, key, application, storage_options),
        lambda known: _files_of(known, storage_options),
    )
    found = open_set(open_place(url, storage_options))
    _warn_of_small_files(found)
    return _converter(url, found, is_owned=True)


def _found_or_written(
    df: Any, wanted: Wanted, key: str | None, application: str, options: Mapping[str, Any] | None
) -> str:
    """What an earlier program kept of an equal DataFrame, if it is whole, or else what is written now."""
    if key is not None:
        found = find(wanted.parent, key, options)
        if found is not None and frozenset(_files_of(found[0], options)) == found[1]:
            return found[0]
    url = _write(df, wanted, application, options)
    if key is not None:
        remember(wanted.parent, key, url, _files_of(url, options), options)
    return url


def _write(df: Any, wanted: Wanted, application: str, options: Mapping[str, Any] | None) -> str:
    # The time is the driver's own, for a person who looks for what was left behind.
    stamp = datetime.now().strftime("%Y%m%d%H%M%S")  # noqa: DTZ005 -- as Petastorm names them
    url = f"{wanted.parent}/{stamp}-appid-{application}-{uuid.uuid4()}"
    rows = converted(df, wanted.dtype)
    try:
        (
            rows.write.option("compression", wanted.codec)
            .option("parquet.block.size", wanted.row_group_bytes)
            .parquet(url)
        )
    except BaseException:
        with suppress(SmaltiError, OSError):  # the writer's own error is the one to tell
            delete_folder(url, options)
        raise
    if not wanted.keep:
        delete_at_exit(url, options)
    return url


def _application(df: Any) -> str:
    session = df.sparkSession
    if hasattr(df, "_jdf"):
        return str(session.sparkContext.applicationId)
    return str(session.conf.get("spark.app.id", None) or session.session_id)


def _files_of(url: str, options: Mapping[str, Any] | None) -> list[tuple[str, int]]:
    return [(info.key, info.num_bytes) for info in open_place(url, options).source.list()]


def _converter(url: str, found: ParquetSet, *, is_owned: bool) -> SparkDatasetConverter:
    urls = [_file_url(found.source.locate(footer.key)) for footer in found.footers]
    return SparkDatasetConverter(url, urls, found.num_rows, is_owned=is_owned)


def _file_url(address: str) -> str:
    return address if ":" in address.split("/", maxsplit=1)[0] else f"file://{quote(address)}"


def _warn_of_small_files(found: ParquetSet) -> None:
    sizes = [footer.num_bytes for footer in found.footers]
    if len(sizes) > 1 and (median := statistics.median_high(sizes)) < _SMALL_FILE_BYTES:
        _log.warning(
            "the median size of the %d Parquet files in %s is %d bytes, below 50 MB (%d in all): fewer, larger files, "
            "by df.coalesce(n) or df.repartition(n), are read faster.",
            len(sizes),
            found.source.url,
            median,
            sum(sizes),
        )
