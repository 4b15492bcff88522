"""Encodings of numbers: single ones in a fixed number of bytes, and arrays (`ndarray`); casts that lose nothing.

The element type and the shape of an array stand each in the column's name, or in front of every value:

    ndarray                  [dtype code 1 byte] [shape header] [values]
    ndarray:DTYPE                                [shape header] [values]
    ndarray:DTYPE:d0,d1,...                                     [values]      fixed size

Shape header: one byte `ndim << 2 | k`, then ndim sizes of 1 << k bytes each, k the smallest that holds the largest
size.
"""

import struct
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Array, Bytes1d, Encoding, Int64s, kind_of
from smalti.format.sizes import MAX_FILE_BYTES

SCALAR_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
STRUCT_CODES = dict(zip(SCALAR_NAMES, "bhiqBHIQefd", strict=True))
DTYPE_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
MAX_DIMS = 63


def little_endian(dtype: Any) -> "np.dtype[Any]":
    """Return the dtype with its bytes in the order that MDS stores."""
    found: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return found


def cast_exact(values: Array, dtype: Any) -> Array:
    """Return the same numbers as `dtype`: casting back gives equal values, with NaN and the sign of zero kept.

    `values` are booleans, integers or floats of any shape and byte order, `dtype` is an integer or float type.

    Raises:
        SchemaError: Not numbers, or a number that `dtype` cannot hold exactly; `row` is the first such index along the
            first axis.
    """
    target = little_endian(dtype)
    if values.dtype == target:
        return values
    if values.dtype.kind not in "biuf":
        raise SchemaError(f"expected numbers for {target.name}, found {values.dtype.name}.", row=0)
    with np.errstate(all="ignore"):
        out = values.astype(target)
        if values.dtype.kind == "b":
            return out
        if values.dtype.kind == "f" and target.kind == "f":
            good = np.asarray((out.astype(values.dtype) == values) | np.isnan(values))
        elif values.dtype.kind == "f":
            good = _equal_as_integers(values, out) & ~((values == 0) & np.signbit(values))
        elif target.kind == "f":
            good = _equal_as_integers(out, values)
        else:
            # A number that wrapped around casts back unchanged, but its sign differs in between.
            good = np.asarray((out.astype(values.dtype) == values) & ((out < 0) == (values < 0)))
    if not good.all():
        row = int(np.argmin(good.reshape(len(good), -1).all(axis=1))) if good.ndim else 0
        raise SchemaError(
            f"a value of type {values.dtype.name} cannot be stored as {target.name} without loss; change the column's "
            "encoding, or cast explicitly before writing.",
            row=row,
        )
    return out


def _equal_as_integers(floats: Array, integers: Array) -> Array:
    """Compare floats with integers exactly; a float outside the integer type's range is not equal."""
    limits = np.iinfo(integers.dtype)
    # The bounds are powers of two, exact in float64; casting a float beyond them is undefined and differs by machine.
    wide = floats.astype(np.float64) if floats.dtype.itemsize < 8 else floats
    inside = np.isfinite(wide) & (wide >= float(limits.min)) & (wide < float(limits.max + 1))
    whole = np.where(inside, wide, 0).astype(integers.dtype)
    return np.asarray(inside & (whole == integers) & (whole.astype(wide.dtype) == wide))


class Scalar(Encoding):
    """A number of one numpy type, little-endian; decodes to a numpy scalar."""

    def __init__(self, name: str, dtype: str) -> None:
        self.dtype = little_endian(dtype)
        super().__init__(name, self.dtype.itemsize)
        self._pack = struct.Struct(f"<{STRUCT_CODES[dtype]}").pack if self.dtype.kind in "iu" else None

    def encode(self, value: Any) -> bytes:
        """Return the number in `size` bytes; integers, booleans and floats are accepted if nothing is lost."""
        if self._pack is not None and not isinstance(value, np.bool_):  # numpy 2.2 warns where struct takes it
            try:
                return self._pack(value)
            except (struct.error, TypeError):
                pass  # not an integer, or out of range: the slow path accepts exact floats and explains the rest
        if isinstance(value, int | float | np.generic | np.ndarray):
            number = np.asarray(value)
            if number.ndim == 0 and number.dtype.kind in "biuf":
                return cast_exact(number, self.dtype).tobytes()
        raise SchemaError(f"expected one number that fits {self.dtype.name}, found {kind_of(value)}.")

    def decode(self, data: bytes) -> Any:
        """Return a numpy scalar."""
        return np.frombuffer(data, self.dtype)[0]

    def decode_many(self, data: Bytes1d, offsets: Int64s) -> Array:
        """Return an array of n numbers, for `int` too; a view of `data`."""
        size = self.dtype.itemsize
        wrong = np.diff(offsets) != size
        if wrong.any():
            raise FormatError(f"{self.dtype.name} takes {size} bytes.", row=int(wrong.argmax()))
        return data.view(self.dtype)


