"""SparkDatasetConverter: a DataFrame that lies as Parquet files, and the loaders that are made of it.

make_spark_converter: writes a DataFrame as Parquet files, unless an equal one was written before.

What a DataFrame becomes before it is written: vectors as arrays, floating-point columns in one precision.

DataFrames that this process wrote, by their plans: an equal one is not written again.

Converted DataFrames that outlive the program, found again by what they were computed of.

Removing what a converter wrote: when asked to, and when the program ends.

Where converted DataFrames are kept: the Spark setting, and what an address must look like.
"""

import atexit
import json
import logging
import os
import shutil
import statistics
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from smalti.compat.petastorm.batch_reader import BatchReader
from smalti.compat.petastorm.parquet import ParquetSet, open_set
from smalti.compat.petastorm.reader import make_batch_reader
from smalti.compat.petastorm.sources import ArrowSource, StoreSource, open_place
from smalti.errors import ChecksumMismatch, MissingDependency, SmaltiError, StoreError, StoreNotFound
from smalti.storage import LocalStore
from smalti.whole import whole_number

_log = logging.getLogger(__name__)

PRECISIONS = ("float32", "float64")
CODECS = ("uncompressed", "gzip", "lz4", "snappy", "zstd")
_NEVER_PARQUET = ("bzip2", "deflate")


def checked_codec(codec: str | None) -> str:
    """The name of a compression as Spark's Parquet writer has it.

    Raises:
        RuntimeError: it has none of this name.
    """
    chosen = (codec or "uncompressed").lower()
    if chosen in CODECS:
        return chosen
    never = " Petastorm's list has it, and no Parquet file can." if chosen in _NEVER_PARQUET else ""
    raise RuntimeError(f"`compression_codec` must be None or one of {', '.join(CODECS)}, found {codec!r}.{never}")


def checked_precision(dtype: str | None) -> str | None:
    """The precision, if it is one.

    Raises:
        ValueError: it is none.
    """
    if dtype is None or dtype in PRECISIONS:
        return dtype
    raise ValueError(f"`dtype` must be 'float32', 'float64' or None, found {dtype!r}.")


def converted(df: Any, dtype: str | None) -> Any:
    """The DataFrame with ML and MLlib vectors as arrays, and with its floating-point columns cast to `dtype`."""
    from pyspark.sql.types import ArrayType, DoubleType, FloatType

    source, target = (FloatType, DoubleType()) if dtype == "float64" else (DoubleType, FloatType())
    columns: list[Any] = []
    changed: list[str] = []
    for field in df.schema.fields:
        column = df[f"`{field.name.replace('`', '``')}`"]
        if _is_vector(field.dataType):
            from pyspark.ml.functions import vector_to_array

            column = vector_to_array(column, dtype or "float64")
        elif dtype is not None and isinstance(field.dataType, source):
            column, changed = column.cast(target), [*changed, field.name]
        elif dtype is not None and _is_array_of(field.dataType, source):
            column, changed = column.cast(ArrayType(target, field.dataType.containsNull)), [*changed, field.name]
        columns.append(column.alias(field.name))
    if changed:
        _log.warning("floating-point columns become %s: %s", dtype, ", ".join(changed))
    return df.select(*columns)


def _is_vector(kind: Any) -> bool:
    """Whether a type is a vector of ML or MLlib, without importing either."""
    return type(kind).__name__ == "VectorUDT" and type(kind).__module__.startswith("pyspark.ml")


def _is_array_of(kind: Any, element: type) -> bool:
    from pyspark.sql.types import ArrayType

    return isinstance(kind, ArrayType) and isinstance(kind.elementType, element)


@dataclass(frozen=True)
class Wanted:
    """What must be equal for a written DataFrame to be used again."""

    parent: str
    row_group_bytes: int
    codec: str
    dtype: str | None
    keep: bool


