"""Local files of shards: compared with their entries in the index, mapped into memory, and read without a loop.

Several mapped files are one array of bytes, so that one numpy call gathers from all of them. `locate` finds where each
value lies and checks it against the ends of its sample and of its file; `gather`, `collect` and `copies` then copy the
bytes. `Ragged` holds the values of one column of varying length, `StoredSamples` whole samples, to be copied into
another shard or hashed. Fetches and decodes nothing.
"""

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from smalti.errors import ArgumentError, ChecksumMismatch, FormatError, SampleIndexError
from smalti.format.encodings.encoding import Array, Bytes1d, Int64s, split
from smalti.format.hashing import Hasher, compare_digests, hash_rows, new_hash
from smalti.format.index import FileInfo
from smalti.format.layout import OFFSET
from smalti.regular_files import open_regular

_CHUNK_BYTES = 1 << 18  # one buffer stays in a core's cache: 14 GB/s, against 4 GB/s with fresh ones of a megabyte
_PIECE_BYTES = 16 << 20  # mapped at once while a file is hashed; bounds the memory that counts for the process
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, for which the module mmap has no name
_MIN_BYTES = 8  # number of samples and one offset: the smallest shard
_ADDRESS, _SIZE = attrgetter("address"), attrgetter("size")
_STEP_BYTES = 1 << 17
"""Size of the buffer through which values are copied into a caller's array; it stays in the core's cache."""
_LARGE_BYTES = 1 << 20
"""Value size from which values are copied one by one: the cost of the loop is negligible."""
_UNLOCKED_ITEMS = 500
"""Number of items from which numpy releases the interpreter lock while it picks."""
_LONG_BYTES = 1 << 10
"""Value size from which values are sliced one by one; numpy, used below, copies them twice."""
_MAX_VIEW_BYTES = 1 << 62
"""numpy counts the bytes of an array in 63 bits, counting overlapping bytes each time."""


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
            num_bytes, chunk = file.seek(done), memoryview(bytearray(_CHUNK_BYTES))
            while count := file.readinto(chunk):
                num_bytes += count
                for hasher in hashers.values():
                    hasher.update(chunk[:count])
    check_size(num_bytes, info.num_bytes, what=what)
    compare_digests({name: hasher.hexdigest() for name, hasher in hashers.items()}, info.hashes, what=what)


