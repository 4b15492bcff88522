"""The types of tar members: from the content of a member to a value of its column."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from smalti.conversion.exported import damaged_record
from smalti.errors import SchemaError, SmaltiError
from smalti.format import parse_encoding
from smalti.format.encodings.numbers import DTYPE_CODES, NdArray
from smalti.format.npy import read_npy
from smalti.format.reading.arrow import LOGICAL, STORED_AS, decode_schema, fixed_lists_of

_ENCODINGS = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png", "json": "json", "jsn": "json"}
_INTEGERS = frozenset({"cls", "cls2", "index", "inx", "id", "count"})
_TEXTS = frozenset({"txt", "text", "transcript"})
Contents = Sequence[bytes | None]


@dataclass(frozen=True)
class MemberType:
    """A column, and the members that hold it."""

    field: pa.Field
    ending: str
    """The name after the key and a dot, in lower case."""
    form: str
    """The way in which a member's content is read: bytes, text, int, json, cast, scalar, npy or stack."""
    encoding: str | None = None
    """Encoding of the arrays of npy members."""

    def nullable(self) -> "MemberType":
        """Return the same column with nulls allowed."""
        return replace(self, field=self.field.with_nullable(True))  # noqa: FBT003 -- pyarrow's

    def array(self, contents: Contents) -> pa.Array:
        """Return the values of members; None where there is no member.

        Raises:
            ValueError, ArithmeticError, pa.ArrowException: A content is no such value.
        """
        return _READERS[self.form](self, contents)


def member_type(ending: str, content: bytes) -> MemberType:
    """Return the column of members with this ending, by its last part and the content of the first one.

    Raises:
        SchemaError: An array that cannot be stored.
    """
    last = ending.rpartition(".")[2]
    kind: pa.DataType = pa.binary()
    form, encoding = "bytes", _ENCODINGS.get(last)
    if last in _INTEGERS:
        kind, form = pa.int64(), "int"
    elif last in _TEXTS:
        kind, form = pa.string(), "text"
    elif last == "npy":
        return _npy_type(ending, content)
    notes = None if encoding is None else {STORED_AS: encoding.encode()}
    return MemberType(pa.field(ending, kind, nullable=False, metadata=notes), ending, form)


def _npy_type(ending: str, content: bytes) -> MemberType:
    try:
        array = read_npy(content)
    except ValueError as error:
        raise SchemaError(f"the member .{ending} of the first sample is no npy file of numbers: {error}") from error
    if array.dtype.name not in DTYPE_CODES:
        raise SchemaError(f"the member .{ending} of the first sample has type {array.dtype}, which cannot be stored")
    if not array.ndim:
        return MemberType(pa.field(ending, _type_of(array), nullable=False), ending, "scalar")
    return _arrays(ending, ending, f"ndarray:{array.dtype.name}", nullable=False)


def _type_of(array: Any) -> pa.DataType:
    """Return the type of the numbers of an array, in whichever byte order they are."""
    return pa.from_numpy_dtype(array.dtype.newbyteorder("="))


def _arrays(name: str, ending: str, encoding: str, *, nullable: bool, logical: Any = None) -> MemberType:
    notes = {STORED_AS: encoding.encode()} | ({LOGICAL: json.dumps(logical).encode()} if logical else {})
    return MemberType(pa.field(name, pa.binary(), nullable=nullable, metadata=notes), ending, "npy", encoding)


def exported_types(export: Mapping[str, Any] | None, where: str) -> list[MemberType] | None:
    """Return the columns of tar files that Smalti exported; None without a record of such an export.

    Raises:
        FormatError: The record, whose address is `where`, is damaged.
    """
    if export is None or "members" not in export:
        return None
    members, stored = export["members"], export.get("stored", {})
    try:
        schema = decode_schema(str(export.get("schema")))
        return [_exported(field, members[field.name].lower(), stored.get(field.name, {})) for field in schema]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        reason = error.message if isinstance(error, SmaltiError) else str(error)
        expected = f"the types, members and encodings of all columns ({reason[:200]})"
        raise damaged_record(where, expected) from error


