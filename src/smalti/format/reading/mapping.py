"""Mapped files, and several of them as one array of bytes, so that one numpy call gathers from all of them."""

import mmap
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np

from smalti.format.encodings.encoding import Bytes1d, Int64s
from smalti.format.reading.verification import check_size

_MIN_BYTES = 8  # number of samples and one offset: the smallest shard
_ADDRESS, _SIZE = attrgetter("address"), attrgetter("size")


class MappedFile:
    """A file's bytes in memory, read-only; unmapped when the last reference to this or to `array` is gone.

    The file may be unlinked at any time. It must not be truncated by another process: as with every memory map, the
    process would get SIGBUS.
    """

    __slots__ = ("address", "array", "map", "name", "size")

    def __init__(self, data: mmap.mmap, name: str) -> None:
        """Use `open`."""
        self.map = data
        self.array: Bytes1d = np.frombuffer(data, np.uint8)
        self.address: int = self.array.__array_interface__["data"][0]
        self.size = len(data)
        self.name = name
        """Name for messages."""

    @classmethod
    def open(cls, path: Path, *, num_bytes: int, name: str) -> "MappedFile":
        """Map a file that must have this size, and at least eight bytes.

        Raises:
            ChecksumMismatch: It has another size.
            OSError: It cannot be opened.
        """
        with path.open("rb") as file:
            found = file.seek(0, 2)
            check_size(found, num_bytes, what=str(path))
            check_size(found, max(found, _MIN_BYTES), what=str(path))
            return cls(mmap.mmap(file.fileno(), found, access=mmap.ACCESS_READ), name)

    @classmethod
    def open_first(cls, path: Path, *, num_bytes: int, name: str) -> "MappedFile | None":
        """Map the first `num_bytes` of a file that is being written; None while it is shorter.

        Raises:
            OSError: It cannot be opened.
        """
        with path.open("rb") as file:
            if file.seek(0, 2) < num_bytes:
                return None
            return cls(mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ), name)


class MappedRows:
    """The mapped files that a batch is read from, and the file that each row of the batch lies in.

    With several files, `data` begins at the lowest of their addresses and reaches over all of them, including whatever
    lies between them in this process's memory. So every byte that is read must lie in [base, limit) of its row; the
    caller checks that, in 64 bit, before it reads.
    """

    __slots__ = ("base", "data", "files", "limit", "which")

    def __init__(self, files: Sequence[MappedFile], which: Int64s) -> None:
        """Keep the files mapped while this lives.

        Args:
            files: At least one.
            which: For each row its place in `files`, int64, shape (n,).
        """
        self.files = files
        self.which = which
        self.data: Bytes1d = files[0].array
        self.base: Int64s | int = 0
        """Begin of each row's file in `data`."""
        self.limit: Int64s | int = files[0].size
        """End of each row's file in `data`, exclusive."""
        if len(files) > 1:
            begins = np.fromiter(map(_ADDRESS, files), np.int64, len(files))
            ends = begins + np.fromiter(map(_SIZE, files), np.int64, len(files))
            lowest = int(begins.min())
            self.data = np.asarray(_AddressRange(lowest, int(ends.max()) - lowest, files))
            self.base = (begins - lowest)[which]
            self.limit = (ends - lowest)[which]

    def maps(self) -> list[mmap.mmap]:
        """Return the map that each row lies in."""
        maps = [file.map for file in self.files]
        return maps * len(self.which) if len(maps) == 1 else [maps[place] for place in self.which.tolist()]


class _AddressRange:
    """A read-only range of addresses for numpy; the array made from it keeps the files mapped."""

    def __init__(self, address: int, num_bytes: int, files: Sequence[MappedFile]) -> None:
        self.files = files
        self.__array_interface__ = {"data": (address, True), "shape": (num_bytes,), "typestr": "|u1", "version": 3}
