"""make_spark_converter: write a DataFrame as Parquet files once, and make loaders that read the files.

Here: the converter, its context managers, and the conversion of columns before the files are written; also by
Petastorm's path `spark.spark_dataset_converter`. Not here: reading of the written files (`reader`), and which folder
already holds an equal DataFrame, and the removal of folders (`converted_folders`).
"""

import logging
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from smalti.attributes import whole_number
from smalti.compat.paths import serve
from smalti.compat.petastorm.converted_folders import (
    PARENT_CACHE_DIR_URL_CONF,
    Conversion,
    databricks_path,
    delete_at_exit,
    delete_folder,
    parent_folder,
    register_delete_dir_handler,
    reuse_or_write,
)
from smalti.compat.petastorm.reader import make_batch_reader
from smalti.compat.petastorm.reading.batch_reader import BatchReader
from smalti.compat.petastorm.reading.parquet import ParquetSet, open_folder, open_set
from smalti.errors import ChecksumMismatch, MissingDependency, SmaltiError

__all__ = [
    "SparkDatasetConverter",
    "TFDatasetContextManager",
    "TorchDatasetContextManager",
    "make_spark_converter",
    "register_delete_dir_handler",
]

_log = logging.getLogger(__name__)


_PRECISIONS = ("float32", "float64")
_CODECS = ("uncompressed", "gzip", "lz4", "snappy", "zstd")
_NOT_IN_PARQUET = ("bzip2", "deflate")


def converted(df: Any, dtype: str | None) -> Any:
    """Return the DataFrame with ML and MLlib vectors as arrays, and with its floating-point columns cast to `dtype`."""
    from pyspark.sql.types import ArrayType, DoubleType, FloatType

    source, target = (FloatType, DoubleType()) if dtype == "float64" else (DoubleType, FloatType())
    columns: list[Any] = []
    changed: list[str] = []
    for stored in df.schema.fields:
        column = df[f"`{stored.name.replace('`', '``')}`"]
        # A vector of ML or MLlib, of which neither is imported here.
        module = type(stored.dataType).__module__
        is_array = isinstance(stored.dataType, ArrayType)
        if type(stored.dataType).__name__ == "VectorUDT" and module.startswith("pyspark.ml"):
            from pyspark.ml.functions import vector_to_array

            column = vector_to_array(column, dtype or "float64")
        elif dtype is not None and isinstance(stored.dataType.elementType if is_array else stored.dataType, source):
            column = column.cast(ArrayType(target, stored.dataType.containsNull) if is_array else target)
            changed.append(stored.name)
        columns.append(column.alias(stored.name))
    if changed:
        _log.warning("floating-point columns become %s: %s", dtype, ", ".join(changed))
    return df.select(*columns)


def _driver_session(df: Any) -> Any:
    """Return the session of a DataFrame, on the driver.

    Raises:
        MissingDependency: PySpark is not installed.
        RuntimeError: called in a Spark task.
        TypeError: `df` is not a Spark DataFrame.
    """
    try:
        from pyspark import TaskContext

        from smalti.spark.tasks import require_frame
    except ImportError as error:
        raise MissingDependency(
            "make_spark_converter needs PySpark, which is not installed: pip install 'smalti[spark]'", extra="spark"
        ) from error
    if TaskContext.get() is not None:
        raise RuntimeError(
            "make_spark_converter must be called on the driver, but this is a Spark task: make the converter there "
            "and pass it to the task (it can be pickled)."
        )
    require_frame(df, "`df`")
    return df.sparkSession


_FILE_WAIT_SECONDS = 30.0
_THREADS = 4
_BATCH = 32


