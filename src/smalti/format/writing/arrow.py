"""Arrow record batches to stored samples, column by column, with the bytes that `rows` gives sample by sample.

Each column is encoded on its own: to rows of bytes (fixed size) or to a binary Arrow array. Neighbouring fixed columns
are laid side by side, and one concatenation in Arrow's C++ assembles the samples. Encodings without a function in
`_COLUMN_WISE` encode value by value. Only this module of the format needs pyarrow; it is imported when first used.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Array, Encoding, Int64s
from smalti.format.encodings.images import END_MARK, HEAD_BYTES, ImageFileEncoding, Jpeg, Pil, Png, has_good_head
from smalti.format.encodings.numbers import DTYPE_CODES, Int, NdArray, Scalar, cast_exact, little_endian, shape_header
from smalti.format.encodings.text import Bytes, Str
from smalti.format.layout import OFFSET
from smalti.format.schema import Schema, refused_value
from smalti.format.sizes import MAX_FILE_BYTES, check_stored

StoredColumn: TypeAlias = "Array | pa.LargeBinaryArray"
"""The stored values of a column: uint8, shape (rows, size), or a large_binary array."""
_STRIP_BYTES = 1 << 20  # stays in a core's cache from being assembled to being copied into the shard


def encode_batch(
    schema: Schema, codecs: tuple[Encoding, ...], batch: pa.RecordBatch, *, first_row: int = 0
) -> tuple[Int64s, Callable[[int, int], Iterator[memoryview]]]:
    """Encode the samples of a batch.

    The batch has at least one row and exactly the columns of the schema, in any order.

    Returns:
        The bytes of each sample, int64, shape (rows,), and the function that yields the bytes of samples [begin, end),
            in order, in pieces of a good size for copying.

    Raises:
        SchemaError: Missing, unknown or repeated columns, nulls, or values that do not fit without loss.
    """
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        missing, extra = sorted(set(schema.names) - set(names)), sorted(set(names) - set(schema.names))
        raise SchemaError(
            f"batch at row {first_row}: missing columns {missing}, unknown columns {extra}, and {len(names)} "
            f"columns in place of {len(schema.names)}; a batch has exactly the columns of the data set.",
            row=first_row,
        )
    columns: list[StoredColumn] = []
    places = {name: place for place, name in enumerate(names)}
    try:
        for name, codec in zip(schema.names, codecs, strict=True):
            column = encode_column(codec, batch.column(places[name]))
            if not isinstance(column, np.ndarray) and int((lengths := _lengths(column)).max()) > MAX_FILE_BYTES:
                raise SchemaError("a value of 4 GiB and more does not fit a shard.", row=int(lengths.argmax()))
            columns.append(column)
    except SchemaError as error:
        # The number of encoded columns is the place of the one that failed.
        name, row = schema.names[len(columns)], first_row + int(error.facts.get("row", 0))
        raise refused_value(error, column=name, encoding=schema.encodings[len(columns)], row=row) from error
    variable = [_lengths(column) for column in columns if not isinstance(column, np.ndarray)]
    fixed = sum(column.shape[1] for column in columns if isinstance(column, np.ndarray))
    sample_bytes: Int64s = np.full(batch.num_rows, fixed + 4 * len(variable), np.int64)
    for values in variable:
        sample_bytes += values

    def strips(begin: int, end: int) -> Iterator[memoryview]:
        while begin < end:
            ends = np.cumsum(sample_bytes[begin : begin + _STRIP_BYTES // max(1, int(sample_bytes[begin]))])
            stop = min(end, begin + max(1, int(np.searchsorted(ends, _STRIP_BYTES, side="right"))))
            yield _join(
                [
                    column[begin:stop] if isinstance(column, np.ndarray) else column.slice(begin, stop - begin)
                    for column in columns
                ]
            )
            begin = stop

    return sample_bytes, strips


def _join(columns: list[StoredColumn]) -> memoryview:
    lengths = [_lengths(column) for column in columns if not isinstance(column, np.ndarray)]
    if lengths:
        head = np.stack(lengths, axis=1).astype(OFFSET).view(np.uint8)
        columns = [head, *columns]
    parts = _side_by_side(columns)
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        return memoryview(np.ascontiguousarray(parts[0]).reshape(-1))
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    joined = pc.binary_join_element_wise(*arrays, _no_separator())
    offsets, data = _offsets(joined), joined.buffers()[2]
    return memoryview(data or b"")[int(offsets[0]) : int(offsets[-1])]


def _side_by_side(columns: list[StoredColumn]) -> list[StoredColumn]:
    parts: list[StoredColumn] = []
    run: list[Array] = []
    for column in [*columns, None]:
        if isinstance(column, np.ndarray):
            run.append(column)
            continue
        if run:
            parts.append(np.concatenate(run, axis=1) if len(run) > 1 else run[0])
            run = []
        if column is not None:
            parts.append(column)
    return parts


def _no_separator() -> pa.LargeBinaryScalar:
    """Return the separator of joined values, b"". Not a constant: the first scalar imports pandas."""
    return pa.scalar(b"", pa.large_binary())


def _offsets(column: pa.LargeBinaryArray) -> Array:
    offsets: Array = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, offset=8 * column.offset)
    return offsets


def _lengths(column: pa.LargeBinaryArray) -> Array:
    return np.diff(_offsets(column))


def _as_binary(rows: Array) -> pa.LargeBinaryArray:
    count, width = rows.shape
    return _from_parts(np.ascontiguousarray(rows).reshape(-1), np.arange(count + 1, dtype=np.int64) * width)


def encode_column(codec: Encoding, array: pa.Array) -> StoredColumn:
    """Encode a column: uint8, shape (rows, size), for a fixed-size encoding; else a large_binary array without nulls.

    Raises:
        SchemaError: A null, another type than the encoding takes, or a value that does not fit; `row` is its place.
    """
    array = _plain(array)
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError("a null cannot be stored; fill it or drop the row before writing.", row=row)
    # Exact types: a user's subclass of one of these may override `encode`.
    kind = type(codec)
    if kind in _COLUMN_WISE:
        return _COLUMN_WISE[kind](codec, array)
    return _encode_each(codec, _binary(array).to_pylist() if kind is Pil else plain_values(array))


def _plain(array: pa.Array) -> pa.Array:
    """Remove dictionary, run-end and extension types, which only change how the values are represented."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array.type, pa.FixedShapeTensorType):
        return array
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary_decode())
    return array


