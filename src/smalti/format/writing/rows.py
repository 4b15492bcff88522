"""Single samples to their stored bytes, on a generated fast path or through the encodings.

A sample is encoded when it is added, not later: a bad one is refused by its own call, and callers may reuse their
buffers. The fast path is generated for the schema, takes values of the plain types only, and only if they are stored
unchanged. Samples that it declines are encoded by `CheckedEncoder`, where the encodings accept the value or explain
what is wrong. Both give the same bytes.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.images import END_MARK, HEAD_BYTES, Jpeg, has_good_head
from smalti.format.encodings.numbers import DTYPE_CODES, STRUCT_CODES, Int, NdArray, Scalar, shape_header
from smalti.format.encodings.text import Bytes, Str
from smalti.format.schema import Schema, refused_value
from smalti.format.sizes import check_stored

_MAX_FAST_COLUMNS = 1000  # the generated code and the time to compile it grow with them
Encode = Callable[[Mapping[str, Any]], bytes]


@dataclass(frozen=True)
class FastPath:
    """Storage of a value on the fast path: its exact type must be `kind`, `encode` is called, `code` packs it.

    Each step may decline the value by raising KeyError, TypeError, ValueError, OverflowError, AttributeError or
    struct.error; the encoding then decides.
    """

    kind: type | None = None
    encode: Callable[[Any], Any] | None = None
    code: str | None = None


class OwnFastPath(Protocol):
    """An encoding that declares its fast path itself."""

    def fast_path(self) -> FastPath:
        """Return the fast path, which gives the same bytes as `encode`."""


def fast_path(codec: Encoding) -> FastPath:
    """Return the fast path of an encoding; its own `encode` if it has none."""
    own = getattr(codec, "fast_path", None)
    if own is not None:
        path: FastPath = own()
        return path
    if type(codec) in (Scalar, Int):
        assert isinstance(codec, Scalar)  # noqa: S101 - for the type checker
        return _number(codec)
    if type(codec) is Bytes:
        return FastPath(kind=bytes)
    if type(codec) is Str:
        return FastPath(encode=str.encode)  # raises for other types, and for text that UTF-8 cannot hold
    if type(codec) is Jpeg:
        return FastPath(kind=bytes, encode=_jpeg)
    if type(codec) is NdArray:
        return FastPath(encode=array_encoder(codec))
    return FastPath(encode=codec.encode if codec.size is None else _fixed_size_encoder(codec))


def _fixed_size_encoder(codec: Encoding) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        data = codec.encode(value)
        if len(data) != codec.size:
            raise ValueError
        return data

    return encode


def _number(codec: Scalar) -> FastPath:
    code = STRUCT_CODES[codec.dtype.name]
    if codec.dtype.kind in "iu":
        return FastPath(code=code)  # `struct` accepts integers in range, and nothing else
    if codec.dtype.name == "float64":
        return FastPath(kind=float, code=code)
    return FastPath(encode=_narrow_float(codec, code), code=code)


def _narrow_float(codec: Scalar, code: str) -> Callable[[Any], float]:
    packer, kind = struct.Struct(f"<{code}"), codec.dtype.type

    def narrow(value: Any) -> float:
        if type(value) is kind:
            value = float(value)
        # NaN is declined, being unequal to itself: the encoding keeps its bits, `struct` may not.
        if type(value) is not float or packer.unpack(packer.pack(value))[0] != value:
            raise TypeError
        return value

    return narrow


def _jpeg(value: bytes) -> bytes:
    if not value.endswith(END_MARK) or not has_good_head(value[:HEAD_BYTES]):
        raise ValueError
    return value


def array_encoder(codec: NdArray) -> Callable[[Any], bytes]:
    """Return the fast path of arrays, which declines what is no plain array of the type and shape."""
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
    """The bytes in front of the values, by element type and shape."""

    def __init__(self, codec: NdArray) -> None:
        super().__init__()
        self._dtype = codec.dtype
        self._accepts_shape = codec.accepts_shape

    def __missing__(self, key: tuple[Any, tuple[int, ...]]) -> bytes:
        dtype, shape = key
        if dtype.name not in DTYPE_CODES or dtype != dtype.newbyteorder("<") or dtype != (self._dtype or dtype):
            raise TypeError
        if not self._accepts_shape(shape):
            raise TypeError
        head = (b"" if self._dtype else bytes([DTYPE_CODES[dtype.name]])) + shape_header(shape)
        if len(self) < 4096:  # bounded: every sample of a column may have another shape
            self[key] = head
        return head


class CheckedEncoder:
    """Samples to bytes through the encodings; every error names its column and sample."""

    def __init__(self, schema: Schema, codecs: tuple[Encoding, ...]) -> None:
        self._schema = schema
        self._columns = list(zip(schema.names, codecs, strict=True))
        self._names = frozenset(schema.names)
        self._pack_lengths = struct.Struct(f"<{schema.sizes.count(None)}I").pack

    def encode(self, sample: Mapping[str, Any], *, row: int) -> bytes:
        """Return the stored bytes of a sample.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row` are attributes.
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
            name, codec = self._columns[len(parts)]  # the number of encoded columns is the place of the one that failed
            raise refused_value(error, column=name, encoding=codec.name, row=row) from error
        return b"".join([self._pack_lengths(*lengths), *parts])


def make_fast_encoder(
    schema: Schema, codecs: tuple[Encoding, ...], fallback: Encode, *, takes_more: bool = False
) -> Encode:
    """Return the fast path for a schema: generated code without a loop over columns, three times as fast.

    `fallback` encodes the samples that the fast path declines: those with further columns too, unless `takes_more`.
    """
    if len(codecs) > _MAX_FAST_COLUMNS:
        return fallback
    source, first = _EncoderSource(codecs, takes_more=takes_more), schema.names[0]
    space = {
        "columns": itemgetter(*schema.names) if len(codecs) > 1 else lambda sample: (sample[first],),
        "join": b"".join,
        "fallback": fallback,
        # DeprecationWarning: older numpy warns when `struct` packs a numpy boolean, and warnings may be errors.
        "declined": (KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error, DeprecationWarning),
        **source.space,
    }
    # Generated as dataclasses generate their methods. Only column numbers and struct codes enter the text.
    exec(source.text(), space)  # noqa: S102
    encode: Encode = space["encode"]
    return encode


class _EncoderSource:
    """The source text of the generated function, and the values of its names.

    For the columns a (bytes), b (int), c (str):

        def encode(sample):
            try:
                if type(sample) is not dict or len(sample) != 3: raise TypeError
                v0, v1, v2, = columns(sample)
                if type(v0) is not kind0: raise TypeError
                v2 = encode2(v2)
                return join((pack0(len(v0), len(v2)), v0, pack2(v1), v2))
            except declined: pass
            return fallback(sample)
    """

    def __init__(self, codecs: tuple[Encoding, ...], *, takes_more: bool) -> None:
        self.space: dict[str, Any] = {}
        # A subclass of dict may invent columns that are looked up (`defaultdict`).
        guard = (
            f"if type(sample) is not dict or len(sample) {'<' if takes_more else '!='} {len(codecs)}: raise TypeError"
        )
        self._steps = [guard, "".join(f"v{place}, " for place in range(len(codecs))) + "= columns(sample)"]
        self._parts: list[str] = []
        variable = [place for place, codec in enumerate(codecs) if codec.size is None]
        run = [("I", f"len(v{place})") for place in variable]
        for place, codec in enumerate(codecs):
            path = fast_path(codec)
            if path.kind is not None:
                self.space[f"kind{place}"] = path.kind
                self._steps.append(f"if type(v{place}) is not kind{place}: raise TypeError")
            if path.encode is not None:
                self.space[f"encode{place}"] = path.encode
                self._steps.append(f"v{place} = encode{place}(v{place})")
            if path.code is not None:
                run.append((path.code, f"v{place}"))
                continue
            self._pack_run(run)
            run = []
            self._parts.append(f"v{place}")
        self._pack_run(run)

    def _pack_run(self, run: list[tuple[str, str]]) -> None:
        """Pack neighbouring numbers by one call."""
        if not run:
            return
        name = f"pack{len(self._parts)}"
        self.space[name] = struct.Struct("<" + "".join(code for code, _ in run)).pack
        self._parts.append(f"{name}({', '.join(value for _, value in run)})")

    def text(self) -> str:
        """Return the source text of the function."""
        result = " + ".join(self._parts) if len(self._parts) < 3 else f"join(({', '.join(self._parts)}))"
        lines = "".join(f"        {line}\n" for line in [*self._steps, f"return {result}"])
        return f"def encode(sample):\n    try:\n{lines}    except declined: pass\n    return fallback(sample)\n"
