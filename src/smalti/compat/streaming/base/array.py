"""Samples by number: Array, items by index, slice or list of indices, and Spanner, the shard of each sample."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array"]


class Array:
    """A read-only sequence that can be indexed as an array of numpy; a subclass has `size` and `get_item`.

    A step below 0 reverses as in Python, where MosaicML's returns nothing unless both ends are given.
    """

    @property
    def size(self) -> int:
        """Number of items."""
        raise NotImplementedError

    def get_item(self, idx: int) -> Any:
        """Return the item at `idx`, in [0, size)."""
        raise NotImplementedError

    def _each_slice_index(self, at: slice) -> Iterator[int]:
        yield from range(*at.indices(self.size))

    def __getitem__(self, at: int | slice | list[int] | NDArray[np.int64]) -> Any:
        """Return the item at an index, negative ones from the end; else a list of items, nested as the indices are.

        Raises:
            IndexError: there is no such item.
            ValueError: `at` is none of these.
        """
        if isinstance(at, (int, np.integer)):
            return self.get_item(at + self.size if -self.size <= at < 0 else at)
        if isinstance(at, slice):
            return [self.get_item(index) for index in self._each_slice_index(at)]
        if isinstance(at, (list, np.ndarray)):
            return [self[each] for each in at]
        raise ValueError(f"Unsupported argument type passed to __getitem__: {type(at)}.")


def check_sample_id(sample_id: int, num_samples: int) -> None:
    """Return only if there is such a sample.

    Raises:
        IndexError: there is none.
    """
    if not 0 <= sample_id < num_samples:
        raise IndexError(f"Invalid sample index `{sample_id}`: 0 <= {sample_id} < {num_samples}")


class Spanner:
    """The shard of every sample id.

    Args:
        shard_sizes: samples of every shard; int64.
        span_size: samples of the stretches that `spans` lists. Nothing else depends on it.
    """

    def __init__(self, shard_sizes: NDArray[np.int64], span_size: int = 1 << 10) -> None:
        if span_size < 1:
            raise ValueError(f"`span_size` must be at least 1, found {span_size}.")
        self.shard_sizes = shard_sizes
        self.span_size = span_size
        self.num_samples = shard_sizes.sum()
        self.shard_bounds = np.concatenate([np.zeros(1, np.int64), shard_sizes.cumsum()])

    @cached_property
    def spans(self) -> list[NDArray[np.int64]]:
        """The shards in which each stretch of `span_size` samples lies."""
        begins = np.arange(0, self.num_samples, self.span_size)
        lasts = np.minimum(begins + self.span_size, self.num_samples) - 1
        pairs = zip(self._shards_of(begins), self._shards_of(lasts), strict=True)
        return [np.arange(first, last + 1) for first, last in pairs]

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return the shard of a sample, and the sample's row there.

        Raises:
            IndexError: there is no such sample.
        """
        check_sample_id(index, int(self.num_samples))
        shard = int(np.searchsorted(self.shard_bounds, index, side="right")) - 1
        return shard, int(index - self.shard_bounds[shard])

    def _shards_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.shard_bounds, samples, side="right") - 1
