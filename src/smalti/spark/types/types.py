"""What a column of each Spark type is stored as, decided before a row is read; the table is in `docs/types.md`.

By default nothing is lost: where the stored value alone does not say what it stands for, a logical type in the manifest
does. A number encoding that is asked for gives plain numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.spark.types.values import IMAGE_FIELDS, Convert, ImageBytes, JsonText, as_numbers, dense_vectors

_INTEGERS = {
    "byte": "int8", "tinyint": "int8", "short": "int16", "smallint": "int16", "integer": "int32", "int": "int32",
    "long": "int64", "bigint": "int64",
}  # fmt: skip
_FLOATS = {"float": "float32", "double": "float64"}
_INTEGER_CHOICES = ("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "str_int")
_FLOAT_CHOICES = ("float16", "float32", "float64", "str_float")
_NUMBERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "boolean": ("uint8", {"type": "bool"}),
    "date": ("int32", {"type": "date"}),
    "timestamp": ("int64", {"type": "timestamp", "unit": "us", "zone": "UTC"}),
    "timestamp_ntz": ("int64", {"type": "timestamp", "unit": "us", "zone": None}),
    "daytimeinterval": ("int64", {"type": "duration", "unit": "us"}),
    "time": ("int64", {"type": "time", "unit": "ns"}),
}
_MONTHS = {"type": "duration", "unit": "M"}
_ADVICE = {
    "interval": "a calendar interval has no fixed length: make it a day-time or a year-month interval",
    "variant": "take it apart with `variant_get`, or make it text with `to_json`",
    "void": "a column of nothing: leave it out, or cast it",
    "geometry": "make it binary with `st_asbinary`",
    "geography": "make it binary with `st_asbinary`",
}
_MATRIX = "take its `values` as an array of numbers, and its sizes as columns"
_OTHER_UDT = "a user-defined type: turn it into plain columns first"


@dataclass(frozen=True)
class Stored:
    """How a column is stored."""

    encoding: str
    logical: Mapping[str, Any] | None = None
    """What the stored values stand for; None where they stand for themselves."""
    convert: Convert | None = None
    """Spark's Arrow values to values that the encoding takes; None where they are that already."""


def stored_as(name: str, kind: Any, asked: str | None) -> Stored:
    """How a column is stored.

    Args:
        name: of the column.
        kind: its `pyspark.sql.types.DataType`.
        asked: the encoding that the user wants; None for the default.

    Raises:
        SchemaError: the type cannot be stored, or not so; the message says what to do.
    """
    default, choices = _default(name, kind)
    if asked is None:
        return default
    parse_encoding(asked)  # an unknown name is a different mistake from one that does not fit
    if asked not in choices and not ("ndarray" in choices and asked.startswith("ndarray:") and not is_image(kind)):
        raise SchemaError(
            f"column {name!r} of type {kind.simpleString()} cannot be stored as {asked!r}; it can be stored as "
            f"{', '.join(choices)}",
            column=name,
        )
    if asked == default.encoding == "json":
        return default
    if asked == "json" and kind.typeName() == "array":
        return _as_json(name, kind)
    return Stored(asked, None, ImageBytes(asked) if is_image(kind) else default.convert)


def casts(kind: Any) -> tuple[str, ...]:
    """What Spark must cast a column to first, one after the other, because Arrow cannot carry it."""
    return ("interval month", "int") if _is_months(kind) else ()


def is_image(kind: Any) -> bool:
    """Whether it is Spark's image schema, `pyspark.ml.image.ImageSchema`."""
    return kind.typeName() == "struct" and tuple(kind.fieldNames()) == IMAGE_FIELDS


def _default(name: str, kind: Any) -> tuple[Stored, tuple[str, ...]]:
    """The lossless way, and everything that may be asked for."""
    family = kind.typeName()
    if family in _INTEGERS:
        return Stored(_INTEGERS[family]), _INTEGER_CHOICES
    if family in _FLOATS:
        return Stored(_FLOATS[family]), _FLOAT_CHOICES
    if family in ("string", "char", "varchar"):
        return Stored("str"), ("str", "json")
    if family == "binary":
        return Stored("bytes"), ("bytes", "jpeg", "png")
    if family == "decimal":
        return Stored("str_decimal", _in_json(name, kind)), ("str_decimal",)
    if _is_months(kind):
        return Stored("int32", _MONTHS), _INTEGER_CHOICES
    if (number := _number(kind)) is not None:
        return Stored(*number, as_numbers), _INTEGER_CHOICES
    if family == "array":
        return _array(name, kind)
    if is_image(kind):
        pixels = Stored("ndarray:uint8", {"type": "image", "channels": "BGR"}, ImageBytes("ndarray:uint8"))
        return pixels, ("ndarray", "ndarray:uint8", "png")
    if family in ("struct", "map"):
        return _as_json(name, kind), ("json",)
    if _udt(kind).endswith(".VectorUDT"):
        return Stored("ndarray:float64", {"type": "vector"}, dense_vectors), ("ndarray", "ndarray:float64")
    raise _refused(name, name, kind)


