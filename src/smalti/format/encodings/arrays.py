"""The `ndarray` encodings: element type and shape each in the column's name, or in front of every value.

    ndarray                  [dtype code 1 byte] [shape header] [values]
    ndarray:DTYPE                                [shape header] [values]
    ndarray:DTYPE:d0,d1,...                                     [values]      fixed size

Shape header: one byte `ndim << 2 | k`, then ndim sizes of 1 << k bytes each, k the smallest that holds the largest
size.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.casting import cast_exact, little_endian
from smalti.format.encodings.encoding import Array, Bytes1d, Encoding, Int64s, kind_of
from smalti.format.sizes import MAX_FILE_BYTES

DTYPE_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
DTYPES = {code: little_endian(name) for name, code in DTYPE_CODES.items()}
MAX_DIMS = 63


def is_possible(shape: tuple[int, ...]) -> bool:
    """Return whether an array in a shard can have the shape; empty axes are allowed, the others are still bounded."""
    return 1 <= len(shape) <= MAX_DIMS and prod(max(size, 1) for size in shape) <= MAX_FILE_BYTES


def shape_header(shape: tuple[int, ...]) -> bytes:
    """Return the bytes in front of the values that hold the shape."""
    width = 0
    while max(shape) >> (8 << width):
        width += 1
    return bytes([len(shape) << 2 | width]) + b"".join(size.to_bytes(1 << width, "little") for size in shape)


def parse_shape(data: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """Parse the shape header that starts at byte `begin`; return the shape and where the header ends.

    Raises:
        FormatError: The header is cut off, or no writer produces such a shape.
    """
    if len(data) <= begin:
        raise FormatError("the shape of an array is missing.")
    num_dims, width = data[begin] >> 2, 1 << (data[begin] & 3)
    end = begin + 1 + num_dims * width
    if len(data) < end:
        raise FormatError(f"the shape of an array should take {num_dims} x {width} bytes, and the value ends before.")
    shape = tuple(int.from_bytes(data[at : at + width], "little") for at in range(begin + 1, end, width))
    if not is_possible(shape):
        raise FormatError(f"an array of shape {shape} cannot occur.")
    return shape, end


@dataclass(frozen=True)
class Heads:
    """The headers of many values of one element type."""

    dtype: "np.dtype[Any]"
    lengths: Int64s
    """Bytes of each header, int64, shape (n,)."""
    shapes: list[tuple[int, ...]]


def parse_heads(data: Bytes1d, offsets: Int64s, dtype: "np.dtype[Any] | None") -> Heads | None:
    """Parse the headers of all values; None if one is damaged, or if element types differ.

    Args:
        data: As for `Encoding.decode_many`.
        offsets: As there; at least one value.
        dtype: The element type; None if a code in front of each shape declares it.
    """
    begin, end = offsets[:-1], offsets[1:]
    num_code_bytes = 1 if dtype is None else 0
    if (end - begin <= num_code_bytes).any():
        return None
    if dtype is None:
        codes = data[begin]
        dtype = DTYPES.get(int(codes[0]))
        if dtype is None or (codes != codes[0]).any():
            return None
    marks = data[begin + num_code_bytes]
    lengths = num_code_bytes + 1 + ((marks >> 2).astype(np.int64) << (marks & 3))
    payload = end - begin - lengths
    shapes: list[tuple[int, ...]] = [()] * len(begin)
    for mark in np.unique(marks):
        rows = np.flatnonzero(marks == mark)
        if not mark >> 2 or (payload[rows] < 0).any():
            return None
        sizes = _sizes(data, begin[rows] + num_code_bytes + 1, int(mark))
        with np.errstate(over="ignore"):
            # Exact below 2^53; no payload is larger than that.
            num_bytes = sizes.astype(np.float64).prod(axis=1) * dtype.itemsize
            span = np.maximum(sizes, 1).astype(np.float64).prod(axis=1)
        if (num_bytes != payload[rows]).any() or (span > MAX_FILE_BYTES).any():
            return None
        for row, shape in zip(rows.tolist(), sizes.tolist(), strict=True):
            shapes[row] = tuple(shape)
    return Heads(dtype, lengths, shapes)


def _sizes(data: Bytes1d, begin: Int64s, mark: int) -> "np.ndarray[Any, Any]":
    """Return the sizes that start at these bytes, unsigned, shape (rows, axes)."""
    width = 1 << (mark & 3)
    places = begin[:, None] + np.arange((mark >> 2) * width)
    sizes: np.ndarray[Any, Any] = data[places].view(f"<u{width}")
    return sizes


class NdArray(Encoding):
    """Arrays of numbers; decodes to a fresh, writable, C-ordered array."""

    def __init__(self, name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        self.dtype = little_endian(dtype) if dtype else None
        self.shape = shape
        super().__init__(name, prod(shape) * self.dtype.itemsize if self.dtype and shape else None)

    def encode(self, value: Any) -> bytes:
        """Encode an array in C order, little-endian; a list is accepted if the column's name has the element type.

        Stored bytes are accepted if their header shows that they are such a value; without a header, they are refused.
        """
        if isinstance(value, bytes) and self.shape is None:
            return self._checked(value)
        array = self._as_array(value)
        head = b""
        if self.dtype is None:
            head = bytes([DTYPE_CODES[array.dtype.name]])
        if self.shape is None:
            head += shape_header(array.shape)
        return head + array.astype(little_endian(array.dtype), copy=False).tobytes()

    def _checked(self, data: bytes) -> bytes:
        try:
            self.decode(data)
        except FormatError as error:
            raise SchemaError(f"expected a numpy array, found bytes that are not one: {error}") from error
        return data

    def _as_array(self, value: Any) -> Array:
        if isinstance(value, list | tuple) and self.dtype is not None:
            array = cast_exact(_from_list(value), self.dtype)
        elif isinstance(value, np.ndarray):
            array = value
        else:
            raise SchemaError(f"expected a numpy array, found {kind_of(value)}.")
        if array.dtype.name not in DTYPE_CODES:
            raise SchemaError(f"arrays of {array.dtype.name} cannot be stored; convert to one of {[*DTYPE_CODES]}.")
        if self.dtype is not None and array.dtype.name != self.dtype.name:
            raise SchemaError(f"expected an array of {self.dtype.name}, found {array.dtype.name}.")
        if np.ma.isMaskedArray(array) and np.ma.is_masked(array):
            raise SchemaError("a masked array with masked elements cannot be stored; fill them first.")
        self._check_shape(array.shape)
        return array

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if self.shape is not None and shape != self.shape:
            raise SchemaError(f"expected an array of shape {self.shape}, found {shape}.")
        if not is_possible(shape):
            raise SchemaError(f"expected 1 to {MAX_DIMS} axes and less than 4 GiB, found shape {shape}.")

    def decode(self, data: bytes) -> Array:
        """Return a fresh array."""
        dtype, begin = self.dtype, 0
        if dtype is None:
            if not data or data[0] not in DTYPES:
                raise FormatError(f"expected the code of an element type, found {data[:1].hex() or 'nothing'}.")
            dtype, begin = DTYPES[data[0]], 1
        shape = self.shape
        if shape is None:
            shape, begin = parse_shape(data, begin)
        expected = prod(shape) * dtype.itemsize
        if len(data) - begin != expected:
            raise FormatError(f"shape {shape} of {dtype.name} takes {expected} bytes, found {len(data) - begin}.")
        array: Array = np.frombuffer(data, dtype, offset=begin).reshape(shape).copy()
        return array

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> Any:
        """Return one array of shape (n, *shape) if the column's name has the shape; else a list of n arrays.

        All are writable. The arrays of a list are aligned views of one block of memory.
        """
        if len(offsets) < 2 and self.shape is None:
            return []
        block = self.decode_block(data, offsets)
        if block is not None:
            return block if self.shape is not None else list(block)
        heads = parse_heads(data, offsets, self.dtype) if self.shape is None else None
        # Different element types, or a damaged value: decode one by one, which also finds the place and the reason.
        return super().decode_many(data, offsets) if heads is None else _views(data, offsets, heads)

    def decode_block(self, data: Bytes1d, offsets: Int64s) -> Array | None:
        """Return all values as one fresh array of shape (n, *shape); None if their headers are not all equal.

        Args:
            data: As for `decode_many`.
            offsets: As there.
        """
        count = len(offsets) - 1
        if self.shape is not None and self.dtype is not None:
            whole = len(data) == count * (self.size or 0) and (np.diff(offsets) == self.size).all()
            return data.view(self.dtype).reshape(count, *self.shape) if whole else None
        width = int(offsets[1]) if count else 0
        if not width or len(data) != count * width or (np.diff(offsets) != width).any():
            return None
        first = parse_heads(data[:width], offsets[:2], self.dtype)
        if first is None:
            return None
        rows, begin = data.reshape(count, width), int(first.lengths[0])
        if (rows[:, :begin] != rows[0, :begin]).any():
            return None
        return rows[:, begin:].copy().view(first.dtype).reshape(count, *first.shapes[0])


def _views(data: Bytes1d, offsets: Int64s, heads: Heads) -> list[Array]:
    """Copy the values, without their headers, into one block of memory, and return aligned views of it."""
    ends = offsets[1:] - np.cumsum(heads.lengths)
    moved = np.empty(int(ends[-1]), np.uint8)
    source, target, begin = memoryview(data), memoryview(moved), 0
    # A copy per value: as fast as a mask for short values, and many times faster for long ones.
    firsts, lasts = (offsets[:-1] + heads.lengths).tolist(), offsets[1:].tolist()
    for first, last, end in zip(firsts, lasts, ends.tolist(), strict=True):
        target[begin:end] = source[first:last]
        begin = end
    numbers = moved.view(heads.dtype)
    places = pairwise([0, *(ends // heads.dtype.itemsize).tolist()])
    return [numbers[begin:end].reshape(shape) for (begin, end), shape in zip(places, heads.shapes, strict=True)]


def _from_list(value: list[Any] | tuple[Any, ...]) -> Array:
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise SchemaError("a nested list of uneven lengths is not an array.") from error
    if array.dtype.kind not in "biuf" and array.size:
        raise SchemaError("expected a list of numbers that fit 64 bits, found something else in it.")
    if array.dtype.kind == "f":
        # numpy turns mixed lists into floats and rounds large integers; Python compares the two exactly.
        originals = np.array(value, dtype=object).ravel().tolist()
        if any(a != b and b == b for a, b in zip(array.ravel().tolist(), originals, strict=True)):  # noqa: PLR0124
            raise SchemaError("a list mixes floats with integers that no float holds exactly.")
    return array
