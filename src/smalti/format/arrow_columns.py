"""One Arrow column to the stored bytes of its values, for each encoding; lossless, or refused with the row."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format.arrays import DTYPE_CODES, NdArray, shape_header
from smalti.format.arrow_values import plain_values
from smalti.format.encoding import Encoding
from smalti.format.exact import Array, cast_exact, little_endian
from smalti.format.jpeg_heads import END_MARK, HEAD_BYTES, begins_well
from smalti.format.pictures import ImageFile, Jpeg, Pil, Png
from smalti.format.scalars import Int, Scalar
from smalti.format.sizes import check_stored
from smalti.format.texts import Bytes, Str

Stored: TypeAlias = "Array | pa.LargeBinaryArray"


def encode_column(codec: Encoding, array: pa.Array) -> Stored:
    """The stored values: uint8, shape (rows, size), for a fixed-size encoding; else a large_binary array without nulls.

    Raises:
        SchemaError: A null, another type than the encoding takes, or a value that does not fit; `row` says where.
    """
    array = _plain(array)
    if array.null_count:
        row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise SchemaError("a null cannot be stored; fill it or drop the row before writing.", row=row)
    # Exact types: an encoding that a user derived from one of these has its own idea of `encode`.
    kind = type(codec)
    if kind in _COLUMN_WISE:
        return _COLUMN_WISE[kind](codec, array)
    return _one_by_one(codec, _binary(array).to_pylist() if kind is Pil else plain_values(array))


def _plain(array: pa.Array) -> pa.Array:
    """Without dictionary, run-end and extension wrapping, which say how values are kept and not what they are."""
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


def _is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def _binary(array: pa.Array) -> pa.LargeBinaryArray:
    if not _is_binary(array.type):
        raise SchemaError(f"expected binary, found Arrow type {array.type}.", row=0)
    return _as_large_binary(array)


def _as_large_binary(array: pa.Array) -> pa.LargeBinaryArray:
    try:
        return array.cast(pa.large_binary())
    except pa.ArrowNotImplementedError as error:  # older versions of Arrow cannot cast their view types
        raise SchemaError(f"this pyarrow cannot convert {array.type}; cast it before writing.", row=0) from error


def _text(array: pa.Array) -> pa.LargeBinaryArray:
    if not (_is_text(array.type) or _is_binary(array.type)):
        raise SchemaError(f"expected text, found Arrow type {array.type}.", row=0)
    stored = _as_large_binary(array)
    try:
        # Arrow believes that text is UTF-8 until it is asked to look.
        stored.cast(pa.large_string())
    except pa.ArrowInvalid as error:
        row = next(i for i, value in enumerate(stored) if not _is_utf8(value.as_py()))
        raise SchemaError("expected text that is valid UTF-8.", row=row) from error
    return stored


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _image_files(codec: ImageFile, array: pa.Array) -> pa.LargeBinaryArray:
    stored = _binary(array)
    doubtful = _doubtful_jpegs(stored) if isinstance(codec, Jpeg) else range(len(stored))
    row = 0
    try:
        for row in doubtful:
            codec.check(stored[row].as_py())
    except SchemaError as error:
        raise SchemaError(error.message, row=row) from error
    return stored


def _doubtful_jpegs(stored: pa.LargeBinaryArray) -> Iterator[int]:
    """The rows that need a closer look."""
    ends = np.frombuffer(stored.buffers()[1], np.int64, len(stored) + 1, offset=8 * stored.offset)
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
        if not ended or not begins_well(bytes(view[begin:end])):
            yield row


def _one_by_one(codec: Encoding, values: Sequence[Any]) -> Stored:
    stored: list[bytes] = []
    try:
        stored.extend(check_stored(codec.encode(value), codec.size) for value in values)
    except SchemaError as error:
        raise SchemaError(error.message, row=len(stored)) from error
    if codec.size is None:
        return pa.array(stored, pa.large_binary())
    return np.frombuffer(b"".join(stored), np.uint8).reshape(len(stored), codec.size)


def _arrays(codec: NdArray, array: pa.Array) -> Stored:
    if isinstance(array.type, pa.FixedShapeTensorType):
        return _tensors(codec, array.to_numpy_ndarray())
    if _is_binary(array.type) and codec.shape is None:
        return _one_by_one(codec, array.to_pylist())  # stored already: `encode` looks at what they hold
    if not _is_list(array.type):
        raise SchemaError(f"expected lists of numbers, found Arrow type {array.type}.", row=0)
    if codec.shape is not None and codec.dtype is not None:
        return _rows_of_bytes(cast_exact(_regular(array, codec.shape), codec.dtype))
    return _free(codec, array)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def _list_lengths(array: pa.Array) -> Array:
    if pt.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    lengths: Array = array.value_lengths().to_numpy().astype(np.int64)
    return lengths


def _regular(array: pa.Array, shape: tuple[int, ...]) -> Array:
    """All numbers of lists that are nested as `shape` says: shape (rows, *shape)."""
    rows, per_row = len(array), 1
    for size in shape:
        if not _is_list(array.type):
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


def _free(codec: NdArray, array: pa.Array) -> pa.LargeBinaryArray:
    """Lists of any sizes: a header for each, and the numbers as they lie in Arrow's buffer."""
    numbers, shapes = _flat(array)
    if codec.dtype is None and numbers.dtype.name not in DTYPE_CODES:
        raise SchemaError(f"arrays of {numbers.dtype.name} cannot be stored; cast them before writing.", row=0)
    ends = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
    try:
        numbers = cast_exact(numbers, codec.dtype or little_endian(numbers.dtype))
    except SchemaError as error:
        raise SchemaError(error.message, row=_row_of(int(error.facts["row"]), ends)) from error
    code = b"" if codec.dtype else bytes([DTYPE_CODES[numbers.dtype.name]])
    width = numbers.dtype.itemsize
    if len(shapes) and (shapes == shapes[0]).all():  # nearly always, and a fraction of the work
        head_bytes = np.frombuffer(code + shape_header(tuple(shapes[0].tolist())), np.uint8)
        rows = _rows_of_bytes(numbers.reshape(len(shapes), -1))
        whole = np.concatenate([np.broadcast_to(head_bytes, (len(rows), len(head_bytes))), rows], axis=1)
        return _from_parts(whole.reshape(-1), np.arange(len(rows) + 1) * whole.shape[1])
    kinds, which = np.unique(shapes, axis=0, return_inverse=True)
    which = which.reshape(-1)  # numpy 2.0 gives it another axis
    heads = [code + shape_header(tuple(shape)) for shape in kinds.tolist()]
    head_ends = np.concatenate([[0], np.cumsum(np.array([len(head) for head in heads])[which])])
    head = _from_parts(np.frombuffer(b"".join([heads[kind] for kind in which]), np.uint8), head_ends)
    body = _from_parts(np.ascontiguousarray(numbers).view(np.uint8), ends * width)
    return _join(head, body)


