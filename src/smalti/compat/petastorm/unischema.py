"""Schema of a reader: names, numpy types and shapes of columns, and their conversion to numpy arrays.

Here: the selection of columns by patterns, the schema after a transform, and arrays from Arrow tables and from the
DataFrames that a transform returns.
"""

import re
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
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
    """Shape of the value of one row; None for a dimension that varies."""
    nullable: bool = True


class Schema:
    """The columns of a reader, in order; `fields` by name."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields: OrderedDict[str, Field] = OrderedDict((field.name, field) for field in fields)

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


def stored_schema(schema: pa.Schema) -> Schema:
    """Return the schema of the stored columns."""
    return Schema([Field(each.name, *_numpy_type(each.type), each.nullable) for each in schema])


def chosen_columns(names: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    """Return the names that fully match one of the patterns, in stored order; all names without patterns.

    Raises:
        ValueError: `patterns` is not a list of regular expressions.
        SchemaError: no column matches.
    """
    if patterns is None:
        return list(names)
    if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
        raise ValueError(
            f"`schema_fields` must be a list of regular expressions, found {patterns!r}; NGram and Unischema fields "
            "are not supported (docs/petastorm.md)."
        )
    try:
        compiled = [re.compile(each) for each in patterns]
    except re.error as error:
        raise ValueError(f"`schema_fields`: {error.pattern!r} is not a regular expression: {error}.") from error
    chosen = [name for name in names if any(pattern.fullmatch(name) for pattern in compiled)]
    if not chosen:
        raise SchemaError(
            f"no column matches `schema_fields` {list(patterns)}; the columns are {', '.join(names)}. A pattern must "
            "match the full name."
        )
    return chosen


def transformed_schema(schema: Schema, spec: RowTransform) -> Schema:
    """Return the schema after a transform, as its spec declares it."""
    removed, edited = set(spec.removed_fields), {each[0] for each in spec.edit_fields}
    if unknown := removed - set(schema.fields):
        warnings.warn(f"`removed_fields` names unknown columns: {', '.join(sorted(unknown))}.", stacklevel=4)
    fields = [field for name, field in schema.fields.items() if name not in removed | edited]
    fields += [Field(name, dtype, tuple(shape), nullable) for name, dtype, shape, nullable in spec.edit_fields]
    if spec.selected_fields is None:
        return Schema(fields)
    by_name = {field.name: field for field in fields}
    if unknown := set(spec.selected_fields) - set(by_name):
        warnings.warn(f"`selected_fields` names unknown columns: {', '.join(sorted(unknown))}.", stacklevel=4)
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


Columns = dict[str, np.ndarray[Any, Any]]
"""Array by column name. The first axis is the row; dtype object for text, bytes, and values of different shapes."""


def arrow_columns(table: pa.Table) -> Columns:
    """Return the columns of a table: numbers and lists of equal length as numbers, text, bytes, decimals as objects."""
    return {name: _values(_one(column)) for name, column in zip(table.column_names, table.columns, strict=True)}


def frame_columns(frame: Any, schema: Schema, num_rows: int) -> Columns:
    """Return the columns of the result of a transform, checked against its spec.

    Raises:
        SchemaError: other columns, another number of rows, or values of another shape or type than declared.
    """
    names = [str(name) for name in frame.columns]
    if set(names) != set(schema.fields):
        raise SchemaError(
            f"transformed result columns ({', '.join(names)}) do not match the declared ones "
            f"({', '.join(schema.fields)}): list new columns in `edit_fields` and removed ones in `removed_fields`."
        )
    if len(frame) != num_rows:
        raise SchemaError(
            f"`TransformSpec.func` returned {len(frame)} rows for {num_rows}: ranks could not take equally many steps. "
            "Select rows with `predicate` or `filters` instead."
        )
    return {name: _declared(frame[name], field) for name, field in schema.fields.items()}


def rows_of(columns: Columns) -> int:
    """Return the number of rows of these columns."""
    return len(next(iter(columns.values()))) if columns else 0


def taken(columns: Columns, rows: Any) -> Columns:
    """Return rows of the columns: a view for a slice, a copy for row numbers."""
    return {name: values[rows] for name, values in columns.items()}


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        array = column.chunk(0)
    else:
        array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _values(array: pa.Array) -> np.ndarray[Any, Any]:
    kind = array.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(array)
    numbers = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if pa.types.is_floating(kind) or (numbers and not array.null_count):
        return _writable(array.to_numpy(zero_copy_only=False))
    if (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind)) and not array.null_count:
        return _writable(array.to_numpy(zero_copy_only=False))
    return _objects(array.to_pylist())


def _lists(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return one array with a row per list if all have the same length; else an array of arrays."""
    if array.null_count:
        return _objects([None if each is None else np.asarray(each) for each in array.to_pylist()])
    fixed = pa.types.is_fixed_size_list(array.type)
    inner = _values(array.flatten())
    lengths = np.full(len(array), array.type.list_size) if fixed else array.value_lengths().to_numpy()
    if len(lengths) and (lengths == lengths[0]).all():
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    return _objects(np.split(inner, np.cumsum(lengths)[:-1]) if len(lengths) else [])


def _objects(values: list[Any]) -> np.ndarray[Any, Any]:
    made = np.empty(len(values), dtype=object)
    for at, value in enumerate(values):  # np.array() would unpack lists and arrays
        made[at] = value
    return made


def _writable(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values if values.flags.writeable else values.copy()


def _declared(series: Any, field: Field) -> np.ndarray[Any, Any]:
    values = series.to_numpy()
    if values.dtype == object and len(values) and isinstance(values[0], np.ndarray | list | tuple):
        rows = [np.asarray(value) for value in values]
        _check_shapes(rows, field)
        if any(row.shape != rows[0].shape for row in rows):
            return _objects(rows)
        values = np.stack(rows)
    dtype = _number_type(field.numpy_dtype)
    if dtype is None or values.dtype == dtype:
        return _writable(values)
    if values.dtype == object or not np.can_cast(values.dtype, dtype, "same_kind"):
        raise SchemaError(
            f"column {field.name!r} of the transformed rows holds {values.dtype}, declared is {dtype}: return values "
            "of that type, or declare the returned type in `edit_fields`.",
            column=field.name,
        )
    return np.asarray(values.astype(dtype))


def _check_shapes(rows: list[np.ndarray[Any, Any]], field: Field) -> None:
    for row in rows:
        fits = len(row.shape) == len(field.shape) and all(
            want is None or want == found for want, found in zip(field.shape, row.shape, strict=True)
        )
        if not fits:
            raise SchemaError(
                f"column {field.name!r} of the transformed rows holds a value of shape {row.shape}, declared is "
                f"{field.shape}: declare the column with its shape in `edit_fields`.",
                column=field.name,
            )


def _number_type(declared: Any) -> "np.dtype[Any] | None":
    if not (isinstance(declared, np.dtype) or (isinstance(declared, type) and issubclass(declared, np.generic))):
        return None
    kind = np.dtype(declared)
    return kind if kind.kind in "biufc" else None