def _numbers(array: pa.Array) -> Array:
    kind = array.type
    if not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
        raise SchemaError(f"expected numbers, found Arrow type {kind}; cast it before writing.", row=0)
    numbers: Array = array.to_numpy(zero_copy_only=False)
    return numbers


def _scalars(codec: Scalar, array: pa.Array) -> Array:
    return _rows_of_bytes(cast_exact(_numbers(array), codec.dtype))


def _rows_of_bytes(values: Array) -> Array:
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return flat.view(np.uint8)


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
    )


def _binary(array: pa.Array) -> pa.LargeBinaryArray:
    if not _is_binary(array.type):
        raise SchemaError(f"expected binary, found Arrow type {array.type}.", row=0)
    return _as_large_binary(array)


def _as_large_binary(array: pa.Array) -> pa.LargeBinaryArray:
    try:
        return array.cast(pa.large_binary())
    except pa.ArrowNotImplementedError as error:  # older versions of Arrow cannot cast view types
        raise SchemaError(f"this pyarrow cannot convert {array.type}; cast it before writing.", row=0) from error


def _text(array: pa.Array) -> pa.LargeBinaryArray:
    kind = array.type
    is_text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    if not (is_text or _is_binary(kind)):
        raise SchemaError(f"expected text, found Arrow type {array.type}.", row=0)
    stored = _as_large_binary(array)
    try:
        # Arrow does not validate UTF-8 unless binary is cast to text.
        stored.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        # What is no UTF-8 comes back with other bytes.
        texts = (value.as_py() for value in stored)
        row = next(i for i, text in enumerate(texts) if text.decode("utf-8", "ignore").encode() != text)
        raise SchemaError("expected text that is valid UTF-8.", row=row) from error
    return stored


