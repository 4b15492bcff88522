"""Where a shard ends and the next begins: MosaicML's rule, without its empty first shard. Pure arithmetic."""

from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.sizes import MAX_FILE_BYTES

_OFFSET_BYTES = 4  # every sample costs one entry in the table of offsets


class ShardCutter:
    """Decides cuts for samples of given lengths, in any number of calls; holds only the size of the open shard.

    A shard takes samples as long as its file stays within the limit; a sample that alone exceeds it gets a shard of its
    own. No shard is empty.
    """

    def __init__(self, overhead: int, limit: int | None) -> None:
        self._overhead = overhead  # bytes of a shard without samples
        self._limit = limit
        self._size = overhead
        self._count = 0

    @property
    def room(self) -> int:
        """Bytes, counting 4 more for every sample, that the open shard still takes; negative after a large sample."""
        return (self._limit or MAX_FILE_BYTES) - self._size

    def push(self, lengths: "np.ndarray[Any, np.dtype[np.int64]]", *, first_row: int = 0) -> list[int]:
        """The rows of this batch before which a shard ends, in order; 0 ends the shard that was open.

        Args:
            lengths: Bytes of each new sample, int64, shape (n,).
            first_row: Number of the first sample, for messages.

        Raises:
            SchemaError: A shard file would exceed 4 GiB; nothing of this call was taken in.
        """
        if len(lengths) and int(lengths.max()) + _OFFSET_BYTES + self._overhead > MAX_FILE_BYTES:
            row = first_row + int(lengths.argmax())
            raise SchemaError(
                f"sample {row} of {int(lengths.max())} bytes does not fit a shard, whose offsets are 32 bit: "
                f"{MAX_FILE_BYTES} bytes at most. Split the sample.",
                row=row,
            )
        ends = np.concatenate([[0], np.cumsum(lengths + _OFFSET_BYTES)])
        size, count, row = self._size, self._count, 0
        cuts: list[int] = []
        while row < len(lengths):
            room = (self._limit or MAX_FILE_BYTES) - size
            fitting = int(np.searchsorted(ends, room + ends[row], side="right")) - 1
            # An empty shard takes one sample, however large it is; an open one may have no room at all.
            stop = max(fitting, row + 1 if count == 0 else row)
            size, count = size + int(ends[stop] - ends[row]), count + stop - row
            row = stop
            if row < len(lengths):
                self._check_cuttable(first_row + row)
                cuts.append(row)
                size, count = self._overhead, 0
        self._size, self._count = size, count
        return cuts

    def close(self) -> None:
        """Start a new shard with the next sample."""
        self._size, self._count = self._overhead, 0

    def _check_cuttable(self, row: int) -> None:
        if self._limit is None:
            raise SchemaError(
                f"with sample {row}, one shard for everything would exceed {MAX_FILE_BYTES} bytes, which 32 bit "
                'offsets cannot address; give a `size_limit` such as "64mb".',
                row=row,
            )
