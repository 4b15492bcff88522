"""The types of columns, whether Arrow's or Spark's, and the table of what a column of each type can be stored as.

A `Kind` is a family with its parameters; `smalti.spark.writing.dataframe` makes kinds of Spark's types. A further type
of single values is one entry in `_SCALARS`, and one in `smalti.format.logical` if its numbers have a meaning of their
own; `docs/types.md` shows the table to users. Values keep their meaning: where the stored value alone does not
determine it, a logical type in the manifest does. A number encoding that the caller names stores plain numbers. How
values are converted is in `values`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.json_fields import is_deeper_than
from smalti.format.logical import number_type
from smalti.format.reading.arrow import LOGICAL, STORED_AS
from smalti.writer.tables.values import (
    Convert,
    ImageBytes,
    JsonText,
    as_numbers,
    check_depth,
    dense_vectors,
    plain_type,
    text_bytes,
)

IMAGE_FIELDS = ("origin", "height", "width", "nChannels", "mode", "data")
"""Fields of Spark's image schema."""
_MAX_SCALE = 76  # pyarrow cannot write the digits of wider ones


@dataclass(frozen=True)
class Kind:
    """The type of a column or of a nested value."""

    family: str
    """Name of the type without parameters, such as `integer`, `timestamp`, `array` or `struct`."""
    text: str
    """Name of the type as its users know it, for messages."""
    element: "Kind | None" = None
    """Type of the elements of an array."""
    keys: "Kind | None" = None
    """Type of the keys of a map."""
    values: "Kind | None" = None
    """Type of the values of a map."""
    fields: tuple[tuple[str, "Kind"], ...] = ()
    """Names and types of the fields of a struct, or of what a user-defined type of Spark is stored as."""
    precision: int = 0
    """Digits of a decimal number."""
    scale: int = 0
    """Digits of a decimal number after the point."""
    stored_as: str | None = None
    """Encoding whose stored values these are already, as the metadata of the Arrow field says; None for others."""
    stored_logical: Any = None
    """Logical type (JSON) of such stored values; None if they stand for themselves."""

    @property
    def is_image(self) -> bool:
        """True for Spark's image schema."""
        return self.family == "struct" and tuple(name for name, _ in self.fields) == IMAGE_FIELDS


def kinds_of(schema: pa.Schema) -> list[tuple[str, Kind]]:
    """Return name and type of each column of an Arrow schema.

    Raises:
        SchemaError: A type is nested too deeply, or has a name that is no text.
    """
    kinds = []
    for field in schema:
        check_depth(field.name, field.type)
        try:
            kind, notes = kind_of(field.type), field.metadata or {}
        except UnicodeDecodeError as error:  # a zone, or the name of a field
            raise SchemaError(f"the type of column {field.name!r} has a name that is no UTF-8 text: {error}") from error
        if STORED_AS in notes:
            logical = json.loads(notes[LOGICAL]) if LOGICAL in notes else None
            kind = replace(kind, stored_as=notes[STORED_AS].decode(), stored_logical=logical)
        kinds.append((field.name, kind))
    return kinds


def kind_of(arrow: pa.DataType) -> Kind:
    """Return the type of an Arrow column; one that cannot be stored has its name as its family."""
    arrow, text = plain_type(arrow), str(arrow)
    if arrow in _FAMILIES:
        return Kind(_FAMILIES[arrow], text)
    if pt.is_timestamp(arrow):
        return Kind("timestamp" if arrow.tz else "timestamp_ntz", text)
    if pt.is_time(arrow):
        return Kind("time", text)
    if pt.is_duration(arrow):
        return Kind("daytimeinterval", text)
    if pt.is_decimal(arrow) and abs(arrow.scale) <= _MAX_SCALE:
        return Kind("decimal", text, precision=arrow.precision, scale=arrow.scale)
    if pt.is_list(arrow):
        return Kind("array", text, element=kind_of(arrow.value_type))
    if pt.is_map(arrow):
        return Kind("map", text, keys=kind_of(arrow.key_type), values=kind_of(arrow.item_type))
    if pt.is_struct(arrow):
        return Kind("struct", text, fields=tuple((field.name, kind_of(field.type)) for field in arrow))
    return Kind(text, text)