def _flat(array: pa.Array) -> tuple[Array, Array]:
    """All numbers of lists that are nested evenly, and the shape of each row: int64, shape (rows, axes)."""
    counts = np.ones(len(array), np.int64)
    sizes: list[Array] = []
    while _is_list(array.type):
        lengths, owners = _list_lengths(array), np.repeat(np.arange(len(counts)), counts)
        size = np.zeros(len(counts), np.int64)
        size[owners] = lengths
        uneven = size[owners] != lengths
        if uneven.any():
            raise SchemaError(
                "a nested list of uneven lengths is no array; the column can be stored as json.",
                row=int(owners[np.argmax(uneven)]),
            )
        sizes.append(size)
        counts, array = counts * size, array.flatten()
        _refuse_inner_nulls(array, np.concatenate([[0], np.cumsum(counts)]))
    return _numbers(_plain(array)), np.stack(sizes, axis=1)


def _from_parts(data: Array, ends: Array) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)


def _join(*parts: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _tensors(codec: NdArray, values: Array) -> Stored:
    if codec.shape is None:
        return _one_by_one(codec, list(values))
    if codec.dtype is None or values.shape[1:] != codec.shape:
        raise SchemaError(f"expected arrays of shape {codec.shape}, found {values.shape[1:]}.", row=0)
    return _rows_of_bytes(cast_exact(values, codec.dtype))


_COLUMN_WISE: dict[type[Encoding], Callable[[Any, pa.Array], Stored]] = {
    Scalar: _scalars,
    Int: _scalars,
    Bytes: lambda _, array: _binary(array),
    Str: lambda _, array: _text(array),
    NdArray: _arrays,
    Jpeg: _image_files,
    Png: _image_files,
}
