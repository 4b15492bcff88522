"""InMemBatchedDataLoader: some rows of a reader, kept in memory and shuffled anew in each epoch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from smalti.compat.petastorm.reader import BatchReader
from smalti.compat.petastorm.tensors import numbers_only
from smalti.order.keys import Purpose, keyed_permutation


class InMemBatchedDataLoader:
    """The first `rows_capacity` rows of a reader, as batches of tensors, for some epochs; the reader is stopped.

    Args:
        reader: what `make_batch_reader` returned, before its first batch.
        batch_size: rows of a batch; the last one of an epoch may be shorter.
        transform_fn: makes a tensor of an array; by default `torch.as_tensor`.
        num_epochs: how often the rows are handed over.
        seed: of the shuffle; each epoch has its own order.
        rows_capacity: rows that are kept at most.
        shuffle: whether to shuffle.

    Raises:
        TypeError: a column is not made of numbers.
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
        self._begun = False
        parts: list[dict[str, Any]] = []
        rows = 0
        for batch in reader.batches():
            parts.append(numbers_only(batch, transform_fn or torch.as_tensor))
            rows += len(next(iter(batch.values())))
            if rows >= rows_capacity:
                break
        reader.stop()
        reader.join()
        self._columns = {name: torch.cat([part[name] for part in parts])[:rows_capacity] for name in parts[0]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All epochs.

        Raises:
            RuntimeError: it was iterated before.
        """
        if self._begun:
            raise RuntimeError("this loader can be iterated once: give all epochs as `num_epochs`.")
        self._begun = True
        return self._batches()

    def _batches(self) -> Iterator[dict[str, Any]]:
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
        """Nothing is left to end."""
