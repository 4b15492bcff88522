"""GlobalOrder: the interface of all orders, sample ids by position."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Positions = np.ndarray[Any, "np.dtype[np.int64]"]


class GlobalOrder(ABC):
    """The order of one epoch: a sample id at each position in [0, len(order))."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of positions of the epoch."""

    @abstractmethod
    def ids_at(self, positions: Positions) -> Positions:
        """Return sample ids at the given positions, each in [0, len(order)); int64, the shape of `positions`."""

    def sample_ids(self, begin: int, end: int) -> Positions:
        """Return sample ids at positions [begin, end) of the epoch, as `ids_at`; int64, shape (end - begin,).

        Raises:
            IndexError: the span is not inside [0, len(order)].
        """
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"span [{begin}, {end}) is not inside the epoch's positions [0, {len(self)}).")
        return self.ids_at(np.arange(begin, end, dtype=np.int64))