def _exported(field: pa.Field, ending: str, stored: dict[str, Any]) -> MemberType:
    encoding, logical = str(stored.get("encoding")), stored.get("logical")
    if pt.is_binary(field.type):
        return MemberType(field, ending, "bytes")
    if encoding == "json":
        notes = {STORED_AS: b"json"} | ({LOGICAL: json.dumps(logical).encode()} if logical else {})
        return MemberType(pa.field(field.name, pa.binary(), field.nullable, notes), ending, "bytes")
    if encoding.startswith("ndarray:") and encoding.count(":") == 2:
        return MemberType(field, ending, "stack", encoding)
    if encoding.startswith("ndarray"):
        return _arrays(field.name, ending, encoding, nullable=field.nullable, logical=logical)
    if pt.is_boolean(field.type) or pt.is_floating(field.type) or pt.is_duration(field.type):
        return MemberType(field, ending, "json")
    if pt.is_integer(field.type):
        return MemberType(field, ending, "int")
    return MemberType(field, ending, "text" if pt.is_string(field.type) else "cast")


def _each(convert: Callable[[bytes], Any]) -> Callable[[MemberType, Contents], pa.Array]:
    def read(kind: MemberType, contents: Contents) -> pa.Array:
        values = [None if content is None else convert(content) for content in contents]
        return pa.array(values, kind.field.type)

    return read


def _text(content: bytes) -> str:
    return content.decode("utf-8")


def _whole_number(content: bytes) -> int:
    text = content.strip()
    if not text.lstrip(b"+-").isdigit() or len(text) > 20:
        raise ValueError("expected the digits of a whole number")
    return int(text)


def _cast(kind: MemberType, contents: Contents) -> pa.Array:
    texts = [None if content is None else content.decode("utf-8") for content in contents]
    return pa.array(texts, pa.string()).cast(kind.field.type)


def _json(kind: MemberType, contents: Contents) -> pa.Array:
    values = [None if content is None else json.loads(content) for content in contents]
    if pt.is_duration(kind.field.type):
        return pa.array(values, pa.int64()).cast(kind.field.type)
    return pa.array(values, kind.field.type)


def _scalar(kind: MemberType, contents: Contents) -> pa.Array:
    values = []
    for content in contents:
        array = None if content is None else read_npy(content)
        if array is not None and (array.ndim or _type_of(array) != kind.field.type):
            raise ValueError(f"expected one {kind.field.type}, found {array.dtype} of shape {array.shape}")
        values.append(None if array is None else array[()])
    return pa.array(values, kind.field.type)


def _npy(kind: MemberType, contents: Contents) -> pa.Array:
    codec = parse_encoding(str(kind.encoding))
    dtype = codec.dtype if isinstance(codec, NdArray) else None
    stored = []
    for content in contents:
        array = None if content is None else read_npy(content)
        if array is not None and array.dtype.kind in "bmM":  # logical types are stored as their numbers
            array = array.view(np.uint8 if array.dtype.kind == "b" else np.int64)
            array = array if dtype is None else array.astype(dtype)
        stored.append(None if array is None else codec.encode(array))
    return pa.array(stored, pa.binary())


def _stack(kind: MemberType, contents: Contents) -> pa.Array:
    """Return lists of fixed sizes."""
    codec = parse_encoding(str(kind.encoding))
    if not isinstance(codec, NdArray) or codec.shape is None:
        raise SchemaError(f"{kind.encoding!r} is no encoding of arrays of one shape")
    arrays = [read_npy(content) for content in contents if content is not None]
    for array in arrays:
        codec.encode(array)  # checks type and shape
    block = np.stack(arrays) if arrays else np.empty((0, *codec.shape), codec.dtype)
    is_null = np.array([content is None for content in contents])
    return fixed_lists_of(codec)(block).take(pa.array(np.cumsum(~is_null) - 1, pa.int64(), mask=is_null))


_READERS: dict[str, Callable[[MemberType, Contents], pa.Array]] = {
    "bytes": _each(bytes),
    "text": _each(_text),
    "int": _each(_whole_number),
    "cast": _cast,
    "json": _json,
    "scalar": _scalar,
    "npy": _npy,
    "stack": _stack,
}
