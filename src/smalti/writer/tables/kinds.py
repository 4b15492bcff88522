"""The type of a column, whether it comes from an Arrow schema or from Spark: a family with its parameters.

`smalti.spark.columns` makes kinds of Spark's types. What a kind is stored as is in `types`.
"""

import json
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format.reading.arrow import LOGICAL, STORED_AS
from smalti.writer.tables.plain import check_depth, plain_type

IMAGE_FIELDS = ("origin", "height", "width", "nChannels", "mode", "data")
"""Fields of Spark's image schema."""
_MAX_SCALE = 76  # pyarrow cannot write the digits of wider ones
_FAMILIES = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "half",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date32(): "date",
    pa.date64(): "date",
    pa.null(): "void",
}


@dataclass(frozen=True)
class Kind:
    """The type of a column or of a nested value."""

    family: str
    """Name of the type without parameters, such as `integer`, `timestamp`, `array` or `struct`; see `types`."""
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

    @property
    def has_nan(self) -> bool:
        """True if values of the type may be NaN."""
        return self.family in ("half", "float", "double")


def kinds_of(schema: pa.Schema) -> list[tuple[str, Kind]]:
    """Return name and type of each column of an Arrow schema.

    Raises:
        SchemaError: A type is nested too deeply, or has a name that is no text.
    """
    return [(field.name, _kind_of_field(field)) for field in schema]


def _kind_of_field(field: pa.Field) -> Kind:
    check_depth(field.name, field.type)
    try:
        kind, notes = kind_of(field.type), field.metadata or {}
    except UnicodeDecodeError as error:  # a zone, or the name of a field
        raise SchemaError(f"the type of column {field.name!r} has a name that is no UTF-8 text: {error}") from error
    if STORED_AS not in notes:
        return kind
    logical = json.loads(notes[LOGICAL]) if LOGICAL in notes else None
    return replace(kind, stored_as=notes[STORED_AS].decode(), stored_logical=logical)


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
