"""The `ndarray` encodings: element type and shape each in the column's name, or in front of every value.

    ndarray                  [dtype code 1 byte] [shape header] [values]
    ndarray:DTYPE                                [shape header] [values]
    ndarray:DTYPE:d0,d1,...                                     [values]      fixed size

Shape header: one byte `ndim << 2 | k`, then ndim sizes of 1 << k bytes each, k the smallest that holds the largest.
"""

from math import prod
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encoding import Encoding, kind_of
from smalti.format.exact import Array, cast_exact, little_endian

DTYPE_CODES = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
_DTYPES = {code: little_endian(name) for name, code in DTYPE_CODES.items()}
_MAX_DIMS = 63


class NdArray(Encoding):
    """Arrays of numbers; decodes to a fresh, writable, C-ordered array."""

    def __init__(self, name: str, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> None:
        self.dtype = little_endian(dtype) if dtype else None
        self.shape = shape
        super().__init__(name, prod(shape) * self.dtype.itemsize if self.dtype and shape else None)

    def encode(self, value: Any) -> bytes:
        """The array in C order, little-endian; a list is taken where the column's name says the element type."""
        array = self._as_array(value)
        head = b""
        if self.dtype is None:
            head = bytes([DTYPE_CODES[array.dtype.name]])
        if self.shape is None:
            head += shape_header(array.shape)
        return head + array.astype(little_endian(array.dtype), copy=False).tobytes()

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
            raise SchemaError("a masked array with hidden elements cannot be stored; fill them first.")
        self._check_shape(array.shape)
        return array

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        if self.shape is not None and shape != self.shape:
            raise SchemaError(f"expected an array of shape {self.shape}, found {shape}.")
        if not 1 <= len(shape) <= _MAX_DIMS or 0 in shape:
            raise SchemaError(f"expected 1 to {_MAX_DIMS} axes and at least one element, found shape {shape}.")

    def decode(self, data: bytes) -> Array:
        """A fresh array."""
        dtype, begin = self.dtype, 0
        if dtype is None:
            if not data or data[0] not in _DTYPES:
                raise FormatError(f"expected the code of an element type, found {data[:1].hex() or 'nothing'}.")
            dtype, begin = _DTYPES[data[0]], 1
        shape = self.shape
        if shape is None:
            shape, begin = _parse_shape(data, begin)
        expected = prod(shape) * dtype.itemsize
        if len(data) - begin != expected:
            raise FormatError(f"shape {shape} of {dtype.name} takes {expected} bytes, found {len(data) - begin}.")
        array: Array = np.frombuffer(data, dtype, offset=begin).reshape(shape).copy()
        return array


def _from_list(value: list[Any] | tuple[Any, ...]) -> Array:
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise SchemaError("a nested list of uneven lengths is no array.") from error
    if array.dtype.kind not in "biuf" and array.size:
        raise SchemaError("expected a list of numbers that fit 64 bits, found something else in it.")
    if array.dtype.kind == "f":
        # numpy turns mixed lists into floats and rounds large integers; Python compares the two exactly.
        originals = np.array(value, dtype=object).ravel().tolist()
        if any(a != b and b == b for a, b in zip(array.ravel().tolist(), originals, strict=True)):  # noqa: PLR0124
            raise SchemaError("a list mixes floats with integers that no float holds exactly.")
    return array


def shape_header(shape: tuple[int, ...]) -> bytes:
    """The bytes in front of the values that say the shape."""
    width = 0
    while max(shape) >> (8 << width):
        width += 1
    return bytes([len(shape) << 2 | width]) + b"".join(size.to_bytes(1 << width, "little") for size in shape)


def _parse_shape(data: bytes, begin: int) -> tuple[tuple[int, ...], int]:
    if len(data) <= begin:
        raise FormatError("the shape of an array is missing.")
    num_dims, width = data[begin] >> 2, 1 << (data[begin] & 3)
    end = begin + 1 + num_dims * width
    if len(data) < end:
        raise FormatError(f"the shape of an array should take {num_dims} x {width} bytes, and the value ends before.")
    shape = tuple(int.from_bytes(data[at : at + width], "little") for at in range(begin + 1, end, width))
    if not shape or 0 in shape:
        raise FormatError(f"an array of shape {shape} cannot occur.")
    return shape, end
