"""Samples as stored in a shard: to be copied into another one, or hashed, without decoding."""

from dataclasses import dataclass

import numpy as np

from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import hash_rows


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Encoded samples, back to back."""

    data: memoryview
    """Buffer that holds them."""
    ends: Int64s
    """Begin of the first sample in `data`, and end of each; rising, int64, shape (samples + 1,)."""

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, rows: slice) -> "StoredSamples":
        """Return the samples of a slice with step 1."""
        begin, end, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"expected consecutive samples, found a step of {step}")
        return StoredSamples(self.data, self.ends[begin : max(begin, end) + 1])

    @property
    def lengths(self) -> Int64s:
        """Bytes of each sample, int64, shape (samples,)."""
        return np.diff(self.ends)

    @property
    def content(self) -> memoryview:
        """The bytes of these samples, and no others."""
        return self.data[int(self.ends[0]) : int(self.ends[-1])]

    def row_hash(self) -> int:
        """Return the sum of their hashes (`smalti.format.hashing`)."""
        return hash_rows(self.data, self.ends)