def _image_files(codec: ImageFileEncoding, array: pa.Array) -> pa.LargeBinaryArray:
    stored = _binary(array)
    suspect_rows = _suspect_jpegs(stored) if isinstance(codec, Jpeg) else range(len(stored))
    row = 0
    try:
        for row in suspect_rows:
            codec.check(stored[row].as_py())
    except SchemaError as error:
        raise SchemaError(error.message, row=row) from error
    return stored


def _suspect_jpegs(stored: pa.LargeBinaryArray) -> Iterator[int]:
    """Yield the rows that a cheap check of head and end mark does not accept."""
    ends = _offsets(stored)
    content = stored.buffers()[2]
    if content is None:
        yield from range(len(stored))
        return
    data = np.frombuffer(content, np.uint8)
    last = np.maximum(ends[1:], 2)
    is_ended = (data[last - 2] == END_MARK[0]) & (data[last - 1] == END_MARK[1]) if len(data) > 1 else last < 0
    heads = np.minimum(ends[1:], ends[:-1] + HEAD_BYTES)
    view = memoryview(data)
    for row, (begin, end, ended) in enumerate(zip(ends.tolist(), heads.tolist(), is_ended.tolist(), strict=False)):
        if not ended or not has_good_head(bytes(view[begin:end])):
            yield row


def _encode_each(codec: Encoding, values: Sequence[Any]) -> StoredColumn:
    stored: list[bytes] = []
    try:
        stored.extend(check_stored(codec.encode(value), codec.size) for value in values)
    except SchemaError as error:
        raise SchemaError(error.message, row=len(stored)) from error
    if codec.size is None:
        return pa.array(stored, pa.large_binary())
    return np.frombuffer(b"".join(stored), np.uint8).reshape(len(stored), codec.size)


def _arrays(codec: NdArray, array: pa.Array) -> StoredColumn:
    if isinstance(array.type, pa.FixedShapeTensorType):
        values = array.to_numpy_ndarray()
        if codec.shape is None:
            return _encode_each(codec, list(values))
        if codec.dtype is None or values.shape[1:] != codec.shape:
            raise SchemaError(f"expected arrays of shape {codec.shape}, found {values.shape[1:]}.", row=0)
        return _rows_of_bytes(cast_exact(values, codec.dtype))
    if _is_binary(array.type) and codec.shape is None:
        return _encode_each(codec, array.to_pylist())  # stored already: `encode` checks them
    if not is_list(array.type):
        raise SchemaError(f"expected lists of numbers, found Arrow type {array.type}.", row=0)
    if codec.shape is not None and codec.dtype is not None:
        return _rows_of_bytes(cast_exact(_fixed_shape_numbers(array, codec.shape), codec.dtype))
    return _encode_any_shapes(codec, array)


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of the type are lists, of any or of one size."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _list_lengths(array: pa.Array) -> Array:
    if pt.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    lengths: Array = array.value_lengths().to_numpy().astype(np.int64)
    return lengths


