"""Columns as numpy: from Arrow as they are stored, and from the DataFrame that a transform returned."""

from typing import Any

import numpy as np
import pyarrow as pa

from smalti.compat.petastorm.schema import Field, Schema
from smalti.errors import SchemaError

Columns = dict[str, np.ndarray[Any, Any]]
"""By column, an array whose first axis counts rows; of objects where rows differ in shape, or hold text or bytes."""


def arrow_columns(table: pa.Table) -> Columns:
    """The columns of a table: numbers and lists of equal length as numbers, text, bytes, decimals as objects."""
    return {name: _values(_one(column)) for name, column in zip(table.column_names, table.columns, strict=True)}


def frame_columns(frame: Any, schema: Schema, num_rows: int) -> Columns:
    """The columns of what a transform returned, checked against what its spec declares.

    Raises:
        SchemaError: other columns, another number of rows, or values of another shape or type than declared.
    """
    names = [str(name) for name in frame.columns]
    if set(names) != set(schema.fields):
        raise SchemaError(
            f"transformed result columns ({', '.join(names)}) do not match the declared ones "
            f"({', '.join(schema.fields)}): name new ones in `edit_fields` and others in `removed_fields`."
        )
    if len(frame) != num_rows:
        raise SchemaError(
            f"`TransformSpec.func` returned {len(frame)} rows for {num_rows}: ranks could not take equally many steps. "
            "Leave rows out with `predicate` or `filters` instead."
        )
    return {name: _declared(frame[name], field) for name, field in schema.fields.items()}


def rows_of(columns: Columns) -> int:
    """How many rows these columns have."""
    return len(next(iter(columns.values()))) if columns else 0


def taken(columns: Columns, rows: Any) -> Columns:
    """These rows of the columns: a slice is a view, numbers of rows a copy."""
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
    """One array with a row for each list where all are equally long; else an array of arrays."""
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
    for at, value in enumerate(values):  # numpy would look into lists and arrays
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
    wanted = _number_type(field.numpy_dtype)
    if wanted is None or values.dtype == wanted:
        return _writable(values)
    if values.dtype == object or not np.can_cast(values.dtype, wanted, "same_kind"):
        raise SchemaError(
            f"column {field.name!r} of the transformed rows holds {values.dtype}, declared is {wanted}: return values "
            "of that type, or declare the type that is returned in `edit_fields`.",
            column=field.name,
        )
    return np.asarray(values.astype(wanted))


def _check_shapes(rows: list[np.ndarray[Any, Any]], field: Field) -> None:
    for row in rows:
        fits = len(row.shape) == len(field.shape) and all(
            want is None or want == found for want, found in zip(field.shape, row.shape, strict=True)
        )
        if not fits:
            raise SchemaError(
                f"column {field.name!r} of the transformed rows holds a value of shape {row.shape}, declared is "
                f"{field.shape}: name the column with its shape in `edit_fields`.",
                column=field.name,
            )


def _number_type(declared: Any) -> "np.dtype[Any] | None":
    if not (isinstance(declared, np.dtype) or (isinstance(declared, type) and issubclass(declared, np.generic))):
        return None
    kind = np.dtype(declared)
    return kind if kind.kind in "biufc" else None
