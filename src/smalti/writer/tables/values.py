"""Conversions of Arrow values to the values that encodings take.

    `as_numbers`      booleans, dates, times and durations, and lists of them, to integers
    `JsonText`        structs, maps and lists to JSON text, without loss; `smalti.format.logical` reads it back
    `ImageBytes`      Spark's image schema to arrays of pixels or PNG files
    `dense_vectors`   vectors of Spark ML and MLlib, dense and sparse, to lists of all their numbers

Nulls stay nulls; what is stored for them is decided in `columns`. Which type takes which conversion is in `types`.

Before that, `plain_type`, `plain_array` and `plain_batch` remove from Arrow's types what only changes how values are
laid out in memory: dictionaries, run-end encoding, extension types, views, fixed sizes and 64-bit offsets. Lists are
built anew and not cast: pyarrow 26 casts list views to lists whose offsets lead out of their memory.
"""

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from smalti.errors import SchemaError
from smalti.format import parse_encoding
from smalti.format.reading.arrow import png_of
from smalti.format.writing.arrow import is_list

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""Conversion of Spark's values to values that an encoding takes; picklable. Its SchemaError has the fact `row`."""

_MAX_OFFSET = (1 << 31) - 1
_MAX_DEPTH = 128
_NAT = -(1 << 63)
"""Value that numpy reserves for "not a time": 292,277 years before 1970, which Spark's longest intervals reach."""


def as_numbers(array: pa.Array) -> pa.Array:
    """Return the same rows as integers, in the units of Spark: days, microseconds, and nanoseconds of the day.

    Raises:
        SchemaError: A time has a finer unit than its column, or is the value that numpy reserves for no time.
    """
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind, number_kind = _in_units(array.type)
    try:
        numbers = array.cast(kind).cast(number_kind)
    except pa.ArrowInvalid as error:
        row = next(row for row in range(len(array)) if not fits(array.slice(row, 1), kind))
        raise SchemaError("a time of a finer unit than microseconds; round it before writing.", row=row) from error
    lists, items = [], numbers
    while is_list(items.type):
        lists.append(items)
        items = items.flatten()
    if pt.is_int64(items.type) and pc.min(items).as_py() == _NAT:
        row = pc.index(items, _NAT).as_py()
        for lengths in (pc.fill_null(outer.value_lengths(), 0).to_numpy() for outer in reversed(lists)):
            row = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
        raise SchemaError("a time of -2^63, which numpy takes for no time.", row=row)
    return numbers


def text_bytes(array: pa.Array) -> pa.Array:
    """Return the bytes of texts that an encoding has written, such as JSON or the digits of a number."""
    return array.cast(pa.large_binary())


def fits(array: pa.Array, kind: pa.DataType) -> bool:
    """Return whether a type holds all of these values."""
    try:
        array.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _in_units(kind: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
    """Return the type in Spark's units, while the output of a transform may have others, and that of its numbers."""
    if is_list(kind):
        unit, number = _in_units(kind.value_type)
        return pa.large_list(unit), pa.large_list(number)
    if pt.is_boolean(kind):
        return kind, pa.uint8()
    if pt.is_date(kind):
        return pa.date32(), pa.int32()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz), pa.int64()
    if pt.is_duration(kind):
        return pa.duration("us"), pa.int64()
    return (pa.time64("ns"), pa.int64()) if pt.is_time(kind) else (kind, kind)


_dumps = json.JSONEncoder(allow_nan=False).encode
_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass(frozen=True)
class JsonText:
    """A conversion of values of one type to JSON text; equal values always give the same text."""

    kind: Mapping[str, Any]
    """Logical type of the values, as the manifest describes it."""

    def __call__(self, array: pa.Array) -> pa.Array:
        """Return the text of each value, as bytes.

        Raises:
            SchemaError: A text is no UTF-8, or a map has a key twice.
        """
        try:
            values = _values(array, self.kind)
        except SchemaError as error:
            for row in range(len(array)):
                try:
                    _values(array.slice(row, 1), self.kind)
                except SchemaError:  # noqa: PERF203 - runs only after a failure
                    raise SchemaError(error.message, row=row) from error
            raise
        texts = [None if value is None else _dumps(value).encode("ascii") for value in values]
        return pa.array(texts, pa.large_binary())


