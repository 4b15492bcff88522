"""Petastorm's loaders for torch: the batches of a reader as dicts of tensors.

Here: DataLoader, BatchedDataLoader, InMemBatchedDataLoader, and the conversion of columns to tensors with Petastorm's
promotion of types. Importing this module imports torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from smalti.attributes import Replaceable, whole_number
from smalti.compat.petastorm.reading.batch_reader import BatchReader
from smalti.compat.petastorm.reading.rows import Columns
from smalti.order.keys import Purpose, keyed_permutation
from smalti.torch.ranks import Agreement

_PROMOTED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.bool_): np.uint8}
_LISTED_TYPES = (str, bytes, Decimal)


def _numbers_only(columns: Columns, make: Any) -> dict[str, Any]:
    """Return all columns as tensors that `make` creates from arrays."""
    for name, values in columns.items():
        if values.dtype.kind not in "biufc":
            raise TypeError(f"column {name!r} holds {values.dtype}; this loader supports only numbers: use DataLoader.")
    return {name: make(_promoted(values)) for name, values in columns.items()}


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """Collate rows like torch's `default_collate`, but return text, bytes and decimals as they are given."""
    first = batch[0]
    if isinstance(first, _LISTED_TYPES):
        return batch
    if isinstance(first, Mapping):
        return {name: decimal_friendly_collate([row[name] for row in batch]) for name in first}
    if isinstance(first, Sequence):
        return [decimal_friendly_collate(values) for values in zip(*batch, strict=True)]
    return default_collate(list(batch))


def _column(name: str, values: np.ndarray[Any, Any]) -> Any:
    """Return a numeric column as a tensor, without a copy; text, bytes and decimals as a list.

    Raises:
        TypeError: the column holds None, values of different shapes, or a type that torch lacks.
    """
    if values.dtype.kind in "biufc":
        return torch.from_numpy(_promoted(values))
    _refuse_none(name, values)
    if values.dtype.kind in "US" or (values.size and isinstance(values.flat[0], _LISTED_TYPES)):
        return values.tolist()
    if not values.size:
        return []
    first = values.flat[0]
    if values.dtype.kind in "mM":
        reason = f"it holds times ({values.dtype})"
    elif isinstance(first, np.ndarray):
        shapes = sorted({value.shape for value in values.flat})
        reason = f"its rows have different shapes, such as {shapes[0]} and {shapes[-1]}"
    else:
        is_time = isinstance(first, date | time | timedelta)
        reason = f"it holds {'times' if is_time else 'Python objects'} ({type(first).__name__})"
    raise TypeError(f"column {name!r} cannot become a tensor: {reason}. Convert it in a TransformSpec.")