@dataclass(frozen=True)
class Plan:
    """A DataFrame's plan, without the DataFrame: what it was computed of can be let go."""

    session: str
    """Plans of different Spark applications cannot be compared."""
    plan: Any
    """On a classic session the analysed plan; with Spark Connect, where it is but a message, the DataFrame."""
    is_connect: bool
    source: Any
    """What is known of the files that it reads: equal plans over files that were changed are not equal."""

    @classmethod
    def of(cls, df: Any, session: str, source: Any) -> "Plan":
        """The plan of a DataFrame."""
        is_connect = not hasattr(df, "_jdf")
        plan = df if is_connect else df._jdf.queryExecution().analyzed()
        return cls(session, plan, is_connect, source)

    def equals(self, other: "Plan") -> bool:
        """Whether Spark knows that both give the same rows."""
        if (self.session, self.is_connect) != (other.session, other.is_connect) or self.source != other.source:
            return False
        same = self.plan.sameSemantics(other.plan) if self.is_connect else self.plan.sameResult(other.plan)
        return bool(same)


@dataclass(frozen=True)
class _Written:
    wanted: Wanted
    plan: Plan
    url: str
    files: frozenset[tuple[str, int]]
    """Names and sizes of what was written."""


_written: list[_Written] = []
_lock = threading.RLock()


def written_once(
    wanted: Wanted, plan: Plan, write: Callable[[], str], files_of: Callable[[str], Iterable[tuple[str, int]]]
) -> str:
    """The folder of an equal DataFrame, if its files are still as they were, or else what `write()` returns.

    Threads take turns, so that of several with equal DataFrames one writes.
    """
    with _lock:
        for each in list(_written):
            if each.wanted == wanted and each.plan.equals(plan):
                if frozenset(files_of(each.url)) == each.files:
                    return each.url
                _written.remove(each)  # somebody removed or changed it
        url = write()
        _written.append(_Written(wanted, plan, url, frozenset(files_of(url))))
        return url


def forget(url: str) -> None:
    """Makes the next equal DataFrame be written again."""
    with _lock:
        _written[:] = [each for each in _written if each.url != url]


_FOLDER = "_kept"

Files = Iterable[tuple[str, int]]
"""Names and sizes."""


def remember(parent: str, key: str, url: str, files: Files, options: Mapping[str, Any] | None) -> None:
    """Notes, beside the folders, which of them holds this DataFrame.

    Raises:
        StoreError: the note could not be written.
    """
    source = open_place(parent, options).source
    if not isinstance(source, StoreSource):
        raise StoreError(
            f"{parent}: `keep=True` needs a place that Smalti's stores can write; HDFS is none.", url=parent
        )
    note = {"folder": url.rpartition("/")[2], "files": sorted(files)}
    source.store.put(f"{_FOLDER}/{key}.json", json.dumps(note).encode())


def find(parent: str, key: str, options: Mapping[str, Any] | None) -> tuple[str, frozenset[tuple[str, int]]] | None:
    """The folder that holds this DataFrame, and its files, as they were noted; None where nothing (readable) was."""
    source = open_place(parent, options).source
    name = f"{_FOLDER}/{key}.json"
    try:
        data = source.read(name, 0, source.size(name))
    except StoreNotFound:
        return None
    try:
        note = json.loads(data)
        folder, files = note["folder"], frozenset((str(name), int(size)) for name, size in note["files"])
        if not isinstance(folder, str) or "/" in folder or folder in {"", ".", ".."}:
            raise ValueError(f"not a folder's name: {folder!r}")
    except (ValueError, TypeError, KeyError) as error:
        _log.warning("%s is damaged and not used: %s", source.locate(name), error)
        return None
    return f"{parent}/{folder}", files


_delete_lock = threading.Lock()
_at_exit: dict[str, tuple[int, Mapping[str, Any] | None]] = {}
"""Folders that this program removes at its end, with the process that wrote them and its options."""


def register_delete_dir_handler(handler: Callable[[str], None] | None) -> None:
    """Makes `handler(url)` remove the folders of converters from now on; None for our own way."""
    _handlers[:] = [] if handler is None else [handler]


