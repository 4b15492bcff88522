"""Unischema and UnischemaField: names, numpy types and shapes of columns, and their selection by patterns.

A reader's `schema` is a Unischema of the columns that it yields. Not here: Petastorm's pickled
schemas, and Spark's types.
"""

import re
from collections import OrderedDict, namedtuple
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from smalti.compat.petastorm.errors import NoMatchingFields
from smalti.compat.petastorm.refused import SCHEMA_INSTEAD, WRITE_INSTEAD, refused_function
from smalti.errors import SchemaError

_OBJECTS = (pa.types.is_struct, pa.types.is_map, pa.types.is_null, pa.types.is_interval, pa.types.is_time)
"""Types whose values are Python's objects."""

dict_to_spark_row = refused_function("dict_to_spark_row", WRITE_INSTEAD)
insert_explicit_nulls = refused_function("insert_explicit_nulls", WRITE_INSTEAD)


class UnischemaField(NamedTuple):
    """One column. Fields are equal if everything but their codec is."""

    name: str
    numpy_dtype: Any
    """A numpy scalar type, `Decimal`, `str` or `bytes`; `object` for structs and maps."""
    shape: tuple[int | None, ...]
    """Shape of the value of one row; None for a dimension that varies."""
    codec: Any = None
    """Decoder of stored bytes, of `codecs`; readers do not apply it."""
    nullable: bool | None = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnischemaField) and self._key() == other._key()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.name, self.numpy_dtype, tuple(self.shape), self.nullable


class Unischema:
    """Named columns, in order; each column is also an attribute."""

    def __init__(self, name: str, fields: Sequence[UnischemaField]) -> None:
        self._name = name
        self._fields = OrderedDict((field.name, field) for field in fields)  # Petastorm's name, which programs read

    @property
    def fields(self) -> "OrderedDict[str, UnischemaField]":
        """Columns by name."""
        return self._fields

    def __getattr__(self, name: str) -> UnischemaField:
        fields: dict[str, UnischemaField] = self.__dict__.get("_fields", {})  # empty while an instance is unpickled
        if name not in fields:
            raise AttributeError(f"the schema has no column {name!r}; its columns are {', '.join(fields)}.")
        return fields[name]

    def __str__(self) -> str:
        lines = "".join(f"  {field!r},\n" for field in self.fields.values())
        return f"Unischema({self._name}, [\n{lines}])"

    def create_schema_view(self, fields: Sequence[str | UnischemaField]) -> "Unischema":
        """Return the schema of those columns that are given as fields or match a regular expression.

        Raises:
            ValueError: `fields` has other elements, or a field of another schema.
        """
        return Unischema(f"{self._name}_view", [self.fields[name] for name in _matching(self.fields, fields)])

    @cached_property
    def namedtuple(self) -> Any:
        """Namedtuple class of a batch.

        Raises:
            SchemaError: the name of a column is not a Python identifier.
        """
        try:
            return namedtuple("Batch", list(self.fields))
        except ValueError as error:
            raise SchemaError(
                f"batches cannot be namedtuples: {error}. Rename the column, exclude it with `schema_fields`, "
                "or use `reader.batches()` or a DataLoader, which return dicts."
            ) from error

    as_spark_schema = refused_function("as_spark_schema", WRITE_INSTEAD)
    from_arrow_schema = staticmethod(refused_function("from_arrow_schema", SCHEMA_INSTEAD))

    def make_namedtuple(self, **kargs: Any) -> Any:
        """Return a namedtuple of values by column."""
        return self.namedtuple(**kargs)


def match_unischema_fields(schema: Unischema, field_regex: Sequence[str]) -> list[UnischemaField]:
    """Return the fields whose full name matches one of the regular expressions, in the schema's order."""
    return [schema.fields[name] for name in _matching(schema.fields, field_regex or [])]


def stored_schema(schema: pa.Schema) -> Unischema:
    """Return the schema of the stored columns."""
    fields = [UnischemaField(each.name, *_numpy_type(each.type), None, each.nullable) for each in schema]
    return Unischema("stored", fields)


def chosen_columns(names: Sequence[str], patterns: Sequence[str | UnischemaField] | None) -> list[str]:
    """Return the names that are fields of the list or fully match one of its patterns, in stored order; else all.

    Raises:
        ValueError: `patterns` is not a list of regular expressions and fields, or has the field of another schema.
        NoMatchingFields: no column matches.
    """
    if patterns is None:
        return list(names)
    chosen = _matching(names, patterns)
    if not patterns:  # as in Petastorm
        return list(names)
    if not chosen:
        raise NoMatchingFields(
            f"no column matches `schema_fields` {list(patterns)}; the columns are {', '.join(names)}. A pattern must "
            "match the full name."
        )
    return chosen


def _matching(names: Collection[str], patterns: Any) -> list[str]:
    """Return the names that are fields of the list or fully match one of its patterns, in their own order."""
    is_list = isinstance(patterns, Iterable) and not isinstance(patterns, str)
    if not is_list or not all(isinstance(each, str | UnischemaField) for each in patterns):
        raise ValueError(
            f"`schema_fields` must be a list of regular expressions or UnischemaFields, found {patterns!r}; NGram is "
            "not supported (docs/petastorm.md)."
        )
    unknown = [each.name for each in patterns if isinstance(each, UnischemaField) and each.name not in names]
    if unknown:
        raise ValueError(
            f"there is no column {unknown[0]!r}, which `schema_fields` names: the field does not belong to the schema, "
            f"whose columns are {', '.join(names)}."
        )
    texts = [re.escape(each.name) if isinstance(each, UnischemaField) else each for each in patterns]
    try:
        compiled = [re.compile(each) for each in texts]
    except re.error as error:
        raise ValueError(f"`schema_fields`: {error.pattern!r} is not a regular expression: {error}.") from error
    return [name for name in names if any(pattern.fullmatch(name) for pattern in compiled)]


def fits_shape(shape: tuple[int, ...], declared: Sequence[int | None]) -> bool:
    """Return whether an array has the declared shape; None stands for any size of an axis."""
    return len(shape) == len(declared) and all(
        side is None or side == found for side, found in zip(declared, shape, strict=True)
    )


def _numpy_type(kind: pa.DataType) -> tuple[Any, tuple[None, ...]]:
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
    if any(is_of(kind) for is_of in _OBJECTS):
        return object, ()
    if pa.types.is_temporal(kind):
        return np.timedelta64 if pa.types.is_duration(kind) else np.datetime64, ()
    return kind.to_pandas_dtype(), ()