def _number(kind: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Encoding and logical type of what is a number for numpy."""
    name = type(kind).__name__.removesuffix("Type").lower()  # an interval's `typeName` says its fields
    return _NUMBERS.get(name) or _NUMBERS.get(kind.typeName().split("(")[0])


def _is_months(kind: Any) -> bool:
    return type(kind).__name__ == "YearMonthIntervalType"


def _udt(kind: Any) -> str:
    """Where a user-defined type of Spark's own comes from; empty for every other type."""
    module = type(kind).__module__
    return f"{module}.{type(kind).__name__}" if module in ("pyspark.ml.linalg", "pyspark.mllib.linalg") else ""


def _array(name: str, kind: Any) -> tuple[Stored, tuple[str, ...]]:
    element = kind.elementType
    while element.typeName() == "array":
        element = element.elementType
    dtype = (_INTEGERS | _FLOATS).get(element.typeName())
    if dtype is not None:
        return Stored(f"ndarray:{dtype}"), ("ndarray", f"ndarray:{dtype}", "json")
    number = _number(element)
    if number is None:
        return _as_json(name, kind), ("json",)
    encoding, logical = number
    stored = Stored(f"ndarray:{encoding}", {"type": "array", "of": logical}, as_numbers)
    return stored, ("ndarray", f"ndarray:{encoding}", "json")


def _as_json(name: str, kind: Any) -> Stored:
    described = _in_json(name, kind)
    return Stored("json", described, JsonText(described))


def _in_json(path: str, kind: Any, column: str | None = None) -> Mapping[str, Any]:
    """The type of a value within JSON, as the manifest describes it."""
    column, family = column or path, kind.typeName()
    if family in _INTEGERS:
        return {"type": "int"}
    if family in _FLOATS:
        return {"type": "float"}
    if family in ("string", "char", "varchar"):
        return {"type": "text"}
    if family == "binary":
        return {"type": "binary"}
    if family == "decimal":
        return {"type": "decimal", "precision": kind.precision, "scale": kind.scale}
    if not _is_months(kind) and (number := _number(kind)) is not None:
        return number[1]
    if family == "array":
        return {"type": "list", "of": _in_json(f"{path}[]", kind.elementType, column)}
    if family == "map":
        keys, values = f"{path}.keys", f"{path}.values"
        if kind.keyType.typeName() in ("array", "struct", "map"):
            raise _refused(column, keys, kind.keyType, "keys of a dict are single values: store it as an array")
        return {
            "type": "map",
            "keys": _in_json(keys, kind.keyType, column),
            "values": _in_json(values, kind.valueType, column),
        }
    if family == "struct":
        names = kind.fieldNames()
        if len(set(names)) < len(names):
            raise _refused(column, path, kind, "two fields have one name: rename one")
        return {
            "type": "struct",
            "fields": {each.name: _in_json(f"{path}.{each.name}", each.dataType, column) for each in kind.fields},
        }
    raise _refused(column, path, kind)


def _refused(column: str, path: str, kind: Any, advice: str | None = None) -> SchemaError:
    family = kind.typeName().split("(")[0]
    if advice is None and _is_months(kind):
        advice = "make it a column of its own, or a number of months"
    if advice is None and hasattr(kind, "sqlType"):
        advice = _MATRIX if _udt(kind).endswith(".MatrixUDT") else _OTHER_UDT
        if _udt(kind).endswith(".VectorUDT"):
            advice = "make it a column of its own, or an array with `vector_to_array`"
    advice = advice or _ADVICE.get(family) or "leave it out, or cast it to a string, a number or binary first"
    where = f"column {column!r}" if path == column else f"column {column!r}, at {path},"
    return SchemaError(f"{where} has type {kind.simpleString()}, which cannot be stored; {advice}", column=column)
