"""Conversions of Arrow values to the values that encodings take.

    `as_numbers`      booleans, dates, times and durations, and lists of them, to integers
    `JsonText`        structs, maps and lists to JSON text, without loss; `smalti.format.logical` reads it back
    `ImageBytes`      Spark's image schema to arrays of pixels or PNG files
    `dense_vectors`   vectors of Spark ML and MLlib, dense and sparse, to lists of all their numbers

Nulls stay nulls; what is stored for them is decided in `columns`. Which type takes which conversion is in `types`.
"""

import base64
import io
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
from smalti.format.writing.arrow import is_list

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""Conversion of Spark's values to values that an encoding takes; picklable. Its SchemaError has the fact `row`."""

_NAT = -(1 << 63)
"""Value that numpy reserves for "not a time": 292,277 years before 1970, which Spark's longest intervals reach."""


def as_numbers(array: pa.Array) -> pa.Array:
    """Return the same rows as integers, in the units of Spark: days, microseconds, and nanoseconds of the day.

    Raises:
        SchemaError: A time has a finer unit than its column, or is the value that numpy reserves for no time.
    """
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = _with_units(array.type)
    try:
        numbers = array.cast(kind).cast(_numbers_of(kind))
    except pa.ArrowInvalid as error:
        row = next(row for row in range(len(array)) if not fits(array.slice(row, 1), kind))
        raise SchemaError("a time of a finer unit than microseconds; round it before writing.", row=row) from error
    _check_times(numbers, kind)
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


def _with_units(kind: pa.DataType) -> pa.DataType:
    """Return the type in Spark's units; the output of a transform may have others."""
    if is_list(kind):
        return pa.large_list(_with_units(kind.value_type))
    if pt.is_date(kind):
        return pa.date32()
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_duration(kind):
        return pa.duration("us")
    return pa.time64("ns") if pt.is_time(kind) else kind


def _numbers_of(kind: pa.DataType) -> pa.DataType:
    if is_list(kind):
        return pa.large_list(_numbers_of(kind.value_type))
    if pt.is_boolean(kind):
        return pa.uint8()
    if pt.is_date32(kind):
        return pa.int32()
    return pa.int64() if pt.is_timestamp(kind) or pt.is_duration(kind) or pt.is_time64(kind) else kind


def _check_times(numbers: pa.Array, kind: pa.DataType) -> None:
    lists = []
    while is_list(kind):
        lists.append(numbers)
        numbers, kind = numbers.flatten(), kind.value_type
    if not pt.is_int64(numbers.type) or pc.min(numbers).as_py() != _NAT:
        return
    row = pc.index(numbers, _NAT).as_py()
    for each in reversed(lists):
        ends = np.cumsum(pc.fill_null(each.value_lengths(), 0).to_numpy())
        row = int(np.searchsorted(ends, row, side="right"))
    raise SchemaError("a time of -2^63, which numpy takes for no time.", row=row)


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
            row = next(row for row in range(len(array)) if not self._is_good(array.slice(row, 1)))
            raise SchemaError(error.message, row=row) from error
        return pa.array([None if value is None else _text(value) for value in values], pa.large_binary())

    def _is_good(self, array: pa.Array) -> bool:
        try:
            _values(array, self.kind)
        except SchemaError:
            return False
        return True


def _text(value: Any) -> bytes:
    return _dumps(value).encode("ascii")


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
        numbers: list[Any] = as_numbers(array).to_pylist()
        return numbers
    return _plain(array)


def _plain(array: pa.Array) -> list[Any]:
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
_RED_FIRST = {3: [2, 1, 0], 4: [2, 1, 0, 3]}


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
                else:
                    pixels = _pixels(image)
                    stored.append(_png(pixels) if self.encoding == "png" else codec.encode(pixels))
        except SchemaError as error:
            raise SchemaError(error.message, row=len(stored)) from error
        return pa.array(stored, pa.large_binary())


def image_origins(array: pa.StructArray) -> pa.Array:
    """Return the source of each image; empty if Spark does not know it."""
    return pc.fill_null(array.flatten()[0], "")


def _pixels(image: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return the pixels of an image: uint8, shape (height, width, channels)."""
    shape = image["height"], image["width"], image["nChannels"]
    if None in shape or min(shape) < 1 or image["data"] is None:
        raise SchemaError("an image that Spark could not read; filter by height > 0, or read with dropInvalid.")
    if image["mode"] != _MODES.get(shape[2]) or len(image["data"]) != shape[0] * shape[1] * shape[2]:
        raise SchemaError(
            f"an image of OpenCV type {image['mode']} with {shape[2]} channels and {len(image['data'])} bytes for "
            f"{shape[0]} x {shape[1]} pixels; expected one byte a channel, and 1, 3 or 4 of them."
        )
    return np.frombuffer(image["data"], np.uint8).reshape(shape)


def _png(pixels: "np.ndarray[Any, np.dtype[np.uint8]]") -> bytes:
    from PIL import Image

    channels = pixels.shape[2]
    ordered = pixels[:, :, 0] if channels == 1 else np.ascontiguousarray(pixels[:, :, _RED_FIRST[channels]])
    file = io.BytesIO()
    Image.fromarray(ordered).save(file, "PNG")
    return file.getvalue()


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
