"""What every global order offers: sample ids by position. The orders themselves are beside this."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

Positions = np.ndarray[Any, "np.dtype[np.int64]"]


class GlobalOrder(ABC):
    """The order of one epoch: a sample id at each position in [0, len(order))."""

    @abstractmethod
    def __len__(self) -> int:
        """Positions of the epoch."""

    @abstractmethod
    def ids_at(self, positions: Positions) -> Positions:
        """Sample ids at the given positions, each in [0, len(order)); int64, the shape of `positions`."""

    def sample_ids(self, begin: int, end: int) -> Positions:
        """Sample ids at positions [begin, end) of the epoch, as `ids_at` gives them; int64, shape (end - begin,).

        Raises:
            IndexError: the span is not inside [0, len(order)].
        """
        if not 0 <= begin <= end <= len(self):
            raise IndexError(f"span [{begin}, {end}) is not inside the epoch's positions [0, {len(self)}).")
        return self.ids_at(np.arange(begin, end, dtype=np.int64))
