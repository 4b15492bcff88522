"""DataLoader and BatchedDataLoader: a reader's batches as dicts of tensors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smalti.attributes import Replaceable, setting
from smalti.compat.petastorm.reader import BatchReader
from smalti.compat.petastorm.tensors import (
    decimal_friendly_collate,
    numbers_only,
    sample_dicts,
    tensor_columns,
)
from smalti.compat.petastorm.values import Columns
from smalti.torch.agreement import Agreement
from smalti.whole import whole_number

__all__ = ["BatchedDataLoader", "DataLoader", "decimal_friendly_collate"]


class LoaderBase:
    """What both loaders share: one pass at a time, reset between passes, the place of what was taken."""

    def __init__(self, reader: BatchReader, batch_size: int, shuffling_queue_capacity: int) -> None:
        size = whole_number("batch_size", batch_size, 1)
        capacity = whole_number("shuffling_queue_capacity", shuffling_queue_capacity, 0)
        reader.configure(batch_size=size, shuffle_rows_within=capacity)
        self._smalti_reader, self._batch_size, self._capacity = reader, size, capacity
        self._agreement = Agreement(repr(("petastorm", reader.where)))
        self._in_iter: bool | None = None
        self._error: Exception | None = None

    @Replaceable
    def reader(self) -> BatchReader:
        """The reader that the loader was made with."""
        return self._smalti_reader

    @Replaceable
    def batch_size(self) -> int:
        """Rows per rank and step."""
        return self._batch_size

    @Replaceable
    def shuffling_queue_capacity(self) -> int:
        """Rows that are mixed at least."""
        return self._capacity

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All epochs of the reader, or after `load_state_dict` the rest of them.

        Raises:
            RuntimeError: a pass is being made, or one has failed.
            CursorError: another rank of the process group begins somewhere else.
            TypeError: a column cannot become a tensor.
            SmaltiError: a file is gone, changed or damaged.
        """
        if self._error is not None:
            raise RuntimeError(
                f"no new pass: the last one failed with {self._error!r}. Make a new reader and loader; `state_dict` "
                "says where to go on."
            ) from self._error
        if self._in_iter:
            raise RuntimeError(
                "finish the pass that was begun before making another one, or make a new reader and loader."
            )
        return self._pass()

    def _pass(self) -> Iterator[dict[str, Any]]:
        if self._in_iter:
            raise RuntimeError("two passes over one loader were begun at once: finish the first one.")
        if self._smalti_reader.last_row_consumed:
            self._smalti_reader.reset()
        self._in_iter = True
        try:
            if not self._smalti_reader.has_begun:
                self._agreement.check(self._smalti_reader.current_reading())
            for batch in self._smalti_reader.batches():
                yield self._made(batch)
        except Exception as error:
            self._error = error
            raise
        finally:
            self._in_iter = False

    def _made(self, batch: Columns) -> dict[str, Any]:
        raise NotImplementedError

    @Replaceable
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch, equal on all ranks."""
        return self._smalti_reader.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch taken, small and JSON-able, equal on all ranks."""
        return self._smalti_reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next pass go on where `state` was saved; see `BatchReader.load_state_dict`."""
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
        collate_fn: makes a batch of a list of rows; by default columns become tensors without a detour.
        shuffling_queue_capacity: rows that are mixed at least; nothing is queued for it.
    """

    def __init__(
        self,
        reader: BatchReader,
        batch_size: int = 1,
        collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None,
        shuffling_queue_capacity: int = 0,
    ) -> None:
        super().__init__(reader, batch_size, shuffling_queue_capacity)
        self._smalti_collate = collate_fn

    @setting(lambda self, value: setattr(self, "_smalti_collate", value))
    def collate_fn(self) -> Callable[[list[dict[str, Any]]], Any] | None:
        """What makes a batch of a list of rows; None for tensors by column."""
        return self._smalti_collate

    def _made(self, batch: Columns) -> Any:
        return tensor_columns(batch) if self._smalti_collate is None else self._smalti_collate(sample_dicts(batch))


class BatchedDataLoader(LoaderBase):
    """Batches as dicts of tensors, of columns of numbers alone.

    Args:
        reader: what `make_batch_reader` returned, before its first batch.
        batch_size: rows per rank and step.
        transform_fn: makes a tensor of an array; by default `torch.as_tensor`.
        shuffling_queue_capacity: rows that are mixed at least.
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

    @setting(lambda self, value: setattr(self, "_smalti_transform", value))
    def transform_fn(self) -> Callable[[Any], Any]:
        """What makes a tensor of an array."""
        return self._smalti_transform

    def _made(self, batch: Columns) -> dict[str, Any]:
        return numbers_only(batch, self._smalti_transform)