def _values(array: pa.Array, kind: Mapping[str, Any]) -> list[Any]:
    """Return the rows as objects that `json` writes; nested values are converted column by column."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    family = kind["type"]
    if family == "struct":
        return _structs(array, kind["fields"])
    if family == "list":
        return _lists(array, _values(_inner(array, array.values), kind["of"]))
    if family == "map":
        return _maps(array, kind)
    if family == "float":
        return [_float(value) for value in array.to_pylist()]
    if family == "decimal":
        return [None if value is None else str(value) for value in array.to_pylist()]
    if family == "binary":
        return [None if value is None else base64.b64encode(value).decode("ascii") for value in array.to_pylist()]
    if family in ("date", "timestamp", "duration", "time"):
        array = as_numbers(array)
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError as error:
        raise SchemaError("expected text that is valid UTF-8.") from error
    return values


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return _NAMES.get(value, "NaN")


def _structs(array: pa.StructArray, kinds: Mapping[str, Any]) -> list[Any]:
    # `flatten` respects the offset of a slice; `field` does not.
    columns = [_values(each, kinds[field.name]) for each, field in zip(array.flatten(), array.type, strict=True)]
    names = [field.name for field in array.type]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _maps(array: pa.MapArray, kind: Mapping[str, Any]) -> list[Any]:
    keys = _lists(array, _values(_inner(array, array.keys), kind["keys"]))
    values = _lists(array, _values(_inner(array, array.items), kind["values"]))
    as_object = kind["keys"]["type"] == "text"
    found: list[Any] = []
    for row_keys, items in zip(keys, values, strict=True):
        if row_keys is None:
            found.append(None)
            continue
        if len(set(row_keys)) < len(row_keys):
            raise SchemaError("a map has a key twice, which a dict cannot hold.")
        pairs = zip(row_keys, items, strict=True)
        found.append(dict(pairs) if as_object else list(map(list, pairs)))
    return found


def _inner(array: pa.Array, values: pa.Array) -> pa.Array:
    """Return the values of the lists in a slice; `values` has those of the whole array."""
    begin = array.offsets[0].as_py()
    return values.slice(begin, array.offsets[len(array)].as_py() - begin)


def _lists(array: pa.Array, items: Sequence[Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    first, valid = ends[0], array.is_valid().to_pylist()
    return [
        list(items[begin - first : end - first]) if is_valid else None
        for begin, end, is_valid in zip(ends, ends[1:], valid, strict=False)
    ]


ORIGIN_SUFFIX = "__origin"
_MODES = {1: 0, 3: 16, 4: 24}
"""OpenCV's number of the pixel type by number of channels: CV_8UC1, CV_8UC3, CV_8UC4."""


@dataclass(frozen=True)
class ImageBytes:
    """A conversion of Spark's images to the bytes of an array, or to PNG files.

    Spark's pixels have one byte for each of one, three or four channels, in OpenCV's order: blue, green, red, alpha.
    Arrays keep that order.
    """

    encoding: str

    def __call__(self, array: pa.StructArray) -> pa.Array:
        """Return one binary value for each image.

        Raises:
            SchemaError: Spark could not read an image, or it has another pixel type.
        """
        codec = parse_encoding(self.encoding)
        stored: list[bytes | None] = []
        try:
            for image in array.to_pylist():
                if image is None:
                    stored.append(None)
                    continue
                shape = image["height"], image["width"], image["nChannels"]
                if None in shape or min(shape) < 1 or image["data"] is None:
                    raise SchemaError(
                        "an image that Spark could not read; filter by height > 0, or read with dropInvalid."
                    )
                if image["mode"] != _MODES.get(shape[2]) or len(image["data"]) != shape[0] * shape[1] * shape[2]:
                    raise SchemaError(
                        f"an image of OpenCV type {image['mode']} with {shape[2]} channels and {len(image['data'])} "
                        f"bytes for {shape[0]} x {shape[1]} pixels; expected one byte a channel, and 1, 3 or 4 of them."
                    )
                pixels = np.frombuffer(image["data"], np.uint8).reshape(shape)
                stored.append(png_of(pixels) if self.encoding == "png" else codec.encode(pixels))
        except SchemaError as error:
            raise SchemaError(error.message, row=len(stored)) from error
        return pa.array(stored, pa.large_binary())


def image_origins(array: pa.StructArray) -> pa.Array:
    """Return the source of each image; empty if Spark does not know it."""
    return pc.fill_null(array.flatten()[0], "")


_MAX_NUMBERS = 1 << 27
"""Numbers of all vectors of one batch, 1 GB: a batch may have ten thousand sparse vectors of a million numbers."""
Array = np.ndarray[Any, Any]


