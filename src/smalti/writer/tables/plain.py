"""Arrow's types without what only changes how values are laid out in memory, and arrays in such types.

Dictionaries, run-end encoding, extension types, views, fixed sizes and 64-bit offsets are such layouts. Lists are built
anew and not cast: pyarrow 26 casts list views to lists whose offsets lead out of their memory.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError

_MAX_OFFSET = (1 << 31) - 1
_MAX_DEPTH = 128


def check_depth(name: str, arrow: pa.DataType) -> None:
    """Return only if the type of a column is not nested so deeply that functions that call themselves fail.

    Raises:
        SchemaError: It is.
    """
    level = [arrow]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return
    raise SchemaError(f"column {name!r} is nested too deeply to be stored; take it apart into columns", column=name)


def _children(arrow: pa.DataType) -> list[pa.DataType]:
    if isinstance(arrow, pa.BaseExtensionType):
        return [arrow.storage_type]
    if pt.is_dictionary(arrow):
        return [arrow.value_type]
    return [arrow.field(place).type for place in range(arrow.num_fields)]


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type without layouts.

    Raises:
        SchemaError: The name of a field is no text.
    """
    if isinstance(arrow, pa.BaseExtensionType):
        return plain_type(arrow.storage_type)
    if pt.is_dictionary(arrow) or pt.is_run_end_encoded(arrow):
        return plain_type(arrow.value_type)
    if pt.is_string_view(arrow) or pt.is_large_string(arrow):
        return pa.string()
    if pt.is_binary_view(arrow) or pt.is_large_binary(arrow) or pt.is_fixed_size_binary(arrow):
        return pa.binary()
    if _is_list(arrow):
        return pa.list_(plain_type(arrow.value_type))
    if pt.is_map(arrow):
        return pa.map_(plain_type(arrow.key_type), plain_type(arrow.item_type))
    if pt.is_struct(arrow):
        return pa.struct([(_name_of(field), plain_type(field.type)) for field in arrow])
    return arrow


def _name_of(field: pa.Field) -> str:
    try:
        return str(field.name)
    except UnicodeDecodeError as error:
        raise SchemaError(f"a struct has a field whose name is no UTF-8 text ({error}); rename it") from error


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in plain types.

    Raises:
        SchemaError: A column is nested too deeply, or its values are too long; the message begins with its name.
    """
    columns = [_plain_column(field.name, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
    if all(plain is column for plain, column in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _plain_column(name: str, column: pa.Array) -> pa.Array:
    check_depth(name, column.type)
    try:
        return plain_array(column)
    except pa.ArrowException as error:
        raise SchemaError(f"column {name!r}: {error}", column=name) from error


def plain_array(array: pa.Array) -> pa.Array:
    """Return the values in their plain type.

    Raises:
        ArrowException: They are too long for it.
    """
    kind = array.type
    if kind == plain_type(kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return plain_array(array.storage)
    if pt.is_dictionary(kind):
        return plain_array(array.dictionary_decode())
    if pt.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array))
    if _is_list(kind):
        values = plain_array(array.flatten())
        return pa.ListArray.from_arrays(_offsets(pc.list_value_length(array)), values, mask=_nulls(array))
    if pt.is_map(kind):
        return _plain_map(array)
    if pt.is_struct(kind):
        fields = list(plain_type(kind))
        return pa.StructArray.from_arrays(list(map(plain_array, array.flatten())), fields=fields, mask=_nulls(array))
    return array.cast(plain_type(kind))


def cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values in another type; of a type that differs, in copies.

    pyarrow 26 casts lists of the type null to lists that are shorter than their offsets say.

    Raises:
        ArrowException: A value does not fit the type.
    """
    if array.type == kind:
        return array
    result = array.cast(kind)
    try:
        result.validate()
    except pa.ArrowInvalid:
        return pa.array(array.to_pylist(), kind)
    return result


def _plain_map(array: pa.MapArray) -> pa.MapArray:
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    lengths = pc.subtract(array.offsets[1:], array.offsets[:-1])
    keys = plain_array(array.keys.slice(begin, end - begin))
    items = plain_array(array.items.slice(begin, end - begin))
    return pa.MapArray.from_arrays(_offsets(lengths), keys, items, mask=_nulls(array))


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy().astype(np.int64))])
    if ends[-1] > _MAX_OFFSET:
        raise pa.ArrowInvalid(f"the lists of one batch have {ends[-1]} values, and at most {_MAX_OFFSET} are possible")
    return pa.array(ends.astype(np.int32))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _is_list(arrow: pa.DataType) -> bool:
    return bool(
        pt.is_list(arrow)
        or pt.is_large_list(arrow)
        or pt.is_fixed_size_list(arrow)
        or pt.is_list_view(arrow)
        or pt.is_large_list_view(arrow)
    )
