"""Single samples to their stored bytes, on a generated fast path or through the encodings.

A sample is encoded when it is added, not later: a bad one is refused by its own call, and callers may reuse their
buffers. The fast path is generated for the schema, takes values of the plain types only, and only if they are stored
unchanged. Samples that it declines go through `make_checked_encoder`, where the encodings accept the value or explain
what is wrong. Both give the same bytes.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Encoding
from smalti.format.encodings.images import END_MARK, HEAD_BYTES, Jpeg, check_jpeg, has_good_head
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
    struct.error; the encoding then decides. An encoding may declare its own by a method `fast_path`, which returns one
    that gives the same bytes as `encode`.
    """

    kind: type | None = None
    encode: Callable[[Any], Any] | None = None
    code: str | None = None


def fast_path(codec: Encoding) -> FastPath:
    """Return the fast path of an encoding; its own `encode` if it has none."""
    own = getattr(codec, "fast_path", None)
    if own is not None:
        path: FastPath = own()
        return path
    if type(codec) in (Scalar, Int):
        assert isinstance(codec, Scalar)  # noqa: S101 - for the type checker
        code = STRUCT_CODES[codec.dtype.name]
        if codec.dtype.kind in "iu":
            return FastPath(code=code)  # `struct` accepts integers in range, and nothing else
        if codec.dtype.name == "float64":
            return FastPath(kind=float, code=code)
        return FastPath(encode=_narrow_float(codec, code), code=code)
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
    if not (value.endswith(END_MARK) and has_good_head(value[:HEAD_BYTES])) and check_jpeg(value):
        raise ValueError
    return value


