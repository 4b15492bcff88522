"""Arrow values as plain Python values, for the encodings that have no column-wise form; maps become objects."""

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from smalti.errors import SchemaError


def plain_values(array: pa.Array) -> list[Any]:
    """Every value as Python has it; a map becomes a dict.

    Raises:
        SchemaError: A map has a key twice; `row` says where.
    """
    values: list[Any] = array.to_pylist()
    if not _has_map(array.type):
        return values
    plain: list[Any] = []
    try:
        plain.extend(_plain(value, array.type) for value in values)
    except SchemaError as error:
        raise SchemaError(error.message, row=len(plain)) from error
    return plain


def _children(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(i).type for i in range(kind.num_fields)]


def _has_map(kind: pa.DataType) -> bool:
    return pt.is_map(kind) or any(_has_map(child) for child in _children(kind))


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pt.is_map(kind):
        obj = {key: _plain(item, kind.item_type) for key, item in value}
        if len(obj) != len(value):
            raise SchemaError("a map has a key twice, which JSON cannot hold.")
        return obj
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: _plain(value[field.name], field.type) for field in fields}
    return [_plain(item, kind.value_type) for item in value]