def delete_folder(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Removes a folder and all that is in it; nothing happens when it is not there.

    Raises:
        StoreError: it could not be removed.
    """
    with _delete_lock:
        _at_exit.pop(url, None)
    _remove(url, options)


def delete_at_exit(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Has the folder removed when this process ends; a failure is then a warning in the log."""
    with _delete_lock:
        if not _at_exit:
            atexit.unregister(_delete_all)
            atexit.register(_delete_all)
        _at_exit[url] = (os.getpid(), options)


_handlers: list[Callable[[str], None]] = []


def _remove(url: str, options: Mapping[str, Any] | None) -> None:
    if _handlers:
        _handlers[0](url)
        return
    source = open_place(url, options).source
    if isinstance(source, ArrowSource):
        source.filesystem.delete_dir(source.root)
    elif isinstance(source, StoreSource) and isinstance(source.store, LocalStore):
        if Path(source.store.root).is_dir():
            shutil.rmtree(source.store.root)
    elif isinstance(source, StoreSource):
        for info in source.list():
            source.store.delete(info.key)


def _delete_all() -> None:
    with _delete_lock:
        folders = list(_at_exit.items())
        _at_exit.clear()
    for url, (pid, options) in folders:
        if pid != os.getpid():  # a fork's copy of the list
            continue
        try:
            _remove(url, options)
        except Exception as error:  # noqa: BLE001 -- the program ends; whoever reads the log can remove it
            _log.warning("could not remove %s, which a converter wrote: %s", url, error)


PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"
OUR_CONF = "smalti.converter.cacheDir"


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


_FILE_WAIT_SECONDS = 30.0
_THREADS = 4
_BATCH = 32


class SparkDatasetConverter:
    """A DataFrame that was written as Parquet files; pickles, so that trainers make their loaders of it.

    Args:
        cache_dir_url: folder of the files.
        file_urls: the files, in the order of their rows.
        dataset_size: rows of all files.
        is_owned: whether the folder was written by a converter, and may be deleted by one.
    """

    PARENT_CACHE_DIR_URL_CONF = PARENT_CACHE_DIR_URL_CONF

    def __init__(
        self, cache_dir_url: str, file_urls: Sequence[str], dataset_size: int, *, is_owned: bool = True
    ) -> None:
        self.cache_dir_url, self.file_urls, self.dataset_size = cache_dir_url, list(file_urls), dataset_size
        self._is_owned, self._is_deleted = is_owned, False

    def __len__(self) -> int:
        """Rows of all files."""
        return self.dataset_size

    def make_torch_dataloader(
        self,
        batch_size: int = _BATCH,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int = 0,
        data_loader_fn: Callable[..., Any] | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> "TorchDatasetContextManager":
        """A context manager whose value is a loader of dicts of tensors; its end ends the reader.

        Args:
            batch_size: rows per rank and step.
            num_epochs: None for no end: every rank then takes whole batches for as long as it wants, and all ranks
                equally many in an epoch, so that none waits for another that has run dry.
            workers_count: threads that read and transform; by default 4.
            shuffling_queue_capacity: rows that are mixed at least; by default all rows of the open row groups are.
            data_loader_fn: called with `reader`, `batch_size` and `shuffling_queue_capacity`; by default `DataLoader`.
            petastorm_reader_kwargs: further arguments of `make_batch_reader`.
        """
        options = self._reader_options(petastorm_reader_kwargs, num_epochs, workers_count)
        return TorchDatasetContextManager(self, batch_size, shuffling_queue_capacity, data_loader_fn, options)

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> "TFDatasetContextManager":
        """A context manager whose value is a tf.data.Dataset of namedtuples; its end ends the reader.

        Args:
            batch_size: rows per rank and step; by default 32.
            prefetch: batches that TensorFlow has ready; by default it chooses.
            num_epochs: None for no end.
            workers_count: threads that read and transform; by default 4.
            shuffling_queue_capacity: rows that are mixed at least.
            petastorm_reader_kwargs: further arguments of `make_batch_reader`.
        """
        options = self._reader_options(petastorm_reader_kwargs, num_epochs, workers_count)
        return TFDatasetContextManager(self, batch_size or _BATCH, prefetch, shuffling_queue_capacity, options)

    def delete(self) -> None:
        """Removes the folder, and forgets it: the same DataFrame is written again when it is next converted.

        The folder of a converter that was made of a path belongs to the user: it stays, and a warning says so.

        Raises:
            StoreError: it could not be removed.
        """
        if not self._is_owned:
            _log.warning("%s was not written by a converter, and is not deleted.", self.cache_dir_url)
            return
        forget(self.cache_dir_url)
        delete_folder(self.cache_dir_url)
        self._is_deleted = True

    def open_reader(self, **options: Any) -> BatchReader:
        """A reader of the files, which must have the rows that they had when they were converted.

        Raises:
            ValueError: the converter's files were deleted.
            FilesNotAvailable: files did not appear within 30 seconds.
            ChecksumMismatch: the files have other rows.
        """
        if self._is_deleted:
            raise ValueError(f"{self.cache_dir_url} was deleted by `delete()`: convert the DataFrame again.")
        reader = make_batch_reader(self.file_urls, **{"file_wait_seconds": _FILE_WAIT_SECONDS} | options)
        if reader.num_rows_stored != self.dataset_size:
            reader.stop()
            raise ChecksumMismatch(
                f"{self.cache_dir_url}: expected {self.dataset_size} rows as they were converted, found "
                f"{reader.num_rows_stored}; the files were changed: convert the DataFrame again.",
                expected=self.dataset_size,
                found=reader.num_rows_stored,
            )
        return reader

    @staticmethod
    def _reader_options(given: dict[str, Any], num_epochs: int | None, workers_count: int | None) -> dict[str, Any]:
        for name in ("dataset_url", "dataset_url_or_urls"):
            if name in given:
                raise ValueError(f"`{name}` is the converter's own: leave it out.")
        return given | {"num_epochs": num_epochs, "workers_count": workers_count or _THREADS}


class _ReaderContext:
    """Opens a reader when entered, and ends it when left."""

    def __init__(self, converter: SparkDatasetConverter, options: dict[str, Any]) -> None:
        self._converter, self._options = converter, options
        self.reader: BatchReader | None = None

    def _open(self, make: Callable[[BatchReader], Any], **options: Any) -> Any:
        reader = self._converter.open_reader(**self._options, **options)
        try:
            made = make(reader)
        except BaseException:
            reader.stop()
            raise
        self.reader = reader
        return made

    def __exit__(self, *args: object) -> None:
        if self.reader is not None:
            self.reader.stop()
            self.reader.join()


class TorchDatasetContextManager(_ReaderContext):
    """A loader for torch, while it is entered."""

    def __init__(
        self,
        converter: SparkDatasetConverter,
        batch_size: int,
        capacity: int,
        make: Callable[..., Any] | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(converter, options)
        self._batch_size, self._capacity, self._make = batch_size, capacity, make
        self.loader: Any = None

    def __enter__(self) -> Any:
        from smalti.compat.petastorm.pytorch import DataLoader

        make: Callable[..., Any] = self._make or DataLoader
        asked = {"shuffling_queue_capacity": self._capacity}
        self.loader = self._open(lambda reader: make(reader=reader, batch_size=self._batch_size, **asked))
        return self.loader


class TFDatasetContextManager(_ReaderContext):
    """A tf.data.Dataset, while it is entered."""

    def __init__(
        self,
        converter: SparkDatasetConverter,
        batch_size: int,
        prefetch: int | None,
        capacity: int | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(converter, options)
        self._batch_size, self._prefetch, self._capacity = batch_size, prefetch, capacity

    def __enter__(self) -> Any:
        from smalti.compat.petastorm.tf_utils import load_tensorflow, tf_dataset

        load_tensorflow()
        shaped = {"shuffle": self._capacity, "prefetch": self._prefetch}
        return self._open(lambda reader: tf_dataset(reader, **shaped), batch_size=self._batch_size)


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
    from smalti.spark.lineage.source import source_of, write_id_of

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
