"""Array: items by index, slice, list or array of indices."""

from collections.abc import Iterator
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