def _feed_mapped(file: FileIO, num_bytes: int, hashers: list[Hasher]) -> int:
    """Hash the whole pieces of a file through maps; return the number of bytes hashed.

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
    """The samples of a batch: the mapped files that it is read from, and where each row of the batch lies in them.

    With several files, `data` begins at the lowest of their addresses and reaches over all of them, including whatever
    lies between them in this process's memory. So every byte that is read must lie in [base, limit) of its row; the
    caller checks that, in 64 bit, before it reads.
    """

    __slots__ = ("base", "data", "files", "limit", "rows", "which")

    def __init__(self, files: Sequence[MappedFile], which: Int64s, rows: Int64s) -> None:
        """Keep the files mapped while this lives.

        Args:
            files: At least one, of shards of one schema.
            which: Each row's place in `files`, int64, shape (n,).
            rows: Each row's sample in its shard, int64, shape (n,), each in [0, N).
        """
        self.files = files
        self.which = which
        self.rows = rows
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

    def where(self, row: int) -> str:
        """Return shard and sample of a row, for messages."""
        return f"{self.files[int(self.which[row])].name}, sample {int(self.rows[row])}"

    def maps(self) -> list[mmap.mmap]:
        """Return the map that each row lies in."""
        maps = [file.map for file in self.files]
        return maps * len(self.which) if len(maps) == 1 else [maps[place] for place in self.which.tolist()]


class _AddressRange:
    """A read-only range of addresses for numpy; the array made from it keeps the files mapped."""

    def __init__(self, address: int, num_bytes: int, files: Sequence[MappedFile]) -> None:
        self.files = files
        self.__array_interface__ = {"data": (address, True), "shape": (num_bytes,), "typestr": "|u1", "version": 3}


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
            raise ArgumentError(f"expected consecutive samples, found a step of {step}")
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


@dataclass(frozen=True, eq=False)
class Ragged:
    """The bytes of n values end to end in one buffer: value i is `data[offsets[i]:offsets[i + 1]]`."""

    data: Bytes1d
    """uint8, shape (total,); owned and writable."""
    offsets: Int64s
    """int64, shape (n + 1,): from 0, never falling, to `total`."""

    @classmethod
    def from_values(cls, values: Sequence[bytes]) -> "Ragged":
        """Copy the values into one buffer."""
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum([len(value) for value in values], out=offsets[1:])
        return cls(np.frombuffer(bytearray().join(values), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> memoryview:
        """Return the bytes of value `index`, without a copy; negative numbers count from the end.

        Raises:
            IndexError: No such value.
        """
        if not -len(self) <= index < len(self):
            raise SampleIndexError(f"value {index} of {len(self)}")
        place = index % len(self)
        return memoryview(self.data)[self.offsets[place] : self.offsets[place + 1]]

    def tolist(self) -> list[bytes]:
        """Return a copy of each value."""
        return split(self.data, self.offsets)


Cells: TypeAlias = "tuple[Int64s, int | Int64s]"
"""Places of the values of one column in `MappedRows.data`, all inside their samples: the first byte of each value,
int64, shape (n,), and the bytes of every value, or of each, int64, shape (n,)."""


def locate(source: MappedRows, sizes: Sequence[int | None]) -> list[Cells]:
    """Find the places of every column's values for these samples, and check them.

    Args:
        source: The samples.
        sizes: Column sizes; None for columns whose lengths stand in front of the sample.

    Raises:
        FormatError: A sample reaches beyond its file, or is shorter than its columns need; padding after the last
            column is allowed.
    """
    table = gather(source.data, source.base + 4 + 4 * source.rows, 8).view(OFFSET).reshape(-1, 2).astype(np.int64)
    place, end = table[:, 0] + source.base, table[:, 1] + source.base
    num_lengths = sizes.count(None)
    if num_lengths:
        first = place
        place = first + 4 * num_lengths
        _check_inside(place, end, source)
        lengths = gather(source.data, first, 4 * num_lengths).view(OFFSET).reshape(-1, num_lengths).astype(np.int64)
    cells: list[Cells] = []
    shift = variable = 0
    for size in sizes:
        begin = place + shift if shift else place
        if size is None:
            cells.append((begin, lengths[:, variable]))
            place, shift, variable = begin + lengths[:, variable], 0, variable + 1
        else:
            cells.append((begin, size))
            shift += size
    _check_inside(place + shift, end, source)
    return cells


def _check_inside(place: Int64s, end: Int64s, source: MappedRows) -> None:
    # Compared on every read: the table of offsets was checked when the file was mapped, but another process may have
    # written into the file since.
    bad = (place > end) | (end > source.limit)
    if bad.any():
        at = int(np.argmax(bad))
        raise FormatError(
            f"{source.where(at)}: its columns need more bytes than it has; the shard is damaged. Fetch it again, or "
            "run the writer again.",
            sample=int(source.rows[at]),
        )


def gather(data: Bytes1d, begin: Int64s, size: int) -> Bytes1d:
    """Copy the values of `size` bytes that start at these places, end to end, into an array of shape (n * size,).

    Every place must have been checked: `begin + size <= len(data)`.
    """
    if not len(begin) or not size:
        return np.empty(0, np.uint8)
    if size >= _LARGE_BYTES or size * len(data) >= _MAX_VIEW_BYTES:
        values = np.empty((len(begin), size), np.uint8)  # numpy has no element type of 2 GiB
        for row, at in zip(values, begin.tolist(), strict=True):
            row[...] = data[at : at + size]
        return values.reshape(-1)
    pieces = 1  # of each item: only from 500 items on does numpy release the lock
    if len(begin) * size >= _STEP_BYTES:
        while len(begin) * pieces < _UNLOCKED_ITEMS and size % (2 * pieces) == 0:
            pieces *= 2
    if pieces > 1:
        begin = (begin[:, None] + np.arange(0, size, size // pieces)).reshape(-1)
    # A view with one item at every byte, overlapping: indexing it copies exactly the selected bytes.
    item = np.dtype((np.void, size // pieces))
    picked: Bytes1d = np.ndarray((len(data) - item.itemsize + 1,), item, data, strides=(1,))[begin].view(np.uint8)
    return picked


def gather_into(data: Bytes1d, begin: Int64s, out: Array, dtype: "np.dtype[Any]") -> None:
    """Fill `out`, shape (n, ...), with the values of elements `dtype` that start at these bytes, checked as above."""
    size = dtype.itemsize * (out[:1].size if len(out) else 0)
    step = max(1, _STEP_BYTES // max(size, 1))
    for first in range(0, len(out) if size else 0, step):
        part = out[first : first + step]
        part[...] = gather(data, begin[first : first + step], size).view(dtype).reshape(part.shape)


def collect(source: MappedRows, cells: Cells) -> Ragged:
    """Copy the bytes of these values end to end."""
    begin, size = cells
    if same := _same_size(cells):
        return Ragged(gather(source.data, begin, same), np.arange(len(begin) + 1, dtype=np.int64) * same)
    offsets = np.zeros(len(begin) + 1, np.int64)
    np.cumsum(np.broadcast_to(size, len(begin)), out=offsets[1:])
    view = memoryview(source.data)
    pairs = zip(begin.tolist(), (begin + size).tolist(), strict=True)
    return Ragged(np.frombuffer(bytearray().join([view[first:end] for first, end in pairs]), np.uint8), offsets)


def copies(source: MappedRows, cells: Cells) -> list[bytes]:
    """Return the bytes of each value."""
    begin, size = cells
    same = _same_size(cells)
    if same and same < _LONG_BYTES:
        values: list[bytes] = gather(source.data, begin, same).view(f"V{same}").tolist()
        return values
    begin = begin - source.base
    triples = zip(source.maps(), begin.tolist(), (begin + size).tolist(), strict=True)
    return [data[first:end] for data, first, end in triples]


def _same_size(cells: Cells) -> int:
    """Return the size that all of these values have; 0 if they differ, or are empty."""
    begin, size = cells
    if isinstance(size, int):
        return size if len(begin) else 0
    return int(size[0]) if len(size) and (size == size[0]).all() else 0