class SparkDatasetConverter:
    """A DataFrame that was written as Parquet files. Picklable, so that trainers can make loaders from it.

    `file_urls` are in the order of their rows. If `is_owned`, a converter wrote the folder and may delete it.
    """

    PARENT_CACHE_DIR_URL_CONF = PARENT_CACHE_DIR_URL_CONF

    def __init__(
        self, cache_dir_url: str, file_urls: Sequence[str], dataset_size: int, *, is_owned: bool = True
    ) -> None:
        self.cache_dir_url, self.file_urls, self.dataset_size = cache_dir_url, list(file_urls), dataset_size
        self._is_owned, self._is_deleted = is_owned, False

    def __len__(self) -> int:
        """Return the number of rows in all files."""
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
        """Return a context manager for a loader of dicts of tensors; leaving it stops the reader.

        Args:
            batch_size: rows per rank and step.
            num_epochs: None repeats without end, in whole batches; all ranks take equally many batches per epoch, so
                that no rank waits in a collective for one that has no more data.
            workers_count: threads that read and transform; by default 4.
            shuffling_queue_capacity: rows that are mixed at least; by default all rows of the open row groups.
            data_loader_fn: called with `reader`, `batch_size` and `shuffling_queue_capacity`; by default `DataLoader`.
            petastorm_reader_kwargs: further arguments of `make_batch_reader`.
        """
        options = self._reader_options(petastorm_reader_kwargs, num_epochs, workers_count)
        return TorchDatasetContextManager(
            self.file_urls,
            batch_size,
            options,
            shuffling_queue_capacity,
            data_loader_fn,
            open_reader=self.open_reader,
        )

    def make_tf_dataset(
        self,
        batch_size: int | None = None,
        prefetch: int | None = None,
        num_epochs: int | None = None,
        workers_count: int | None = None,
        shuffling_queue_capacity: int | None = None,
        **petastorm_reader_kwargs: Any,
    ) -> "TFDatasetContextManager":
        """Return a context manager for a tf.data.Dataset of namedtuples; leaving it stops the reader.

        Arguments as for `make_torch_dataloader`; `batch_size` is 32 by default, and TensorFlow chooses what it
        prefetches.
        """
        options = self._reader_options(petastorm_reader_kwargs, num_epochs, workers_count)
        return TFDatasetContextManager(
            self.file_urls, batch_size, prefetch, options, shuffling_queue_capacity, open_reader=self.open_reader
        )

    def delete(self) -> None:
        """Remove the folder; an equal DataFrame is written again when it is next converted.

        The folder of a converter that was made from a path belongs to the user: it is kept, with a warning.

        Raises:
            StoreError: the folder could not be removed.
        """
        if not self._is_owned:
            _log.warning("%s was not written by a converter, and is not deleted.", self.cache_dir_url)
            return
        delete_folder(self.cache_dir_url)
        self._is_deleted = True

    def open_reader(self, **options: Any) -> BatchReader:
        """Return a reader of the files, which must still have as many rows as when they were converted.

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
                f"{reader.num_rows_stored}; the files have changed: convert the DataFrame again.",
                expected=self.dataset_size,
                found=reader.num_rows_stored,
            )
        return reader

    @staticmethod
    def _reader_options(options: dict[str, Any], num_epochs: int | None, workers_count: int | None) -> dict[str, Any]:
        for name in ("dataset_url", "dataset_url_or_urls"):
            if name in options:
                raise ValueError(f"`{name}` is set by the converter: omit it.")
        return options | {"num_epochs": num_epochs, "workers_count": workers_count or _THREADS}


class _ReaderContext:
    """A context that opens a reader of files on entry and stops it on exit."""

    parquet_file_url_list: Sequence[str]
    petastorm_reader_kwargs: Mapping[str, Any]
    open_reader: Callable[..., BatchReader] | None
    reader: BatchReader | None = None

    def __post_init__(self) -> None:
        self.parquet_file_url_list = list(self.parquet_file_url_list)
        self.petastorm_reader_kwargs = dict(self.petastorm_reader_kwargs)

    def _open(self, make: Callable[[BatchReader], Any], **options: Any) -> Any:
        open_reader = self.open_reader or partial(
            make_batch_reader, self.parquet_file_url_list, file_wait_seconds=_FILE_WAIT_SECONDS
        )
        reader = open_reader(**{**options, **self.petastorm_reader_kwargs})
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


@dataclass(eq=False, repr=False)  # the arguments of a reader may have secrets
class TorchDatasetContextManager(_ReaderContext):
    """A context whose value is a loader for torch.

    `open_reader(**options)` replaces `make_batch_reader(parquet_file_url_list, **options)`.
    """

    parquet_file_url_list: Sequence[str]
    batch_size: int | None
    petastorm_reader_kwargs: Mapping[str, Any]
    shuffling_queue_capacity: int
    data_loader_fn: Callable[..., Any] | None
    _: KW_ONLY
    open_reader: Callable[..., BatchReader] | None = None
    loader: Any = field(default=None, init=False)

    def __enter__(self) -> Any:
        from smalti.compat.petastorm.pytorch import DataLoader

        make: Callable[..., Any] = self.data_loader_fn or DataLoader
        size, capacity = self.batch_size or _BATCH, self.shuffling_queue_capacity
        self.loader = self._open(lambda reader: make(reader=reader, batch_size=size, shuffling_queue_capacity=capacity))
        return self.loader


@dataclass(eq=False, repr=False)  # the arguments of a reader may have secrets
class TFDatasetContextManager(_ReaderContext):
    """A context whose value is a tf.data.Dataset; `open_reader` as for `TorchDatasetContextManager`."""

    parquet_file_url_list: Sequence[str]
    batch_size: int | None
    prefetch: int | None
    petastorm_reader_kwargs: Mapping[str, Any]
    shuffling_queue_capacity: int | None
    _: KW_ONLY
    open_reader: Callable[..., BatchReader] | None = None

    def __enter__(self) -> Any:
        from smalti.compat.petastorm.tf_utils import load_tensorflow, tf_dataset

        load_tensorflow()
        tf_options = {"shuffle": self.shuffling_queue_capacity, "prefetch": self.prefetch}
        return self._open(lambda reader: tf_dataset(reader, **tf_options), batch_size=self.batch_size or _BATCH)


DEFAULT_ROW_GROUP_SIZE_BYTES = 32 << 20
_SMALL_FILE_BYTES = 50 << 20


def make_spark_converter(
    df: Any,
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,
    compression_codec: str | None = None,
    dtype: str | None = "float32",
    *,
    storage_options: Mapping[str, Any] | None = None,
    keep: bool = False,
) -> SparkDatasetConverter:
    """Write a DataFrame as Parquet files below the folder of the session's setting, and return its converter.

    An equal DataFrame (same plan, source files, options and folder) of the same Spark application is not written
    again. The files are removed by `delete()`, or when the program ends.

    Args:
        df: a DataFrame, of a classic session or of Spark Connect; or the address of Parquet files, which are read
            in place and need neither Spark nor the setting.
        parquet_row_group_size_bytes: bytes of a row group, before encoding; a reader holds a few row groups in memory.
        compression_codec: None, `uncompressed`, `gzip`, `lz4`, `snappy` or `zstd`.
        dtype: `float32` or `float64`: the type of all floating-point columns and arrays; None keeps their types.
        storage_options: credentials and endpoint for the folder; by default from the environment.
        keep: keep the folder when the program ends, so that a later program can reuse it. It is reused where an equal
            DataFrame is known to have the same rows: files or a table version as source, a deterministic plan, no
            Spark Connect.

    Raises:
        ValueError: the setting is missing, or an argument is out of range.
        RuntimeError: an unknown codec, or called in a Spark task.
        TypeError: `df` is neither a Spark DataFrame nor an address.
        StoreError, FormatError: the written files cannot be read in this process.

    Examples:
        >>> spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, "file:///data/converted")
        >>> frame = spark.createDataFrame([(1, "one"), (2, "two")], "id int, text string")
        >>> converter = make_spark_converter(frame.select("id"))
        >>> with converter.make_torch_dataloader(batch_size=2, num_epochs=1) as loader:
        ...     sum(len(batch["id"]) for batch in loader)
        2
        >>> converter.delete()
    """
    group_bytes = whole_number("parquet_row_group_size_bytes", parquet_row_group_size_bytes, 1, (1 << 31) - 1)
    if isinstance(df, str):
        url = databricks_path(df)
        return _converter(url, open_set(url, storage_options), is_owned=False)
    session = _driver_session(df)
    parent = parent_folder(session)
    codec = (compression_codec or "uncompressed").lower()
    if codec not in _CODECS:
        hint = " Petastorm lists it, but Parquet does not support it." if codec in _NOT_IN_PARQUET else ""
        raise RuntimeError(
            f"`compression_codec` must be None or one of {', '.join(_CODECS)}, found {compression_codec!r}.{hint}"
        )
    if dtype is not None and dtype not in _PRECISIONS:
        raise ValueError(f"`dtype` must be 'float32', 'float64' or None, found {dtype!r}.")
    open_folder(parent, storage_options)  # fail before writing if the address cannot be read
    from smalti.spark.lineage import source_of, write_id_of

    source = source_of(df)
    conversion = Conversion.of(df, source, parent, (group_bytes, codec, dtype, keep))
    identity = {"converter": 1, "row_group_bytes": group_bytes, "codec": codec, "dtype": dtype}
    key = write_id_of(source, identity) if keep else None

    def write() -> str:
        # Local time of the driver, to help people who clean up leftovers.
        stamp = datetime.now().strftime("%Y%m%d%H%M%S")  # noqa: DTZ005 -- as Petastorm names them
        url = f"{parent}/{stamp}-appid-{conversion.application}-{uuid.uuid4()}"
        writer = converted(df, dtype).write.option("compression", codec).option("parquet.block.size", group_bytes)
        try:
            writer.parquet(url)
        except BaseException:
            with suppress(SmaltiError, OSError):  # report the error of the write
                delete_folder(url, storage_options)
            raise
        if not keep:
            delete_at_exit(url, storage_options)
        return url

    url = reuse_or_write(conversion, key, write, storage_options)
    found = open_set(url, storage_options)
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
    return _converter(url, found, is_owned=True)


def _converter(url: str, found: ParquetSet, *, is_owned: bool) -> SparkDatasetConverter:
    places = [found.source.locate(footer.key) for footer in found.footers]
    urls = [place if ":" in place.split("/", maxsplit=1)[0] else f"file://{place}" for place in places]
    return SparkDatasetConverter(url, urls, found.num_rows, is_owned=is_owned)


serve(__name__, "spark_dataset_converter")
