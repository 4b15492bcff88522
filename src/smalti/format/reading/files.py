"""Local files of shards: compared with their entries in the index, and mapped into memory.

Several mapped files are one array of bytes, so that one numpy call gathers from all of them. Fetches nothing.
"""

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from io import FileIO
from operator import attrgetter
from pathlib import Path

import numpy as np

from smalti.errors import ChecksumMismatch
from smalti.format.encodings.encoding import Bytes1d, Int64s
from smalti.format.hashing import Hasher, compare_digests, new_hash
from smalti.format.index import FileInfo
from smalti.regular_files import open_regular

_CHUNK_BYTES = 1 << 18  # one buffer stays in a core's cache: 14 GB/s, against 4 GB/s with fresh ones of a megabyte
_PIECE_BYTES = 16 << 20  # mapped at once while a file is hashed; bounds the memory that counts for the process
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, for which the module mmap has no name
_MIN_BYTES = 8  # number of samples and one offset: the smallest shard
_ADDRESS, _SIZE = attrgetter("address"), attrgetter("size")


def check_size(found: int, expected: int, *, what: str) -> None:
    """Return only if a file has the expected number of bytes.

    Raises:
        ChecksumMismatch: It has another; `expected`, `found` and `hash` ("size") are attributes.
    """
    if found != expected:
        raise ChecksumMismatch(
            f"{what}: expected {expected} bytes, found {found}; it is incomplete, was changed, or belongs to another "
            "index. Fetch it again, or run the writer again.",
            expected=expected,
            found=found,
            hash="size",
        )


def verify_file(path: Path, info: FileInfo, *, what: str, by_map: bool = False) -> None:
    """Return only if the file has the size and every checksum that `info` declares.

    Without declared hashes, the size alone is compared. With `by_map`, for files that are mapped and read afterwards,
    they are hashed through a map where the system supports that: other threads compute meanwhile, and no bytes are
    copied. A file that another process truncates within these milliseconds ends this process by SIGBUS.

    Raises:
        ChecksumMismatch: Size or a checksum differs; `expected`, `found` and `hash` are attributes.
        OSError: The file cannot be read.
    """
    hashers = {name: new_hash(name) for name in info.hashes}
    with open_regular(path, buffering=0) as file:
        num_bytes = file.seek(0, 2)
        if num_bytes == info.num_bytes and hashers:
            done = _feed_mapped(file, num_bytes, list(hashers.values())) if by_map else 0
            file.seek(done)
            num_bytes = done + _feed(file, list(hashers.values()))
    check_size(num_bytes, info.num_bytes, what=what)
    compare_digests({name: hasher.hexdigest() for name, hasher in hashers.items()}, info.hashes, what=what)


def _feed(file: FileIO, hashers: list[Hasher]) -> int:
    total, chunk = 0, memoryview(bytearray(_CHUNK_BYTES))
    while count := file.readinto(chunk):
        total += count
        for hasher in hashers:
            hasher.update(chunk[:count])
    return total


def _feed_mapped(file: FileIO, num_bytes: int, hashers: list[Hasher]) -> int:
    """Hash the whole pieces of a file through maps; return the number of bytes hashed, from which `_feed` continues.

    A reading thread takes Python's lock twice for each chunk, and waits for it up to 5 ms each time while another
    thread computes. Here the lock is released for a whole piece.
    """
    done = 0
    while num_bytes - done >= _CHUNK_BYTES:
        size = min(_PIECE_BYTES, num_bytes - done)
        try:
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ, offset=done)
        except (OSError, ValueError):  # without maps, without descriptors, or cut short: reading works, or says so
            return done
        with data, memoryview(data) as view:
            if not _load_pages(view):
                return done
            for hasher in hashers:
                hasher.update(view)
        done += size
    return done


def _load_pages(view: memoryview) -> bool:
    """Load the pages of a map without Python's lock; return False where the system cannot, or cannot read them.

    Touching a page that cannot be read would end the process. This call reports it instead.
    """
    madvise = _madvise()
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return madvise is not None and madvise(address, len(view), _POPULATE_READ) == 0


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return the system's `madvise`, called without Python's lock; `mmap.madvise` keeps it."""
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    madvise.restype = ctypes.c_int
    return madvise


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
        with open_regular(path) as file:
            found = file.seek(0, 2)
            check_size(found, num_bytes, what=str(path))
            check_size(found, max(found, _MIN_BYTES), what=str(path))
            return cls(mmap.mmap(file.fileno(), found, access=mmap.ACCESS_READ), name)

    def load_pages(self) -> None:
        """Load all pages now, without Python's lock; where the system cannot, they are loaded as they are read."""
        _load_pages(memoryview(self.map))


class MappedRows:
    """The mapped files that a batch is read from, and the file that each row of the batch lies in.

    With several files, `data` begins at the lowest of their addresses and reaches over all of them, including whatever
    lies between them in this process's memory. So every byte that is read must lie in [base, limit) of its row; the
    caller checks that, in 64 bit, before it reads.
    """

    __slots__ = ("base", "data", "files", "limit", "which")

    def __init__(self, files: Sequence[MappedFile], which: Int64s) -> None:
        """Keep the files mapped while this lives.

        `which` is each row's place in `files`, of which there is at least one: int64, shape (n,).
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
