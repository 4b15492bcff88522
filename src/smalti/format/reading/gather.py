"""Values and samples as stored, out of mapped shards, without a loop over samples; decodes nothing.

`locate` finds where each value lies and checks it against the ends of its sample and of its file; `gather`, `collect`
and `copies` then copy the bytes. `Ragged` holds the values of one column of varying length, `StoredSamples` whole
samples, to be copied into another shard or hashed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import ArgumentError, FormatError, SampleIndexError
from smalti.format.encodings.encoding import Array, Bytes1d, Int64s, split
from smalti.format.hashing import hash_rows
from smalti.format.layout import OFFSET
from smalti.format.reading.files import MappedRows

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


@dataclass(frozen=True)
class Cells:
    """Places of the values of one column in `MappedRows.data`, all inside their samples."""

    begin: Int64s
    """First byte of each value, int64, shape (n,)."""
    size: "int | Int64s"
    """Bytes of every value, or of each, int64, shape (n,)."""

    @property
    def end(self) -> Int64s:
        """End of each value, exclusive; int64, shape (n,)."""
        return self.begin + self.size


def locate(source: MappedRows, rows: Int64s, sizes: Sequence[int | None]) -> list[Cells]:
    """Find the places of every column's values for these samples, and check them.

    Args:
        source: The shards.
        rows: Each row's sample in its shard, int64, shape (n,), each in [0, N).
        sizes: Column sizes; None for columns whose lengths stand in front of the sample.

    Raises:
        FormatError: A sample reaches beyond its file, or is shorter than its columns need; padding after the last
            column is allowed.
    """
    table = gather(source.data, source.base + 4 + 4 * rows, 8).view(OFFSET).reshape(-1, 2).astype(np.int64)
    place, end = table[:, 0] + source.base, table[:, 1] + source.base
    num_lengths = sizes.count(None)
    if num_lengths:
        first = place
        place = first + 4 * num_lengths
        _check_inside(place, end, source, rows)
        lengths = gather(source.data, first, 4 * num_lengths).view(OFFSET).reshape(-1, num_lengths).astype(np.int64)
    cells, shift, variable = [], 0, 0
    for size in sizes:
        begin = place + shift if shift else place
        if size is None:
            cells.append(Cells(begin, lengths[:, variable]))
            place, shift, variable = begin + lengths[:, variable], 0, variable + 1
        else:
            cells.append(Cells(begin, size))
            shift += size
    _check_inside(place + shift, end, source, rows)
    return cells


def _check_inside(place: Int64s, end: Int64s, source: MappedRows, rows: Int64s) -> None:
    # Compared on every read: the table of offsets was checked when the file was mapped, but another process may have
    # written into the file since.
    bad = (place > end) | (end > source.limit)
    if bad.any():
        at = int(np.argmax(bad))
        raise FormatError(
            f"{source.files[int(source.which[at])].name}, sample {int(rows[at])}: its columns need more bytes than it "
            "has; the shard is damaged. Fetch it again, or run the writer again.",
            sample=int(rows[at]),
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
    same = _same_size(cells)
    if same:
        offsets = np.arange(len(cells.begin) + 1, dtype=np.int64) * same
        return Ragged(gather(source.data, cells.begin, same), offsets)
    offsets = np.zeros(len(cells.begin) + 1, np.int64)
    np.cumsum(np.broadcast_to(cells.size, len(cells.begin)), out=offsets[1:])
    view = memoryview(source.data)
    pairs = zip(cells.begin.tolist(), cells.end.tolist(), strict=True)
    return Ragged(np.frombuffer(bytearray().join([view[begin:end] for begin, end in pairs]), np.uint8), offsets)


def copies(source: MappedRows, cells: Cells) -> list[bytes]:
    """Return the bytes of each value."""
    same = _same_size(cells)
    if same and same < _LONG_BYTES:
        values: list[bytes] = gather(source.data, cells.begin, same).view(f"V{same}").tolist()
        return values
    begin = cells.begin - source.base
    triples = zip(source.maps(), begin.tolist(), (begin + cells.size).tolist(), strict=True)
    return [data[first:end] for data, first, end in triples]


def _same_size(cells: Cells) -> int:
    """Return the size that all of these values have; 0 if they differ, or are empty."""
    if isinstance(cells.size, int):
        return cells.size if len(cells.begin) else 0
    first = cells.size[:1]
    return int(first[0]) if first.size and (cells.size == first).all() else 0