_INTEGER_CHOICES = ("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "str_int")
_FLOAT_CHOICES = ("float16", "float32", "float64", "str_float")


@dataclass(frozen=True)
class _ScalarForm:
    """One entry of the table: the storage of a type of single values."""

    arrow: pa.DataType
    """Arrow type in which the column arrives, apart from units of time."""
    encoding: str
    """Default encoding, which keeps every value."""
    choices: tuple[str, ...]
    """Encodings that the caller may name instead, the default among them."""
    in_json: Mapping[str, Any] | None
    """Logical type of a value within JSON, as the manifest describes it; None if it cannot be nested."""
    logical: Mapping[str, Any] | None = None
    """Logical type of the stored value; None if the value stands for itself."""
    convert: Convert | None = None
    """Conversion from Arrow values to stored ones; None if they are the same."""


def _integer(arrow: pa.DataType) -> _ScalarForm:
    return _ScalarForm(arrow, str(arrow), _INTEGER_CHOICES, {"type": "int"})


def _float(arrow: pa.DataType, encoding: str) -> _ScalarForm:
    return _ScalarForm(arrow, encoding, _FLOAT_CHOICES, {"type": "float"})


def _as_integer(arrow: pa.DataType, logical: Mapping[str, Any]) -> _ScalarForm:
    """Return the entry of a type that is stored as an integer with a logical type, which decides the encoding."""
    return _ScalarForm(arrow, number_type(logical).encoding, _INTEGER_CHOICES, logical, logical, as_numbers)


_TEXT = _ScalarForm(pa.string(), "str", ("str", "json"), {"type": "text"})
_MONTHS = "yearmonthinterval"
_SCALARS = {
    "boolean": _as_integer(pa.bool_(), {"type": "bool"}),
    "byte": _integer(pa.int8()),
    "short": _integer(pa.int16()),
    "integer": _integer(pa.int32()),
    "long": _integer(pa.int64()),
    "uint8": _integer(pa.uint8()),
    "uint16": _integer(pa.uint16()),
    "uint32": _integer(pa.uint32()),
    "uint64": _integer(pa.uint64()),
    "half": _float(pa.float16(), "float16"),
    "float": _float(pa.float32(), "float32"),
    "double": _float(pa.float64(), "float64"),
    "string": _TEXT,
    "char": _TEXT,
    "varchar": _TEXT,
    "binary": _ScalarForm(pa.binary(), "bytes", ("bytes", "jpeg", "png"), {"type": "binary"}),
    "date": _as_integer(pa.date32(), {"type": "date"}),
    "timestamp": _as_integer(pa.timestamp("us", "UTC"), {"type": "timestamp", "unit": "us", "zone": "UTC"}),
    "timestamp_ntz": _as_integer(pa.timestamp("us"), {"type": "timestamp", "unit": "us", "zone": None}),
    "time": _as_integer(pa.time64("ns"), {"type": "time", "unit": "ns"}),
    "daytimeinterval": _as_integer(pa.duration("us"), {"type": "duration", "unit": "us"}),
    _MONTHS: replace(_as_integer(pa.int32(), {"type": "duration", "unit": "M"}), in_json=None, convert=None),
}
"""By family: the name of a type without parameters."""

_FAMILIES = {form.arrow: family for family, form in reversed(_SCALARS.items())}
_FAMILIES |= {pa.date64(): "date", pa.null(): "void"}
"""By plain type of Arrow: the family; of those with one type in Arrow, the first."""

CASTS = {_MONTHS: ("interval month", "int")}
"""By family: casts that Spark must do, one after the other, because Arrow cannot carry the type."""

_ADVICE = {
    "interval": "a calendar interval has no fixed length: make it a day-time or a year-month interval",
    "variant": "take it apart with `variant_get`, or make it text with `to_json`",
    "void": "a column of nothing: leave it out, or cast it",
    "geometry": "make it binary with `st_asbinary`",
    "geography": "make it binary with `st_asbinary`",
    _MONTHS: "make it a column of its own, or a number of months",
    "vector": "make it a column of its own, or an array with `vector_to_array`",
    "matrix": "take its `values` as an array of numbers, and its sizes as columns",
    "udt": "a user-defined type: turn it into plain columns first",
}
_MAX_DIGITS_128 = 38
_MAX_DEPTH = 56
"""Levels of the description of a nested type in the manifest, which may have 64 in all: 27 structs, or 55 lists."""


@dataclass(frozen=True)
class Stored:
    """The storage of one column."""

    encoding: str
    logical: Mapping[str, Any] | None = None
    """Logical type of the stored values; None if they stand for themselves."""
    convert: Convert | None = None
    """Conversion from Arrow values to those that the encoding takes; None if they are the same."""


def stored_as(name: str, kind: Kind, encoding: str | None) -> Stored:
    """Return how a column is stored, by this encoding or by the default of its type.

    Raises:
        SchemaError: The type cannot be stored, or not with this encoding; the message has advice.
    """
    if kind.stored_as is not None and encoding in (None, kind.stored_as):
        parse_encoding(kind.stored_as)
        return Stored(kind.stored_as, kind.stored_logical, text_bytes if kind.family == "string" else None)
    default, choices = _default(name, kind)
    if encoding is None:
        return default
    parse_encoding(encoding)  # an unknown name is a different mistake from one that does not fit
    is_array = "ndarray" in choices and encoding.startswith("ndarray:") and not kind.is_image
    if encoding not in choices and not is_array:
        raise SchemaError(
            f"column {name!r} of type {kind.text} cannot be stored as {encoding!r}; it can be stored as "
            f"{', '.join(choices)}",
            column=name,
        )
    if encoding == default.encoding == "json":
        return default
    if encoding == "json" and kind.family == "array":
        return _as_json(name, kind)
    return Stored(encoding, None, ImageBytes(encoding) if kind.is_image else default.convert)


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type in which a column of a type that can be stored arrives."""
    scalar = _SCALARS.get(kind.family)
    if scalar is not None:
        return scalar.arrow
    if kind.family == "decimal":
        wide = pa.decimal128 if kind.precision <= _MAX_DIGITS_128 else pa.decimal256
        return wide(kind.precision, kind.scale)
    if kind.element is not None:
        return pa.list_(arrow_type(kind.element))
    if kind.keys is not None and kind.values is not None:
        return pa.map_(arrow_type(kind.keys), arrow_type(kind.values))
    return pa.struct([(name, arrow_type(each)) for name, each in kind.fields])


def _default(name: str, kind: Kind) -> tuple[Stored, tuple[str, ...]]:
    """Return the lossless way to store a type, and all encodings that may be named for it."""
    scalar, family = _SCALARS.get(kind.family), kind.family
    if scalar is not None:
        return Stored(scalar.encoding, scalar.logical, scalar.convert), scalar.choices
    if family == "decimal":
        return Stored("str_decimal", _in_json(name, kind)), ("str_decimal",)
    if family == "array":
        element: Kind | None = kind
        while element is not None and element.family == "array":
            element = element.element
        form = None if element is None else _SCALARS.get(element.family)
        # Only numbers that can be nested are stored as arrays of numbers.
        if form is None or form.in_json is None or form.choices not in (_INTEGER_CHOICES, _FLOAT_CHOICES):
            return _as_json(name, kind), ("json",)
        encoding = f"ndarray:{form.encoding}"
        logical = None if form.logical is None else {"type": "array", "of": form.logical}
        return Stored(encoding, logical, form.convert), ("ndarray", encoding, "json")
    if kind.is_image:
        pixels = Stored("ndarray:uint8", {"type": "image", "channels": "BGR"}, ImageBytes("ndarray:uint8"))
        return pixels, ("ndarray", "ndarray:uint8", "png")
    if family in ("struct", "map"):
        return _as_json(name, kind), ("json",)
    if family == "vector":
        return Stored("ndarray:float64", {"type": "vector"}, dense_vectors), ("ndarray", "ndarray:float64")
    raise _refused(name, name, kind)


def _as_json(name: str, kind: Kind) -> Stored:
    described = _in_json(name, kind)
    if is_deeper_than(described, _MAX_DEPTH):
        raise SchemaError(
            f"column {name!r} has values that are nested deeper than readers accept, which is 27 structs or 55 lists; "
            "store the inner ones as text, or take them apart into columns",
            column=name,
        )
    return Stored("json", described, JsonText(described))


def _in_json(path: str, kind: Kind, column: str | None = None) -> Mapping[str, Any]:
    """Return the logical type of a value within JSON, as the manifest describes it."""
    column, family = column or path, kind.family
    scalar = _SCALARS.get(family)
    if scalar is not None and scalar.in_json is not None:
        return scalar.in_json
    if family == "decimal":
        return {"type": "decimal", "precision": kind.precision, "scale": kind.scale}
    if kind.element is not None:
        return {"type": "list", "of": _in_json(f"{path}[]", kind.element, column)}
    if kind.keys is not None and kind.values is not None:
        keys, values = f"{path}.keys", f"{path}.values"
        if kind.keys.family in ("array", "struct", "map"):
            raise _refused(column, keys, kind.keys, "keys of a dict are single values: store it as an array")
        return {
            "type": "map",
            "keys": _in_json(keys, kind.keys, column),
            "values": _in_json(values, kind.values, column),
        }
    if family == "struct":
        names = [name for name, _ in kind.fields]
        if len(set(names)) < len(names):
            raise _refused(column, path, kind, "two fields have one name: rename one")
        return {
            "type": "struct",
            "fields": {name: _in_json(f"{path}.{name}", each, column) for name, each in kind.fields},
        }
    raise _refused(column, path, kind)


def _refused(column: str, path: str, kind: Kind, advice: str | None = None) -> SchemaError:
    advice = advice or _ADVICE.get(kind.family) or "leave it out, or cast it to a string, a number or binary first"
    where = f"column {column!r}" if path == column else f"column {column!r}, at {path},"
    return SchemaError(f"{where} has type {kind.text}, which cannot be stored; {advice}", column=column)
