"""Columns of numpy arrays, made from Arrow tables and from the DataFrames that a transform returns."""

from typing import Any

import numpy as np
import pyarrow as pa

from smalti.compat.petastorm.unischema import Unischema, UnischemaField
from smalti.errors import SchemaError

Columns = dict[str, np.ndarray[Any, Any]]
"""Array by column name. The first axis is the row; dtype object for text, bytes, and values of different shapes."""


def arrow_columns(table: pa.Table) -> Columns:
    """Return the columns of a table: numbers and lists of equal length as numbers, text, bytes, decimals as objects."""
    return {name: _values(_one(column)) for name, column in zip(table.column_names, table.columns, strict=True)}


def frame_columns(frame: Any, schema: Unischema, num_rows: int) -> Columns:
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


def _declared(series: Any, field: UnischemaField) -> np.ndarray[Any, Any]:
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


def _check_shapes(rows: list[np.ndarray[Any, Any]], field: UnischemaField) -> None:
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