def array_encoder(codec: NdArray) -> Callable[[Any], bytes]:
    """Return the fast path of arrays, which declines what is no plain array of the type and shape."""
    own_dtype, own_shape = codec.dtype, codec.shape

    @lru_cache(maxsize=4096)  # bounded: every sample of a column may have another shape
    def head(dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> bytes:
        """Return the bytes in front of the values."""
        if dtype.name not in DTYPE_CODES or dtype != dtype.newbyteorder("<") or dtype != (own_dtype or dtype):
            raise TypeError
        if not codec.accepts_shape(shape):
            raise TypeError
        return (b"" if own_dtype else bytes([DTYPE_CODES[dtype.name]])) + shape_header(shape)

    def fixed(value: Any) -> bytes:
        if type(value) is not np.ndarray or value.dtype != own_dtype or value.shape != own_shape:
            raise TypeError
        return value.tobytes()

    def free(value: Any) -> bytes:
        if type(value) is not np.ndarray:
            raise TypeError
        return head(value.dtype, value.shape) + value.tobytes()

    return free if own_dtype is None or own_shape is None else fixed


def make_checked_encoder(schema: Schema, codecs: tuple[Encoding, ...]) -> Callable[[Mapping[str, Any], int], bytes]:
    """Return the function from a sample, and its number, to its bytes through the encodings.

    Its SchemaError, for a column that is missing or unknown, or a value that does not fit, has `column` and `row`.
    """
    columns, names = list(zip(schema.names, codecs, strict=True)), frozenset(schema.names)
    pack_lengths = struct.Struct(f"<{schema.sizes.count(None)}I").pack

    def encode(sample: Mapping[str, Any], row: int) -> bytes:
        if not hasattr(sample, "keys") or sample.keys() != names:
            schema.check_sample(sample, row)
        lengths: list[int] = []
        parts: list[bytes] = []
        try:
            for name, codec in columns:
                data = check_stored(codec.encode(sample[name]), codec.size)
                if codec.size is None:
                    lengths.append(len(data))
                parts.append(data)
        except SchemaError as error:
            name, codec = columns[len(parts)]  # the number of encoded columns is the place of the one that failed
            raise refused_value(error, column=name, encoding=codec.name, row=row) from error
        return b"".join([pack_lengths(*lengths), *parts])

    return encode


def make_fast_encoder(
    schema: Schema, codecs: tuple[Encoding, ...], fallback: Encode, *, takes_more: bool = False
) -> Encode:
    """Return the fast path for a schema: generated code without a loop over columns, three times as fast.

    `fallback` encodes the samples that the fast path declines: those with further columns too, unless `takes_more`.
    """
    path = _GeneratedPath(schema, codecs, takes_more=takes_more)
    result = " + ".join(path.parts) if len(path.parts) < 3 else f"join(({', '.join(path.parts)}))"
    lines = "".join(f"        {line}\n" for line in [*path.steps, f"return {result}"])
    text = f"def encode(sample):\n    try:\n{lines}    except declined: pass\n    return fallback(sample)\n"
    path.space["fallback"] = fallback
    encode: Encode = path.compiled(text, "encode")
    return encode


class RowBlock(NamedTuple):
    """The functions of a writer of single samples: `write(sample)`, `flush()` and `close(refuse)`.

    They share a block of encoded samples, which `write` gives away when it is full, and `flush` at once. After `close`,
    `write` and `flush` call `refuse` instead, which raises, and hold no memory.
    """

    write: Callable[[Mapping[str, Any]], None]
    flush: Callable[[], None]
    close: Callable[[Callable[..., NoReturn]], None]


def make_row_block(
    schema: Schema,
    codecs: tuple[Encoding, ...],
    *,
    take: Callable[[bytearray], int],
    lengths: list[int],
    fallback: Encode,
    on_error: Callable[[BaseException], None],
) -> RowBlock:
    """Return the functions that collect single samples: generated for the schema, one call for each sample.

    A sample is encoded, checked and copied before `write` returns. Every part is made before the first one is appended,
    so a declined sample leaves no trace.

    Args:
        schema: The columns.
        codecs: Their encodings.
        take: Called with the samples of a block; returns the number of bytes that the next block may have.
        lengths: Gets the bytes of each sample of the block in variable columns, without the four of each length; `take`
            empties it.
        fallback: Returns the bytes of a sample that the fast path declines.
        on_error: Called with the error that a call of `write` ends with.
    """
    path = _GeneratedPath(schema, codecs, takes_more=False)
    names = [part if part.startswith("v") else f"p{number}" for number, part in enumerate(path.parts)]
    packed = [f"{name} = {part}" for name, part in zip(names, path.parts, strict=True) if name != part]
    total = " + ".join(f"n{place}" for place in path.variable) or "0"
    appends = [f"data += {name}" for name in names] + [f"add_length({total})"]
    indent = "\n" + " " * 16
    text = _BLOCK_TEXT.format(
        steps=indent.join([*path.steps, *packed]), appends=indent.join(appends), fixed=fixed_bytes(schema)
    )
    return RowBlock(*path.compiled(text, "make")(take, lengths, fallback, on_error))


def fixed_bytes(schema: Schema) -> int:
    """Return the bytes of every sample outside of its variable columns: fixed columns and lengths."""
    return sum(4 if size is None else size for size in schema.sizes)


class _GeneratedPath:
    """The source text that generated functions begin with, and the values of its names.

    For the columns a (bytes), b (int), c (str), the steps that both functions begin with:

        if type(sample) is not dict or len(sample) != 3: raise TypeError
        v0 = sample[name0]
        v1 = sample[name1]
        v2 = sample[name2]
        if type(v0) is not kind0: raise TypeError
        v2 = encode2(v2)
        n0 = len(v0)
        n2 = len(v2)

    and what follows in the encoder, where `declined` are the errors of a value that the fast path does not take:

        return join((pack0(n0, n2), v0, pack2(v1), v2))
    """

    def __init__(self, schema: Schema, codecs: tuple[Encoding, ...], *, takes_more: bool) -> None:
        self.space: dict[str, Any] = {
            "join": b"".join,
            # DeprecationWarning: older numpy warns when `struct` packs a numpy boolean, and warnings may be errors.
            "declined": (
                KeyError, TypeError, ValueError, OverflowError, AttributeError, struct.error, DeprecationWarning
            ),
        }  # fmt: skip
        self.parts: list[str] = []
        """Expressions for the bytes of a sample, in order; those of values are names."""
        self.variable: list[int] = []
        """Places of the columns of varying length."""
        if len(codecs) > _MAX_FAST_COLUMNS:
            self.steps = ["raise TypeError"]
            return
        # A subclass of dict may invent columns that are looked up (`defaultdict`).
        count = f"len(sample) {'<' if takes_more else '!='} {len(codecs)}"
        self.steps = [f"if type(sample) is not dict or {count}: raise TypeError"]
        for place, name in enumerate(schema.names):
            self.space[f"name{place}"] = name
            self.steps.append(f"v{place} = sample[name{place}]")
        self.variable = [place for place, codec in enumerate(codecs) if codec.size is None]
        run = [("I", f"n{place}") for place in self.variable]
        for place, codec in enumerate(codecs):
            path = fast_path(codec)
            if path.kind is not None:
                self.space[f"kind{place}"] = path.kind
                self.steps.append(f"if type(v{place}) is not kind{place}: raise TypeError")
            if path.encode is not None:
                self.space[f"encode{place}"] = path.encode
                self.steps.append(f"v{place} = encode{place}(v{place})")
            if path.code is not None:
                run.append((path.code, f"v{place}"))
                continue
            if path.kind is None and type(codec) is not Str:
                self.steps.append(f"if type(v{place}) is not bytes: raise TypeError")
            self._pack_run(run)
            run = []
            self.parts.append(f"v{place}")
        self._pack_run(run)
        self.steps += [f"n{place} = len(v{place})" for place in self.variable]

    def _pack_run(self, run: list[tuple[str, str]]) -> None:
        """Pack neighbouring numbers by one call."""
        if run:
            name = f"pack{len(self.parts)}"
            self.space[name] = struct.Struct("<" + "".join(code for code, _ in run)).pack
            self.parts.append(f"{name}({', '.join(value for _, value in run)})")

    def compiled(self, text: str, name: str) -> Any:
        """Return a generated function.

        Generated as dataclasses generate their methods: only column numbers and struct codes enter the text.
        """
        exec(text, self.space)  # noqa: S102
        return self.space[name]


_BLOCK_TEXT = """
def make(take, lengths, fallback, on_error):
    data, limit, add_length = bytearray(), take(bytearray()), lengths.append

    def write(sample):
        nonlocal data, limit
        try:
            try:
                {steps}
            except declined:
                pass  # and encoded below, where its errors have no such error as context
            else:
                {appends}
                if len(data) > limit:
                    block, data, limit = data, bytearray(), -1
                    limit = take(block)
                return
            row = fallback(sample)
            data += row
            add_length(len(row) - {fixed})
            if len(data) > limit:
                block, data, limit = data, bytearray(), -1
                limit = take(block)
        except BaseException as error:
            on_error(error)
            raise

    def flush():
        nonlocal data, limit
        block, data, limit = data, bytearray(), -1
        limit = take(block)

    def close(refuse):
        nonlocal data, limit, take, fallback
        take, fallback, data, limit = refuse, refuse, bytearray(), -1

    return write, flush, close
"""
