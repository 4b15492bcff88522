"""What stands in front of an array's values: its element type and its shape, one at a time or many at once. Pure."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from smalti.errors import FormatError
from smalti.format.encoding import Bytes1d, Offsets1d
from smalti.format.exact import little_endian
from smalti.format.sizes import MAX_FILE_BYTES

DTYPE_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
DTYPES = {code: little_endian(name) for name, code in DTYPE_CODES.items()}
MAX_DIMS = 63


def is_possible(shape: tuple[int, ...]) -> bool:
    """Whether an array of a shard can have the shape; an axis may be empty, and the others are bounded all the same."""
    return 1 <= len(shape) <= MAX_DIMS and prod(max(size, 1) for size in shape) <= MAX_FILE_BYTES


def shape_header(shape: tuple[int, ...]) -> bytes:
    """The bytes in front of the values that say the shape."""
    width = 0
    while max(shape) >> (8 << width):
        width += 1
    return bytes([len(shape) << 2 | width]) + b"".join(size.to_bytes(1 << width, "little") for size in shape)


def parse_shape(data: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    """The shape whose header starts at byte `begin`, and where the header ends.

    Raises:
        FormatError: The header is cut off, or the shape is none that is ever written.
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
    lengths: Offsets1d
    """Bytes of each header, int64, shape (n,)."""
    shapes: list[tuple[int, ...]]


def parse_heads(data: Bytes1d, offsets: Offsets1d, dtype: "np.dtype[Any] | None") -> Heads | None:
    """The headers of all values; None where one is damaged, or where element types differ.

    Args:
        data: As for `Encoding.decode_many`.
        offsets: As there; at least one value.
        dtype: The element type; None where a code in front of each shape says it.
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


def _sizes(data: Bytes1d, begin: Offsets1d, mark: int) -> "np.ndarray[Any, Any]":
    """The sizes that start at these bytes, unsigned, shape (rows, axes)."""
    width = 1 << (mark & 3)
    places = begin[:, None] + np.arange((mark >> 2) * width)
    sizes: np.ndarray[Any, Any] = data[places].view(f"<u{width}")
    return sizes
