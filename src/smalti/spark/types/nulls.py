"""What is done with nulls and with NaN, by column: refused, marked in a column beside, or replaced by a value.

Values that stand in for nulls: given by a user, made what is stored, and checked before a row is read.
"""

import base64
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.encodings.arrays import NdArray
from smalti.format.writing.arrow import encode_column
from smalti.spark.types.types import Stored, casts, is_image

_NAN = ("keep", "reject", "null")
_EXPECTED = (
    '"reject", "mask", or an object with at most one of "mask": true and "default": a value, and perhaps "nan": '
    '"keep", "reject" or "null"'
)
_PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP////////////////////////////////////////////////////////////////////////////////"
    "//////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)
"""One grey pixel each."""


@dataclass(frozen=True)
class NullPolicy:
    """What is done with the nulls of one column."""

    mask: bool = False
    """Mark them in a column beside; what stands in their place means nothing."""
    has_default: bool = False
    """Replace them by `default`."""
    default: Any = None
    nan: str = "keep"
    """Floats that are no numbers are kept as they are; `reject` refuses infinities too; `null` makes NaN a null."""


def parse_policies(nulls: str | Mapping[str, Any], names: Iterable[str]) -> dict[str, NullPolicy]:
    """The policy of each column.

    Args:
        nulls: one for all columns, or column to policy; columns that are not named are to have no null.
        names: of the columns that are stored.

    Raises:
        SchemaError: no such column or policy.
    """
    if isinstance(nulls, str):
        return dict.fromkeys(names, _policy(None, nulls))
    known = list(names)
    for name in nulls:
        if name not in known:
            raise SchemaError(f"`nulls` names {name!r}, the columns are {', '.join(known)}", column=name)
    return {name: _policy(name, nulls[name]) if name in nulls else NullPolicy() for name in known}


def _policy(name: str | None, asked: Any) -> NullPolicy:
    if asked in ("reject", "mask"):
        return NullPolicy(mask=asked == "mask")
    if isinstance(asked, Mapping):
        mask, nan = asked.get("mask", False), asked.get("nan", "keep")
        if asked.keys() <= {"mask", "default", "nan"} and isinstance(mask, bool) and nan in _NAN:
            has_default = "default" in asked
            if not (mask and has_default) and (not has_default or asked["default"] is not None):
                return NullPolicy(mask, has_default, asked.get("default"), nan)
    where = "" if name is None else f" for column {name!r}"
    raise SchemaError(f"`nulls`{where} is {asked!r:.200}; expected {_EXPECTED}", column=name)


def check_nan(policy: NullPolicy, array: pa.Array) -> pa.Array:
    """The column as the policy for floats that are no numbers wants it.

    Raises:
        SchemaError: it has one, and the policy is `reject`; `row` says where.
    """
    if policy.nan == "keep":
        return array
    if policy.nan == "null":
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    good = pc.fill_null(pc.is_finite(array), True)  # noqa: FBT003 - Arrow's signature
    if not pc.all(good).as_py():
        row = int(np.argmin(good.to_numpy(zero_copy_only=False)))
        raise SchemaError("NaN and infinities are refused by `nulls`: clean the column, or keep them.", row=row)
    return array


def fill(array: pa.Array, filler: pa.Array) -> pa.Array:
    """The column with its nulls replaced by the only value of `filler`."""
    value = filler.cast(array.type)
    if pt.is_nested(array.type):
        places = np.where(np.asarray(array.is_null()), len(array), np.arange(len(array)))
        return pa.concat_arrays([array, value]).take(pa.array(places))
    return pc.fill_null(array, value[0])


def filler_of(encoding: str, kind: pa.DataType) -> pa.Array:
    """One value that the encoding takes and that means nothing, to stand where a null is marked.

    Args:
        encoding: of the column.
        kind: the Arrow type of the values that it is given.
    """
    if encoding in ("png", "jpeg"):
        return pa.array([_PNG if encoding == "png" else _JPEG], kind)
    if _is_bytes(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray):
            return pa.array([codec.encode(np.zeros((1, 1, 1), np.uint8))], kind)
        return pa.array([b"null" if encoding == "json" else b""], kind)
    return pa.array([_zero(encoding, kind)], kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind))


def _zero(encoding: str, kind: pa.DataType) -> Any:
    if pt.is_list(kind) or pt.is_large_list(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray) and codec.shape is not None:
            return np.zeros(codec.shape).tolist()
        return [_zero(encoding, kind.value_type)]
    if pt.is_decimal(kind):
        return Decimal(0)
    return "" if pt.is_string(kind) or pt.is_large_string(kind) else 0


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
