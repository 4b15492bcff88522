"""The encodings of the fast path of MDSWriter: the engine's where both store the same bytes, and its narrower ones."""

from typing import Any

from smalti.compat.streaming.base.format.mds.encodings import TableEncoding, _encodings, mds_encode
from smalti.format import Encoding, parse_encoding
from smalti.format.encodings.images import Jpeg
from smalti.format.encodings.numbers import STRUCT_CODES, Int, NdArray, Scalar
from smalti.format.encodings.text import Bytes, Str
from smalti.format.writing.rows import FastPath, array_encoder


class FilledArray(NdArray):
    """Arrays that are not empty: MosaicML's reader takes no others."""

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape is written."""
        return all(shape) and super().accepts_shape(shape)

    def fast_path(self) -> FastPath:
        """Return the fast path of arrays."""
        return FastPath(encode=array_encoder(self))


class RoundedFloat(Scalar):
    """float16 or float32, to which Python floats are rounded."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of the rounded number."""
        return mds_encode(self.name, value)

    def fast_path(self) -> FastPath:
        """Return a fast path that rounds, and declines NaN, whose bits `struct` may change."""
        kind = self.dtype.type

        def plain(value: Any) -> float:
            if type(value) is kind:
                value = float(value)
            if type(value) is not float or value != value:  # noqa: PLR0124 - NaN
                raise TypeError
            return value

        return FastPath(encode=plain, code=STRUCT_CODES[self.dtype.name])


class PlainInt(Int):
    """Python's int; MosaicML's writer refuses numpy's for this encoding."""

    def fast_path(self) -> FastPath:
        """Return a fast path that declines all but plain ints."""
        return FastPath(kind=int, code=STRUCT_CODES["int64"])


def writing_codec(name: str) -> Encoding:
    """Return the encoding with which the fast path writes; it accepts a value only if the class in `_encodings` does.

    Raises:
        SchemaError: there is no such encoding.
    """
    codec = parse_encoding(name, allow_unsafe_types=True)
    if type(codec) is NdArray:
        return FilledArray(name, None if codec.dtype is None else codec.dtype.name, codec.shape)
    if type(codec) is Scalar and name in {"float16", "float32"}:
        return RoundedFloat(name, name)
    if type(codec) is Int:
        return PlainInt()
    if type(codec) in {Scalar, Bytes, Str, Jpeg}:
        return codec
    family, _, parameters = name.partition(":")
    return TableEncoding(_encodings[family], name, parameters)
