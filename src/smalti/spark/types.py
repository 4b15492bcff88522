"""From Spark's types to encodings: what each column is stored as, decided before a row is read.

byte short int long   int8 int16 int32 int64    or any integer encoding, `int`, `str_int`; each value must fit exactly
float double          float32 float64           or any float encoding, `str_float`; each value must fit exactly
boolean               only as asked             int8, uint8
string                str                       or json
binary                bytes                     or jpeg, png: the header of each value is checked
decimal               str_decimal
array of numbers      ndarray:<element type>    nested too; or `ndarray`, `ndarray:<dtype>:<shape>`, json
struct map            only as asked             json
anything else         refused
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from smalti.errors import SchemaError
from smalti.format import Schema, parse_encoding

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_INTEGERS = {
    "byte": "int8",
    "tinyint": "int8",
    "short": "int16",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
}
_FLOATS = {"float": "float32", "double": "float64"}
_INTEGER_CHOICES = ("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "str_int")
_FLOAT_CHOICES = ("float16", "float32", "float64", "str_float")


def plan_columns(schema: "StructType", columns: Mapping[str, str | None] | None) -> dict[str, str]:
    """Name to encoding of every column that is stored.

    Args:
        schema: of the DataFrame.
        columns: the columns to store, each with its encoding or None for its default; None stores all.

    Raises:
        SchemaError: a column is not there, twice there, or of a type that cannot be stored so; the message says what
            to do about it.
    """
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SchemaError(f"the DataFrame has column {twice[0]!r} more than once; rename or drop one", column=twice[0])
    for name in columns or {}:
        if name not in names:
            raise SchemaError(f"`columns` names {name!r}, the DataFrame has {', '.join(names)}", column=name)
    asked: Mapping[str, str | None] = columns if columns is not None else dict.fromkeys(names)
    planned = {name: _encoding_of(name, schema[name].dataType, asked[name]) for name in asked}
    Schema.from_columns(planned)
    return planned


def _encoding_of(name: str, kind: Any, asked: str | None) -> str:
    default, choices, advice = _offers(kind)
    if asked is None:
        if default is None:
            raise SchemaError(f"column {name!r} has type {kind.simpleString()}, {advice}", column=name)
        return default
    parse_encoding(asked)  # an unknown name is a different mistake from one that does not fit
    if asked in choices or ("ndarray" in choices and asked.startswith("ndarray:")):
        return asked
    known = f"it can be stored as {', '.join(choices)}" if choices else advice
    raise SchemaError(
        f"column {name!r} of type {kind.simpleString()} cannot be stored as {asked!r}; {known}", column=name
    )


def _offers(kind: Any) -> tuple[str | None, tuple[str, ...], str]:
    """Default encoding, everything that may be asked for, and what to do where there is no default."""
    text, family = kind.simpleString(), kind.typeName()
    if text in _INTEGERS:
        return _INTEGERS[text], _INTEGER_CHOICES, ""
    if text in _FLOATS:
        return _FLOATS[text], _FLOAT_CHOICES, ""
    if text == "boolean":
        return (
            None,
            ("int8", "uint8"),
            "which MDS has no encoding for; name it in `columns` as uint8",
        )
    if family in ("string", "char", "varchar"):
        return "str", ("str", "json"), ""
    if text == "binary":
        return "bytes", ("bytes", "jpeg", "png"), ""
    if family == "decimal":
        return "str_decimal", ("str_decimal",), ""
    if family == "array":
        return _offers_for_array(kind)
    if family in ("struct", "map"):
        return None, ("json",), "which is stored only as JSON, and only when asked for; name it in `columns` as json"
    if family == "udt" or hasattr(kind, "sqlType"):
        return None, (), "a user-defined type; turn it into plain columns first (ML vectors: vector_to_array)"
    return None, (), "which cannot be stored; leave it out, or cast it to a string or number first"


def _offers_for_array(kind: Any) -> tuple[str | None, tuple[str, ...], str]:
    element = kind.elementType
    while element.typeName() == "array":
        element = element.elementType
    dtype = {**_INTEGERS, **_FLOATS}.get(element.simpleString())
    if dtype is None:
        return None, ("json",), "an array of no numbers, which is stored only as JSON; name it in `columns` as json"
    return f"ndarray:{dtype}", ("ndarray", f"ndarray:{dtype}", "json"), ""
