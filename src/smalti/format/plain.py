"""The short way of each encoding for values of its plain type: equal bytes for less checking, or none at all.

A way is made of what CPython does fast: an exact type, a code of `struct`, one call. It may refuse by raising anything
of KeyError, TypeError, ValueError, OverflowError, AttributeError and struct.error; the encoding then decides.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.format.array_headers import is_possible
from smalti.format.arrays import DTYPE_CODES, NdArray, shape_header
from smalti.format.encoding import Encoding
from smalti.format.jpeg_heads import END_MARK, HEAD_BYTES, begins_well
from smalti.format.pictures import Jpeg
from smalti.format.scalars import Int, Scalar
from smalti.format.texts import Bytes, Str

_INTEGERS = {"int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
             "uint64": "Q"}  # fmt: skip
_FLOATS = {"float16": "e", "float32": "f"}


@dataclass(frozen=True)
class PlainWay:
    """What is done with a value: its type is compared with `kind`, `encode` is called, `code` packs it."""

    kind: type | None = None
    encode: Callable[[Any], Any] | None = None
    code: str | None = None


def plain_way(codec: Encoding) -> PlainWay:
    """The short way of an encoding; its own `encode` where there is none."""
    if type(codec) in (Scalar, Int):
        assert isinstance(codec, Scalar)  # noqa: S101 - for the type checker
        return _number(codec)
    if type(codec) is Bytes:
        return PlainWay(kind=bytes)
    if type(codec) is Str:
        return PlainWay(encode=str.encode)  # refuses other types, and text that UTF-8 cannot hold
    if type(codec) is Jpeg:
        return PlainWay(kind=bytes, encode=_jpeg)
    if type(codec) is NdArray:
        return PlainWay(encode=_array_way(codec))
    return PlainWay(encode=codec.encode if codec.size is None else _of_fixed_size(codec))


def _of_fixed_size(codec: Encoding) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        data = codec.encode(value)
        if len(data) != codec.size:
            raise ValueError
        return data

    return encode


def _number(codec: Scalar) -> PlainWay:
    name = codec.dtype.name
    if name in _INTEGERS:
        return PlainWay(code=_INTEGERS[name])  # `struct` takes integers in range, and nothing else
    if name == "float64":
        return PlainWay(kind=float, code="d")
    return PlainWay(encode=_narrow_float(codec, _FLOATS[name]), code=_FLOATS[name])


def _narrow_float(codec: Scalar, code: str) -> Callable[[Any], float]:
    packer, kind = struct.Struct(f"<{code}"), codec.dtype.type

    def narrow(value: Any) -> float:
        if type(value) is kind:
            value = float(value)
        # NaN is not equal to itself: the encoding keeps its bits, `struct` may not.
        if type(value) is not float or packer.unpack(packer.pack(value))[0] != value:
            raise TypeError
        return value

    return narrow


def _jpeg(value: bytes) -> bytes:
    if not value.endswith(END_MARK) or not begins_well(value[:HEAD_BYTES]):
        raise ValueError
    return value


def _array_way(codec: NdArray) -> Callable[[Any], bytes]:
    dtype, shape, heads = codec.dtype, codec.shape, _Heads(codec)

    def fixed(value: Any) -> bytes:
        if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
            raise TypeError
        return value.tobytes()

    def free(value: Any) -> bytes:
        if type(value) is not np.ndarray:
            raise TypeError
        return heads[value.dtype, value.shape] + value.tobytes()

    return free if dtype is None or shape is None else fixed


class _Heads(dict[tuple[Any, tuple[int, ...]], bytes]):
    """What stands in front of the values, by element type and shape."""

    def __init__(self, codec: NdArray) -> None:
        super().__init__()
        self._dtype = codec.dtype

    def __missing__(self, key: tuple[Any, tuple[int, ...]]) -> bytes:
        dtype, shape = key
        if dtype.name not in DTYPE_CODES or dtype != dtype.newbyteorder("<") or dtype != (self._dtype or dtype):
            raise TypeError
        if not is_possible(shape):
            raise TypeError
        head = (b"" if self._dtype else bytes([DTYPE_CODES[dtype.name]])) + shape_header(shape)
        if len(self) < 4096:  # a column of ever new shapes must not fill the memory
            self[key] = head
        return head
