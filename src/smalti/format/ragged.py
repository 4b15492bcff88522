"""`Ragged`: the values of one column of varying length, end to end in one buffer. Decodes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.format.encoding import split


@dataclass(frozen=True, eq=False)
class Ragged:
    """The bytes of n values: value i is `data[offsets[i]:offsets[i + 1]]`."""

    data: "np.ndarray[Any, np.dtype[np.uint8]]"
    """uint8, shape (total,); owned and writable."""
    offsets: "np.ndarray[Any, np.dtype[np.int64]]"
    """int64, shape (n + 1,): from 0, never falling, to `total`."""

    @classmethod
    def from_values(cls, values: Sequence[bytes]) -> "Ragged":
        """The same bytes in one buffer."""
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum([len(value) for value in values], out=offsets[1:])
        return cls(np.frombuffer(bytearray().join(values), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> memoryview:
        """The bytes of value `index`, without a copy; negative numbers count from the end.

        Raises:
            IndexError: No such value.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"value {index} of {len(self)}")
        place = index % len(self)
        return memoryview(self.data)[self.offsets[place] : self.offsets[place + 1]]

    def tolist(self) -> list[bytes]:
        """A copy of each value."""
        return split(self.data, self.offsets)
