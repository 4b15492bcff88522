"""Nulls and NaN: the policy of each column, and the values that are stored where a null was.

A policy refuses nulls, marks them in a column of masks, or replaces them by a default. Defaults come from the caller;
they are converted as the column's values are, and checked before a row is read.
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
from smalti.format.encodings.numbers import NdArray
from smalti.format.writing.arrow import encode_column
from smalti.spark.types.types import Stored, has_nan, is_image

_NAN = ("keep", "reject", "null")
_EXPECTED = (
    '"reject", "mask", or an object with at most one of "mask": true and "default": a value, and perhaps "nan": '
    '"keep", "reject" or "null"'
)
_PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
"""An image of one grey pixel."""
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP////////////////////////////////////////////////////////////////////////////////"
    "//////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)
"""The same as JPEG."""


@dataclass(frozen=True)
class NullPolicy:
    """The treatment of nulls and NaN in one column."""

    mask: bool = False
    """True if nulls are marked in a second column; the value stored in place of a marked null has no meaning."""
    has_default: bool = False
    """True if nulls are replaced by `default`."""
    default: Any = None
    nan: str = "keep"
    """`keep` stores NaN and infinities as they are, `reject` refuses both, `null` turns NaN into null."""


def parse_policies(nulls: str | Mapping[str, Any], names: Iterable[str]) -> dict[str, NullPolicy]:
    """Return the policy of each column.

    Args:
        nulls: One policy for all columns, or column to policy; columns that are not named refuse nulls.
        names: Columns that are stored.

    Raises:
        SchemaError: There is no such column or policy.
    """
    if isinstance(nulls, str):
        return dict.fromkeys(names, _parse_policy(None, nulls))
    known = list(names)
    for name in nulls:
        if name not in known:
            raise SchemaError(f"`nulls` names {name!r}, the columns are {', '.join(known)}", column=name)
    return {name: _parse_policy(name, nulls[name]) if name in nulls else NullPolicy() for name in known}


def _parse_policy(name: str | None, choice: Any) -> NullPolicy:
    if choice in ("reject", "mask"):
        return NullPolicy(mask=choice == "mask")
    if isinstance(choice, Mapping):
        mask, nan = choice.get("mask", False), choice.get("nan", "keep")
        if choice.keys() <= {"mask", "default", "nan"} and isinstance(mask, bool) and nan in _NAN:
            has_default = "default" in choice
            if not (mask and has_default) and (not has_default or choice["default"] is not None):
                return NullPolicy(mask, has_default, choice.get("default"), nan)
    where = "" if name is None else f" for column {name!r}"
    raise SchemaError(f"`nulls`{where} is {choice!r:.200}; expected {_EXPECTED}", column=name)


def plan_filler(name: str, kind: Any, stored: Stored, policy: NullPolicy) -> pa.Array | None:
    """Return the one value that is stored in place of a column's nulls; None where nulls are refused.

    Args:
        name: Name of the column.
        kind: Its `pyspark.sql.types.DataType`.
        stored: How its values are stored.
        policy: Its policy.

    Raises:
        SchemaError: The policy is about NaN and the type has none; or the default does not fit type or encoding.
    """
    if policy.nan != "keep" and not has_nan(kind):
        raise SchemaError(
            f"`nulls` for column {name!r} says what to do with NaN, and {kind.simpleString()} has none", column=name
        )
    if policy.has_default:
        return _default_value(name, kind, stored, policy.default)
    if not policy.mask:
        return None
    null = pa.array([None], stored.arrow)
    return _placeholder(stored.encoding, null.type if stored.convert is None else stored.convert(null).type)


def check_nan(policy: NullPolicy, array: pa.Array) -> pa.Array:
    """Return the column after its policy for NaN and infinities.

    Raises:
        SchemaError: The column has one, and the policy is `reject`; the fact `row` is the first.
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
    """Return the column with its nulls replaced by the only value of `filler`."""
    value = filler.cast(array.type)
    if pt.is_nested(array.type):
        places = np.where(np.asarray(array.is_null()), len(array), np.arange(len(array)))
        return pa.concat_arrays([array, value]).take(pa.array(places))
    return pc.fill_null(array, value[0])


def _placeholder(encoding: str, kind: pa.DataType) -> pa.Array:
    """Return one value that the encoding accepts, to be stored in place of a marked null."""
    if encoding in ("png", "jpeg"):
        return pa.array([_PNG if encoding == "png" else _JPEG], kind)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray):
            return pa.array([codec.encode(np.zeros((1, 1, 1), np.uint8))], kind)
        return pa.array([b"null" if encoding == "json" else b""], kind)
    return pa.array([_zero(encoding, kind)], kind)


def _zero(encoding: str, kind: pa.DataType) -> Any:
    if pt.is_list(kind) or pt.is_large_list(kind):
        codec = parse_encoding(encoding)
        if isinstance(codec, NdArray) and codec.shape is not None:
            return np.zeros(codec.shape).tolist()
        return [_zero(encoding, kind.value_type)]
    if pt.is_decimal(kind):
        return Decimal(0)
    return "" if pt.is_string(kind) or pt.is_large_string(kind) else 0


def _default_value(name: str, kind: Any, stored: Stored, value: Any) -> pa.Array:
    """Return the caller's default as the encoding of the column takes it, after checking that it fits."""
    try:
        if hasattr(kind, "sqlType"):
            array = pa.array([list(value)], pa.large_list(pa.float64()))
        elif is_image(kind):
            raise SchemaError("images have no default; mark nulls with `mask`")
        else:
            array = pa.array([value], stored.arrow)
            if not _is_unchanged(value, array[0].as_py()):
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


def _is_unchanged(value: Any, converted: Any) -> bool:
    """Return whether Arrow kept a value: it truncates floats for integer columns, and times for columns of dates."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict) and isinstance(converted, list):  # a map
        value = list(value.items())
    if isinstance(converted, list | tuple):
        return len(value) == len(converted) and all(map(_is_unchanged, value, converted))
    if isinstance(converted, dict):
        return bool(value.keys() <= converted.keys()) and all(
            _is_unchanged(value.get(name), converted[name]) for name in converted
        )
    if isinstance(converted, float):  # a default is rounded to the column's precision as a literal would be
        return isinstance(value, int | float)
    if isinstance(converted, dt.datetime) and isinstance(value, dt.datetime) and value.tzinfo is None:
        return value == converted.replace(tzinfo=None)
    return bool(value == converted)
