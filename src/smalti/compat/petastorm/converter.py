"""SparkDatasetConverter: a DataFrame that lies as Parquet files, and the loaders that are made of it."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from smalti.compat.petastorm.deleting import delete_folder
from smalti.compat.petastorm.materialized import forget
from smalti.compat.petastorm.opening import make_batch_reader
from smalti.compat.petastorm.reader import BatchReader
from smalti.compat.petastorm.settings import PARENT_CACHE_DIR_URL_CONF
from smalti.errors import ChecksumMismatch

_log = logging.getLogger(__name__)
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
        from smalti.compat.petastorm.loaders import DataLoader

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
        from smalti.compat.petastorm.tf_data import load_tensorflow, tf_dataset

        load_tensorflow()
        shaped = {"shuffle": self._capacity, "prefetch": self._prefetch}
        return self._open(lambda reader: tf_dataset(reader, **shaped), batch_size=self._batch_size)