def dense_vectors(array: pa.StructArray) -> pa.LargeListArray:
    """Return each vector, a struct of type (0 sparse, 1 dense), size, indices and values, as the list of its numbers.

    Raises:
        SchemaError: A sparse vector contradicts itself, or the vectors of a batch take too much memory.
    """
    is_null = np.asarray(array.is_null())
    kinds, sizes, indices, values = array.flatten()
    num_values = _filled(values.value_lengths())
    is_sparse = (_filled(kinds) == 0) & ~is_null
    lengths = np.where(is_sparse, _filled(sizes), num_values)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if ends[-1] > _MAX_NUMBERS:
        row = int(np.argmax(lengths))
        raise SchemaError(
            f"the vectors of one batch have {ends[-1]} numbers with the zeros of sparse ones, over {_MAX_NUMBERS}: "
            "store indices and values as two array columns.",
            row=row,
        )
    owners = np.repeat(np.arange(len(array)), num_values)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(num_values) - num_values, num_values)
    places = ends[owners] + within
    of_sparse = is_sparse[owners]
    places[of_sparse] = ends[owners[of_sparse]] + _indices(indices, is_sparse, num_values, lengths)
    numbers = np.zeros(int(ends[-1]))
    numbers[places] = values.flatten().to_numpy(zero_copy_only=False)
    mask = pa.array(is_null) if is_null.any() else None
    return pa.LargeListArray.from_arrays(pa.array(ends.astype(np.int64)), pa.array(numbers), mask=mask)


def _indices(indices: pa.ListArray, is_sparse: Array, num_values: Array, lengths: Array) -> Array:
    """Return the place of each value of the sparse vectors within its vector, concatenated over all vectors."""
    num_indices = np.where(is_sparse, _filled(indices.value_lengths()), 0)
    wrong = is_sparse & (num_indices != num_values)
    if not wrong.any():
        chosen = indices.filter(pa.array(is_sparse)).flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        owners = np.repeat(np.arange(len(lengths)), num_indices)
        wrong[owners[(chosen < 0) | (chosen >= lengths[owners])]] = True
        if not wrong.any():
            places: Array = chosen
            return places
    raise SchemaError("a sparse vector whose indices and values contradict each other.", row=int(np.argmax(wrong)))


def _filled(numbers: pa.Array) -> Array:
    found: Array = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


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
    if _is_any_list(arrow):
        return pa.list_(plain_type(arrow.value_type))
    if pt.is_map(arrow):
        return pa.map_(plain_type(arrow.key_type), plain_type(arrow.item_type))
    if pt.is_struct(arrow):
        return pa.struct([(_name_of(field), plain_type(field.type)) for field in arrow])
    return arrow


def replace_leaves(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with others in place of those that have no fields, also within structs, maps and lists."""
    if pt.is_struct(kind):
        return pa.struct([child.with_type(replace_leaves(child.type, leaf)) for child in kind])
    if pt.is_map(kind):
        return pa.map_(replace_leaves(kind.key_type, leaf), replace_leaves(kind.item_type, leaf))
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(replace_leaves(kind.value_type, leaf)))
    return leaf(kind)


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
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        check_depth(field.name, column.type)
        try:
            columns.append(plain_array(column))
        except pa.ArrowException as error:
            raise SchemaError(f"column {field.name!r}: {error}", column=field.name) from error
    if all(plain is column for plain, column in zip(columns, batch.columns, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


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
    if _is_any_list(kind):
        values = plain_array(array.flatten())
        return pa.ListArray.from_arrays(_offsets(pc.list_value_length(array)), values, mask=_nulls(array))
    if pt.is_map(kind):
        begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        lengths = pc.subtract(array.offsets[1:], array.offsets[:-1])
        keys, items = (plain_array(part.slice(begin, end - begin)) for part in (array.keys, array.items))
        return pa.MapArray.from_arrays(_offsets(lengths), keys, items, mask=_nulls(array))
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


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = np.concatenate([[0], np.cumsum(pc.fill_null(lengths, 0).to_numpy().astype(np.int64))])
    if ends[-1] > _MAX_OFFSET:
        raise pa.ArrowInvalid(f"the lists of one batch have {ends[-1]} values, and at most {_MAX_OFFSET} are possible")
    return pa.array(ends.astype(np.int32))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _is_any_list(arrow: pa.DataType) -> bool:
    return is_list(arrow) or bool(pt.is_list_view(arrow) or pt.is_large_list_view(arrow))
