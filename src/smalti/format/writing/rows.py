"""One sample at a time to its stored bytes; knows no shards.

A sample is encoded when it is given, not later: a refused one is refused at its own call, and callers may reuse their
buffers. There are two ways to the same bytes. The short way is made for the schema, takes values of the plain types
alone, and only where they are stored unchanged. Whatever it does not take goes the long way, where the encodings accept
or explain.

The short way of each encoding for values of its plain type: equal bytes for less checking, or none at all.

A way is made of what CPython does fast: an exact type, a code of `struct`, one call. It may refuse by raising anything
of KeyError, TypeError, ValueError, OverflowError, AttributeError and struct.error; the encoding then decides.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.arrays import DTYPE_CODES, NdArray, is_possible, shape_header
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.image_checks import END_MARK, HEAD_BYTES, has_good_head
from smalti.format.encodings.images import Jpeg
from smalti.format.encodings.scalars import Int, Scalar
from smalti.format.encodings.text import Bytes, Str
from smalti.format.schema import Schema
from smalti.format.sizes import check_stored

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
    if not value.endswith(END_MARK) or not has_good_head(value[:HEAD_BYTES]):
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


_MAX_COLUMNS = 1000  # the text grows with them, and so does the time to compile it
Encode = Callable[[Mapping[str, Any]], bytes]


class LongWay:
    """Samples to bytes through the encodings; every refusal names its column and sample."""

    def __init__(self, schema: Schema, codecs: tuple[Encoding, ...]) -> None:
        self._schema = schema
        self._columns = list(zip(schema.names, codecs, strict=True))
        self._names = frozenset(schema.names)
        self._pack_lengths = struct.Struct(f"<{schema.sizes.count(None)}I").pack

    def encode(self, sample: Mapping[str, Any], *, row: int) -> bytes:
        """The stored bytes of a sample.

        Args:
            sample: Exactly the columns of the schema.
            row: The number of the sample, for messages.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row` say where.
        """
        if not hasattr(sample, "keys") or sample.keys() != self._names:
            self._schema.check_sample(sample, row)
        lengths: list[int] = []
        parts: list[bytes] = []
        try:
            for name, codec in self._columns:
                data = check_stored(codec.encode(sample[name]), codec.size)
                if codec.size is None:
                    lengths.append(len(data))
                parts.append(data)
        except SchemaError as error:
            name, codec = self._columns[len(parts)]  # the number of columns done is the place of the one that failed
            raise SchemaError(
                f"column {name!r} ({codec.name}), sample {row}: {error.message}",
                **{**error.facts, "column": name, "row": row},
            ) from error
        return b"".join([self._pack_lengths(*lengths), *parts])


def short_way(schema: Schema, codecs: tuple[Encoding, ...], otherwise: Encode) -> Encode:
    """The short way for a schema: straight-line code without a loop over columns, a third of the time of one.

    Args:
        schema: The columns.
        codecs: Their encodings.
        otherwise: Gets the samples that the short way does not take.
    """
    if len(codecs) > _MAX_COLUMNS:
        return otherwise
    source = _Source(codecs)
    space = {
        "columns": itemgetter(*schema.names) if len(codecs) > 1 else _only(schema.names[0]),
        "join": b"".join,
        "otherwise": otherwise,
        # The warning: what older numpy says, where warnings are errors, when `struct` is given one of its booleans.
        "unusual": (KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error, DeprecationWarning),
        **source.space,
    }
    # Generated as dataclasses generate their methods. Nothing of the schema enters the text but numbers.
    exec(source.text(), space)  # noqa: S102
    encode: Encode = space["encode"]
    return encode


def _only(name: str) -> Callable[[Mapping[str, Any]], tuple[Any]]:
    def columns(sample: Mapping[str, Any]) -> tuple[Any]:
        return (sample[name],)

    return columns


class _Source:
    """The text of the function, and what its names stand for.

    For the columns a (bytes), b (int), c (str):

        def encode(sample):
            try:
                if type(sample) is not dict or len(sample) != 3: raise TypeError
                v0, v1, v2, = columns(sample)
                if type(v0) is not kind0: raise TypeError
                v2 = way2(v2)
                return join((pack0(len(v0), len(v2)), v0, pack2(v1), v2))
            except unusual: pass
            return otherwise(sample)
    """

    def __init__(self, codecs: tuple[Encoding, ...]) -> None:
        self.space: dict[str, Any] = {}
        # A dict of another class may make up columns that it does not have, once it is asked for them.
        guard = f"if type(sample) is not dict or len(sample) != {len(codecs)}: raise TypeError"
        self._steps = [guard, "".join(f"v{place}, " for place in range(len(codecs))) + "= columns(sample)"]
        self._parts: list[str] = []
        variable = [place for place, codec in enumerate(codecs) if codec.size is None]
        run = [("I", f"len(v{place})") for place in variable]
        for place, codec in enumerate(codecs):
            way = plain_way(codec)
            if way.kind is not None:
                self.space[f"kind{place}"] = way.kind
                self._steps.append(f"if type(v{place}) is not kind{place}: raise TypeError")
            if way.encode is not None:
                self.space[f"way{place}"] = way.encode
                self._steps.append(f"v{place} = way{place}(v{place})")
            if way.code is not None:
                run.append((way.code, f"v{place}"))
                continue
            self._end(run)
            run = []
            self._parts.append(f"v{place}")
        self._end(run)

    def _end(self, run: list[tuple[str, str]]) -> None:
        """Neighbouring numbers are packed by one call."""
        if not run:
            return
        name = f"pack{len(self._parts)}"
        self.space[name] = struct.Struct("<" + "".join(code for code, _ in run)).pack
        self._parts.append(f"{name}({', '.join(value for _, value in run)})")

    def text(self) -> str:
        result = " + ".join(self._parts) if len(self._parts) < 3 else f"join(({', '.join(self._parts)}))"
        lines = "".join(f"        {line}\n" for line in [*self._steps, f"return {result}"])
        return f"def encode(sample):\n    try:\n{lines}    except unusual: pass\n    return otherwise(sample)\n"