def _fixed_shape_numbers(array: pa.Array, shape: tuple[int, ...]) -> Array:
    """Return all numbers of lists that are nested as `shape` says: shape (rows, *shape)."""
    rows, per_row = len(array), 1
    for size in shape:
        if not is_list(array.type):
            raise SchemaError(f"expected lists nested {len(shape)} deep, found numbers sooner.", row=0)
        good = _list_lengths(array) == size
        if not good.all():
            raise SchemaError(f"expected arrays of shape {shape}, found another.", row=int(np.argmin(good)) // per_row)
        array = array.flatten()
        per_row *= size
        _refuse_inner_nulls(array, np.arange(0, (rows + 1) * per_row, per_row))
    return _numbers(_plain(array)).reshape(rows, *shape)


def _row_of(place: int, ends: Array) -> int:
    return int(np.searchsorted(ends, place, side="right")) - 1


def _refuse_inner_nulls(array: pa.Array, ends: Array) -> None:
    if array.null_count:
        place = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError(
            "an array with a null in it cannot be stored; fill it first, or store it as json.", row=_row_of(place, ends)
        )


def _encode_any_shapes(codec: NdArray, array: pa.Array) -> pa.LargeBinaryArray:
    """Encode lists of any sizes: a header for each, and the numbers as they lie in Arrow's buffer."""
    numbers, shapes = _flatten(array)
    if codec.dtype is None and numbers.dtype.name not in DTYPE_CODES:
        raise SchemaError(f"arrays of {numbers.dtype.name} cannot be stored; cast them before writing.", row=0)
    ends = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    try:
        numbers = cast_exact(numbers, codec.dtype or little_endian(numbers.dtype))
    except SchemaError as error:
        raise SchemaError(error.message, row=_row_of(int(error.facts["row"]), ends)) from error
    code = b"" if codec.dtype else bytes([DTYPE_CODES[numbers.dtype.name]])
    width = numbers.dtype.itemsize
    if len(shapes) and (shapes == shapes[0]).all():  # the usual case, and a fraction of the work
        head_bytes = np.frombuffer(code + shape_header(tuple(shapes[0].tolist())), np.uint8)
        rows = _rows_of_bytes(numbers.reshape(len(shapes), -1))
        whole = np.concatenate([np.broadcast_to(head_bytes, (len(rows), len(head_bytes))), rows], axis=1)
        return _from_parts(whole.reshape(-1), np.arange(len(rows) + 1) * whole.shape[1])
    kinds, which = np.unique(shapes, axis=0, return_inverse=True)
    which = which.reshape(-1)  # numpy 2.0 returns it with another axis
    heads = [code + shape_header(tuple(shape)) for shape in kinds.tolist()]
    head_ends = np.concatenate([[0], np.cumsum(np.array([len(head) for head in heads])[which])])
    head = _from_parts(np.frombuffer(b"".join([heads[kind] for kind in which]), np.uint8), head_ends)
    body = _from_parts(np.ascontiguousarray(numbers).view(np.uint8), ends * width)
    return pc.binary_join_element_wise(head, body, _no_separator())


def _flatten(array: pa.Array) -> tuple[Array, Array]:
    """Return all numbers of evenly nested lists, and the shape of each row: int64, shape (rows, axes)."""
    counts = np.ones(len(array), np.int64)
    sizes: list[Array] = []
    while is_list(array.type):
        lengths, owners = _list_lengths(array), np.repeat(np.arange(len(counts)), counts)
        size = np.zeros(len(counts), np.int64)
        size[owners] = lengths
        uneven = size[owners] != lengths
        if uneven.any():
            raise SchemaError(
                "a nested list of uneven lengths is not an array; the column can be stored as json.",
                row=int(owners[np.argmax(uneven)]),
            )
        sizes.append(size)
        counts, array = counts * size, array.flatten()
        _refuse_inner_nulls(array, np.concatenate([[0], np.cumsum(counts)]))
    return _numbers(_plain(array)), np.stack(sizes, axis=1)


def _from_parts(data: Array, ends: Array) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


def plain_values(array: pa.Array) -> list[Any]:
    """Return every value as a Python object; a map becomes a dict.

    Raises:
        SchemaError: A map has a key twice; `row` is its row.
    """
    values: list[Any] = array.to_pylist()
    if not _has_map(array.type):
        return values
    plain: list[Any] = []
    try:
        plain.extend(_plain_value(value, array.type) for value in values)
    except SchemaError as error:
        raise SchemaError(error.message, row=len(plain)) from error
    return plain


def _has_map(kind: pa.DataType) -> bool:
    return pt.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pt.is_map(kind):
        obj = {key: _plain_value(item, kind.item_type) for key, item in value}
        if len(obj) != len(value):
            raise SchemaError("a map has a key twice, which JSON cannot hold.")
        return obj
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: _plain_value(value[field.name], field.type) for field in fields}
    return [_plain_value(item, kind.value_type) for item in value]


_COLUMN_WISE: dict[type[Encoding], Callable[[Any, pa.Array], StoredColumn]] = {
    Scalar: _scalars,
    Int: _scalars,
    Bytes: lambda _, array: _binary(array),
    Str: lambda _, array: _text(array),
    NdArray: _arrays,
    Jpeg: _image_files,
    Png: _image_files,
}
