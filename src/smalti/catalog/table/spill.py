"""`SpillFile`: bytes of many small tables in one temporary file, so that only the accessed parts are in memory.

Each mapping of a file keeps a file descriptor, of which a process often has 1,024. Tables are therefore mapped
together, in pieces of `PIECE_BYTES`.
"""

import mmap
import os
import tempfile
from collections.abc import Callable
from functools import partial
from threading import Lock

PIECE_BYTES = 64 << 20
"""Bytes that are mapped together, unless one table is larger; the file is sparse."""


class SpillFile:
    """A temporary file without a name. Use it in one process, within one call: a forked process must not add to it.

    What was added stays accessible after the file is closed, as long as it is referenced.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="smalti-table-", buffering=0)  # noqa: SIM115 -- closed by `close`
        self._piece: mmap.mmap | None = None
        self._begin = self._end = 0  # of the last piece, in the file
        self._place = 0  # in the file, of what is added next
        self._lock = Lock()

    def add(self, data: bytes) -> tuple[memoryview, Callable[[], None]]:
        """Write bytes; return a view of them, and a function that releases its memory. Thread-safe.

        Raises:
            OSError: there is no room, or the file cannot be mapped.
        """
        with self._lock:
            if self._piece is None or self._place + len(data) > self._end:
                self._add_piece(len(data))
            piece, place = self._piece, self._place
            assert piece is not None  # noqa: S101 -- set above
            left = memoryview(data)
            while left:
                left = left[os.pwrite(self._file.fileno(), left, place + len(data) - len(left)) :]
            begin = place - self._begin
            self._place = place + _rounded(len(data), mmap.PAGESIZE)
        return memoryview(piece)[begin : begin + len(data)], partial(_release, piece, begin, len(data))

    def close(self) -> None:
        """Close the file; views stay usable."""
        self._file.close()

    def _add_piece(self, least: int) -> None:
        begin, length = self._end, _rounded(max(least, PIECE_BYTES), mmap.ALLOCATIONGRANULARITY)
        os.ftruncate(self._file.fileno(), begin + length)
        self._piece = mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=begin)
        self._begin, self._place, self._end = begin, begin, begin + length


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _release(piece: mmap.mmap, begin: int, length: int) -> None:
    if hasattr(piece, "madvise") and hasattr(mmap, "MADV_DONTNEED") and length:
        piece.madvise(mmap.MADV_DONTNEED, begin, length)