class Int(Scalar):
    """int64, decoding to a Python int."""

    def __init__(self) -> None:
        super().__init__("int", "int64")

    def decode(self, data: bytes) -> int:
        """Return a Python int."""
        return int.from_bytes(data, "little", signed=True)


DTYPES = {code: little_endian(name) for name, code in DTYPE_CODES.items()}


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


Heads: TypeAlias = tuple["np.dtype[Any]", Int64s, list[tuple[int, ...]]]
"""Headers of many values: their one element type, the bytes of each header, int64, shape (n,), and their shapes."""


def parse_heads(data: Bytes1d, offsets: Int64s, dtype: "np.dtype[Any] | None") -> Heads | None:
    """Parse the headers of all values; None if one is damaged, or if element types differ.

    There is at least one value. `dtype` is None if a code in front of each shape declares the element type.
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
        width = 1 << (int(mark) & 3)
        places = (begin[rows] + num_code_bytes + 1)[:, None] + np.arange((int(mark) >> 2) * width)
        sizes = data[places].view(f"<u{width}")  # of the axes of each row
        with np.errstate(over="ignore"):
            # Exact below 2^53; no payload is larger than that.
            num_bytes = sizes.astype(np.float64).prod(axis=1) * dtype.itemsize
            span = np.maximum(sizes, 1).astype(np.float64).prod(axis=1)
        if (num_bytes != payload[rows]).any() or (span > MAX_FILE_BYTES).any():
            return None
        for row, shape in zip(rows.tolist(), sizes.tolist(), strict=True):
            shapes[row] = tuple(shape)
    return dtype, lengths, shapes


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
            try:
                self.decode(value)
            except FormatError as error:
                raise SchemaError(f"expected a numpy array, found bytes that are not one: {error}") from error
            return value
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
        if self.shape is not None and array.shape != self.shape:
            raise SchemaError(f"expected an array of shape {self.shape}, found {array.shape}.")
        if not self.accepts_shape(array.shape):
            raise SchemaError(f"expected 1 to {MAX_DIMS} axes and less than 4 GiB, found shape {array.shape}.")
        head = b"" if self.dtype is not None else bytes([DTYPE_CODES[array.dtype.name]])
        if self.shape is None:
            head += shape_header(array.shape)
        return head + array.astype(little_endian(array.dtype), copy=False).tobytes()

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape is written."""
        return is_possible(shape)

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
        if heads is None:
            return super().decode_many(data, offsets)
        dtype, lengths, shapes = heads
        ends = offsets[1:] - np.cumsum(lengths)  # of the values without their headers, in one block of memory
        moved = np.empty(int(ends[-1]), np.uint8)
        source, target, begin = memoryview(data), memoryview(moved), 0
        # A copy per value: as fast as a mask for short values, and many times faster for long ones.
        value_begins, value_ends = (offsets[:-1] + lengths).tolist(), offsets[1:].tolist()
        for first, last, end in zip(value_begins, value_ends, ends.tolist(), strict=True):
            target[begin:end] = source[first:last]
            begin = end
        numbers, places = moved.view(dtype), pairwise([0, *(ends // dtype.itemsize).tolist()])
        return [numbers[begin:end].reshape(shape) for (begin, end), shape in zip(places, shapes, strict=True)]

    def decode_block(self, data: Bytes1d, offsets: Int64s) -> Array | None:
        """Return all values as one fresh array of shape (n, *shape); None if their headers are not all equal."""
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
        dtype, lengths, shapes = first
        rows, begin = data.reshape(count, width), int(lengths[0])
        if (rows[:, :begin] != rows[0, :begin]).any():
            return None
        return rows[:, begin:].copy().view(dtype).reshape(count, *shapes[0])


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