def _promoted(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dtype = _PROMOTED.get(values.dtype)
    if dtype is not None:
        return values.astype(dtype)
    return values if values.flags.writeable else values.copy()


def _refuse_none(name: str, values: np.ndarray[Any, Any]) -> None:
    if values.dtype == object and any(value is None for value in values.flat):
        raise TypeError(
            f"column {name!r} holds None, which torch does not support: remove those rows with `filters=[[({name!r}, "
            "'!=', None)]]` or a predicate, or fill them in a TransformSpec or in Spark."
        )


__all__ = ["BatchedDataLoader", "DataLoader", "InMemBatchedDataLoader", "decimal_friendly_collate"]


class LoaderBase:
    """Common parts of the loaders: one pass at a time, reset between passes, the position of the consumer."""

    def __init__(self, reader: BatchReader, batch_size: int, shuffling_queue_capacity: int) -> None:
        size = whole_number("batch_size", batch_size, 1)
        capacity = whole_number("shuffling_queue_capacity", shuffling_queue_capacity, 0)
        reader.configure(batch_size=size, shuffle_rows_within=capacity)
        self._smalti_reader, self._batch_size, self._capacity = reader, size, capacity
        self._agreement = Agreement(repr(("petastorm", reader.where)))
        self._in_iter: bool | None = None
        self._error: Exception | None = None

    reader: Replaceable[BatchReader] = Replaceable(attrgetter("_smalti_reader"))
    """The reader that the loader was made with."""
    batch_size: Replaceable[int] = Replaceable(attrgetter("_batch_size"))
    """Rows per rank and step."""
    shuffling_queue_capacity: Replaceable[int] = Replaceable(attrgetter("_capacity"))
    """Minimal number of rows to mix."""
    steps_per_epoch: Replaceable[int] = Replaceable(attrgetter("_smalti_reader.steps_per_epoch"))
    """Steps of a whole epoch, equal on all ranks."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of all epochs of the reader, or after `load_state_dict` of the rest of them.

        As in Petastorm, nothing is checked before the first batch is taken.

        Raises:
            RuntimeError: a pass is in progress, or one has failed.
            CursorError: another rank of the process group starts at another position.
            TypeError: a column cannot become a tensor.
            SmaltiError: a file is gone, changed or damaged.
        """
        if self._error is not None:
            raise RuntimeError(
                f"the previous pass failed with {self._error!r}. Make a new reader and loader; `state_dict` "
                "gives the position to resume from."
            ) from self._error
        if self._in_iter:
            raise RuntimeError("finish the current pass before you start another one, or make a new reader and loader.")
        if self._smalti_reader.last_row_consumed:
            self._smalti_reader.reset()
        self._in_iter = True
        try:
            if not self._smalti_reader.has_begun:
                self._agreement.check(self._smalti_reader.current_reading())
            for batch in self._smalti_reader.batches():
                yield self._converted(batch)
        except Exception as error:
            self._error = error
            raise
        finally:
            self._in_iter = False

    def _converted(self, batch: Columns) -> dict[str, Any]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch taken: small, JSON-serialisable, equal on all ranks."""
        return self._smalti_reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the next pass where `state` was saved; see `BatchReader.load_state_dict`."""
        self._smalti_reader.load_state_dict(state)

    def __enter__(self) -> "LoaderBase":
        return self

    def __exit__(self, *args: object) -> None:
        self._smalti_reader.stop()
        self._smalti_reader.join()


class DataLoader(LoaderBase):
    """Batches as dicts: tensors for numbers, lists for text, bytes and decimals. The last batch may be shorter.

    Args:
        reader: what `make_batch_reader` returned, before its first batch.
        batch_size: rows per rank and step.
        collate_fn: makes a batch from a list of rows; with the default, columns become tensors directly.
        shuffling_queue_capacity: minimal number of rows to mix; there is no queue.

    Examples:
        >>> reader = make_batch_reader("file:///data/rows.parquet", num_epochs=1)
        >>> with DataLoader(reader, batch_size=5) as loader:
        ...     [len(batch["id"]) for batch in loader]
        [5, 5]
    """

    def __init__(
        self,
        reader: BatchReader,
        batch_size: int = 1,
        collate_fn: Callable[[list[dict[str, Any]]], Any] | None = decimal_friendly_collate,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self._smalti_collate = collate_fn

    collate_fn: Replaceable[Callable[[list[dict[str, Any]]], Any] | None] = Replaceable(
        attrgetter("_smalti_collate"), assigned="_smalti_collate"
    )
    """The function from a list of rows to a batch; the default and None convert columns to tensors."""

    def _converted(self, batch: Columns) -> Any:
        collate = self._smalti_collate
        if collate is None or collate is decimal_friendly_collate:
            return {name: _column(name, values) for name, values in batch.items()}
        for name, values in batch.items():
            _refuse_none(name, values)
        promoted = {name: _promoted(values) for name, values in batch.items()}
        num_rows = len(next(iter(promoted.values())))
        return collate([{name: values[row] for name, values in promoted.items()} for row in range(num_rows)])


class BatchedDataLoader(LoaderBase):
    """Batches as dicts of tensors; all columns must be numeric. Other arguments as for `DataLoader`.

    Args:
        transform_fn: makes a tensor from an array; by default `torch.as_tensor`.

    Examples:
        >>> reader = make_batch_reader("file:///data/rows.parquet", num_epochs=1)
        >>> with BatchedDataLoader(reader, batch_size=5) as loader:
        ...     [len(batch["id"]) for batch in loader]
        [5, 5]
    """

    def __init__(
        self,
        reader: BatchReader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self._smalti_transform = transform_fn or torch.as_tensor

    transform_fn: Replaceable[Callable[[Any], Any]] = Replaceable(
        attrgetter("_smalti_transform"), assigned="_smalti_transform"
    )
    """The function from an array to a tensor."""

    def _converted(self, batch: Columns) -> dict[str, Any]:
        return _numbers_only(batch, self._smalti_transform)


class InMemBatchedDataLoader:
    """The first `rows_capacity` rows of a reader, as batches of tensors, for some epochs; the reader is stopped.

    The last batch of an epoch may be shorter. Each epoch has its own order. Other arguments as for `BatchedDataLoader`.

    Raises:
        TypeError: a column is not numeric.

    Examples:
        >>> reader = make_batch_reader("file:///data/rows.parquet", num_epochs=1)
        >>> with InMemBatchedDataLoader(reader, batch_size=5) as loader:
        ...     [len(batch["id"]) for batch in loader]
        [5, 5]
    """

    def __init__(
        self,
        reader: BatchReader,
        batch_size: int = 1,
        transform_fn: Callable[[Any], Any] | None = None,
        num_epochs: int = 1,
        seed: int = 0,
        rows_capacity: int = 1024,
        shuffle: bool = False,  # noqa: FBT001, FBT002 -- Petastorm's signature
    ) -> None:
        self._batch_size, self._num_epochs, self._seed, self._shuffle = batch_size, num_epochs, seed, shuffle
        self._started = False
        parts: list[dict[str, Any]] = []
        rows = 0
        for batch in reader.batches():
            parts.append(_numbers_only(batch, transform_fn or torch.as_tensor))
            rows += len(next(iter(batch.values())))
            if rows >= rows_capacity:
                break
        reader.stop()
        reader.join()
        self._columns = {name: torch.cat([part[name] for part in parts])[:rows_capacity] for name in parts[0]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of all epochs.

        Raises:
            RuntimeError: a batch was taken by an earlier iterator; raised when the first batch is taken.
        """
        if self._started:
            raise RuntimeError("this loader can be iterated only once: pass the number of epochs as `num_epochs`.")
        self._started = True
        rows = len(next(iter(self._columns.values())))
        for epoch in range(self._num_epochs):
            order = torch.arange(rows)
            if self._shuffle:
                order = torch.from_numpy(keyed_permutation(rows, Purpose.WINDOW, seed=self._seed, epoch=epoch))
            for begin in range(0, rows, self._batch_size):
                taken = order[begin : begin + self._batch_size]
                yield {name: values[taken] for name, values in self._columns.items()}

    def __enter__(self) -> "InMemBatchedDataLoader":
        return self

    def __exit__(self, *args: object) -> None:
        """Do nothing: the reader was stopped when the rows were read."""
