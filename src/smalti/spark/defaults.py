"""Values that stand in for nulls: given by a user, made what is stored, and checked before a row is read."""

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.arrow_columns import encode_column
from smalti.spark.types import Stored, casts, is_image

_ARROW = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "int": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("ns"),
}


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type in which Spark hands over a column of a type that can be stored."""
    family = kind.typeName().split("(")[0]
    if family in _ARROW:
        return _ARROW[family]
    if casts(kind):
        return pa.int32()
    if type(kind).__name__ == "DayTimeIntervalType":
        return pa.duration("us")
    if family == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if family == "array":
        return pa.list_(arrow_type(kind.elementType))
    if family == "map":
        return pa.map_(arrow_type(kind.keyType), arrow_type(kind.valueType))
    fields = kind.sqlType() if hasattr(kind, "sqlType") else kind
    return pa.struct([(field.name, arrow_type(field.dataType)) for field in fields.fields])


def default_value(name: str, kind: Any, stored: Stored, value: Any) -> pa.Array:
    """One value, as the encoding of the column takes it.

    Raises:
        SchemaError: it is no value of the column's type, or does not fit its encoding.
    """
    try:
        if hasattr(kind, "sqlType"):
            array = pa.array([list(value)], pa.large_list(pa.float64()))
        elif is_image(kind):
            raise SchemaError("images have no default; mark nulls with `mask`")
        else:
            array = pa.array([value], arrow_type(kind))
            if not _is_whole(value, array[0].as_py()):
                raise SchemaError("Arrow would change it")
            array = array if stored.convert is None else stored.convert(array)
        encode_column(parse_encoding(stored.encoding), array)
    except (SchemaError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(
            f"the default in `nulls` for column {name!r} is no {kind.simpleString()} that {stored.encoding} can hold: "
            f"{error}",
            column=name,
        ) from error
    return array


def _is_whole(value: Any, kept: Any) -> bool:
    """Whether Arrow kept all of a value: it cuts floats for integer columns, and times for columns of days."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict) and isinstance(kept, list):  # a map
        value = list(value.items())
    if isinstance(kept, list | tuple):
        return len(value) == len(kept) and all(map(_is_whole, value, kept))
    if isinstance(kept, dict):
        return bool(value.keys() <= kept.keys()) and all(_is_whole(value.get(name), kept[name]) for name in kept)
    if isinstance(kept, float):  # a float column rounds a default as it would round the number in a program
        return isinstance(value, int | float)
    if isinstance(kept, dt.datetime) and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value == kept.replace(tzinfo=None)
    return bool(value == kept)
