"""Columns as a reader hands them over: names, numpy types, shapes; and the choice of some by patterns."""

import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from smalti.compat.petastorm.transform import RowTransform
from smalti.errors import SchemaError


@dataclass(frozen=True)
class Field:
    """One column."""

    name: str
    numpy_dtype: Any
    """A numpy scalar type, `Decimal`, `str` or `bytes`; `object` for structs and maps."""
    shape: tuple[int | None, ...] = ()
    """Of one row's value; None where it varies."""
    nullable: bool = True


class Schema:
    """The columns of a reader, in order; `fields` by name."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields: OrderedDict[str, Field] = OrderedDict((field.name, field) for field in fields)

    @cached_property
    def namedtuple(self) -> Any:
        """The class of a batch.

        Raises:
            SchemaError: a column's name is no Python name.
        """
        try:
            return namedtuple("Batch", list(self.fields))
        except ValueError as error:
            raise SchemaError(
                f"batches cannot be namedtuples here: {error}. Rename the column, leave it out with `schema_fields`, "
                "or use `reader.batches()` or a DataLoader, which hand over dicts."
            ) from error


def stored_schema(schema: pa.Schema) -> Schema:
    """The columns as they are stored."""
    return Schema([Field(each.name, *_numpy_type(each.type), each.nullable) for each in schema])


def chosen_columns(names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """The names that match one of the patterns whole, in stored order; all without patterns.

    Raises:
        ValueError: not a list of regular expressions.
        SchemaError: no column matches.
    """
    if patterns is None:
        return list(names)
    if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
        raise ValueError(
            f"`schema_fields` must be a list of regular expressions, found {patterns!r}; NGram and Unischema fields "
            "are not taken over (docs/petastorm.md)."
        )
    try:
        wanted = [re.compile(each) for each in patterns]
    except re.error as error:
        raise ValueError(f"`schema_fields`: {error.pattern!r} is no regular expression: {error}.") from error
    chosen = [name for name in names if any(pattern.fullmatch(name) for pattern in wanted)]
    if not chosen:
        raise SchemaError(
            f"no column matches `schema_fields` {list(patterns)}; there are {', '.join(names)}. A pattern must match a "
            "name whole."
        )
    return chosen


def transformed_schema(schema: Schema, spec: RowTransform) -> Schema:
    """The columns after a transform, as its spec declares them."""
    removed, edited = set(spec.removed_fields), {each[0] for each in spec.edit_fields}
    if unknown := removed - set(schema.fields):
        warnings.warn(f"`removed_fields` names columns that are not there: {', '.join(sorted(unknown))}.", stacklevel=4)
    fields = [field for name, field in schema.fields.items() if name not in removed | edited]
    fields += [Field(name, dtype, tuple(shape), nullable) for name, dtype, shape, nullable in spec.edit_fields]
    if spec.selected_fields is None:
        return Schema(fields)
    by_name = {field.name: field for field in fields}
    if unknown := set(spec.selected_fields) - set(by_name):
        warnings.warn(
            f"`selected_fields` names columns that are not there: {', '.join(sorted(unknown))}.", stacklevel=4
        )
    return Schema([by_name[name] for name in spec.selected_fields if name in by_name])


def _numpy_type(kind: pa.DataType) -> tuple[Any, tuple[None, ...]]:
    from decimal import Decimal

    if pa.types.is_dictionary(kind):
        return _numpy_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner, shape = _numpy_type(kind.value_type)
        return inner, (None, *shape)
    if pa.types.is_decimal(kind):
        return Decimal, ()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str, ()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return bytes, ()
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or pa.types.is_null(kind) or pa.types.is_interval(kind):
        return object, ()
    return kind.to_pandas_dtype() if not pa.types.is_temporal(kind) else _temporal(kind), ()


def _temporal(kind: pa.DataType) -> Any:
    import numpy as np

    return object if pa.types.is_time(kind) else np.timedelta64 if pa.types.is_duration(kind) else np.datetime64
