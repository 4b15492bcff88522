"""Columns of shards as Arrow arrays: the values that samples have, or the values as stored.

`value_columns` gives dates, decimals, nested values and arrays in Arrow's own types, for programs that know nothing of
MDS. `stored_columns` gives what the shard holds, for a set that is written anew with the same encodings. A field says
in its metadata how a writer stores its values, where the Arrow type alone does not decide it:

    smalti.stored_as    the encoding whose values these are: they are given to it without a conversion
    smalti.logical      the logical type (JSON) of the stored values, for the manifest

Only this module and `format.writing.arrow` need pyarrow.
"""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Array, Encoding
from smalti.format.encodings.images import ImageFileEncoding, ImageList, Pil
from smalti.format.encodings.numbers import Int, NdArray, Scalar
from smalti.format.encodings.registry import parse_encoding
from smalti.format.encodings.text import Bytes, Json, Str, StrDecimal, StrFloat, StrInt
from smalti.format.logical import json_restorer, masks_of, number_type
from smalti.format.reading.batch import check_column_names
from smalti.format.reading.files import Ragged

STORED_AS = b"smalti.stored_as"
LOGICAL = b"smalti.logical"
Stored: TypeAlias = "Array | Ragged | list[Any]"
"""The values of a column as `gather` of a shard returns them."""
Convert: TypeAlias = Callable[[Any], pa.Array]
"""From the values of a column to an Arrow array without nulls."""


@dataclass(frozen=True)
class ArrowColumn:
    """A column of a shard set and its conversion to Arrow."""

    field: pa.Field
    """Name, Arrow type, nullability, and what a writer has to know."""
    encoding: str
    convert: Convert
    mask: str | None = None
    """Stored column that marks its nulls; None if it has none."""

    @property
    def name(self) -> str:
        """Name of the column."""
        return str(self.field.name)

    @property
    def stored_names(self) -> tuple[str, ...]:
        """Columns of the shard that it is computed from."""
        return (self.name,) if self.mask is None else (self.name, self.mask)

    def array(self, stored: Mapping[str, Stored]) -> pa.Array:
        """Return the values of a batch; `stored` has the columns `stored_names`.

        Raises:
            SchemaError: A value does not fit the Arrow type.
            FormatError: A stored value is damaged.
        """
        values, is_null = stored[self.name], None
        if self.mask is not None:
            is_null = np.asarray(stored[self.mask]).astype(bool)
            rows = np.flatnonzero(~is_null)
            if isinstance(values, Ragged):
                kept = _binary(values, None).take(pa.array(rows))
                offsets, content = np.frombuffer(kept.buffers()[1], np.int64, len(kept) + 1), kept.buffers()[2]
                values = Ragged(np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8), offsets)
            else:
                values = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]
        try:
            found = self.convert(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeDecodeError) as error:
            reason = "text that is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)[:200]
            raise SchemaError(
                f"column {self.name!r} ({self.encoding}): a value does not fit Arrow type {self.field.type}: {reason}",
                column=self.name,
            ) from error
        if is_null is None:
            return found
        places = np.cumsum(~is_null) - 1
        return found.take(pa.array(np.where(is_null, 0, places), pa.int64(), mask=is_null))


def value_columns(
    encodings: Mapping[str, str],
    logical: Mapping[str, Any],
    first_arrays: Callable[[str], Array | None],
    names: Sequence[str] | None = None,
) -> list[ArrowColumn]:
    """Return the columns of a set as values.

    Args:
        encodings: Name to encoding of every stored column.
        logical: Name to logical type, as in the manifest.
        first_arrays: Returns the first array of a column whose encoding does not say how many axes it has, to learn
            that; None if the set has no such value.
        names: Columns to return, in this order; None for all, masks of nulls left out.

    Raises:
        SchemaError: There is no such column, or one has no form in Arrow.
    """
    masks = masks_of(logical)
    hidden = set(masks.values())
    shown = [name for name in encodings if name not in hidden]
    check_column_names(names or (), shown)
    columns = []
    for name in shown if names is None else names:
        kind, codec = logical.get(name) or {"type": "plain"}, _codec(encodings[name])
        arrow, convert, notes = _value_form(name, codec, kind, first_arrays)
        mask = masks.get(name)
        metadata = {key: text.encode() for key, text in notes.items()} or None
        field = pa.field(name, arrow, nullable=mask is not None, metadata=metadata)
        columns.append(ArrowColumn(field, codec.name, convert, mask))
    return columns


def stored_columns(encodings: Mapping[str, str], logical: Mapping[str, Any]) -> list[ArrowColumn]:
    """Return the columns of a set as stored, masks of nulls included: written anew, they give the same samples."""
    columns = []
    for name, encoding in encodings.items():
        codec = _codec(encoding)
        # Numbers and arrays of one shape as such; all others take the bytes of their stored values.
        has_form = isinstance(codec, NdArray) and codec.shape is not None and codec.dtype is not None
        is_number = isinstance(codec, Scalar) or has_form
        kind, convert = _numbers_form(codec) if is_number else (pa.large_binary(), partial(_binary, codec=codec))
        notes = {STORED_AS: codec.name.encode()}
        if name in logical:
            notes[LOGICAL] = json.dumps(logical[name]).encode()
        columns.append(ArrowColumn(pa.field(name, kind, nullable=False, metadata=notes), encoding, convert))
    return columns


def _codec(encoding: str) -> Encoding:
    # `float` is a type of text shards alone.
    return parse_encoding("float64" if encoding == "float" else encoding, allow_unsafe_types=True)


def _numbers_form(codec: Any) -> tuple[pa.DataType, Convert]:
    """Return the form of a column of numbers, or of arrays of one shape."""
    if isinstance(codec, NdArray):
        return fixed_lists_of(codec)
    item = pa.from_numpy_dtype(codec.dtype)
    return item, lambda values: pa.array(np.asarray(values), item)


def _value_form(
    name: str, codec: Encoding, kind: Mapping[str, Any], first_arrays: Callable[[str], Array | None]
) -> tuple[pa.DataType, Convert, dict[bytes, str]]:
    """Return Arrow type, conversion and metadata of one column."""
    family = str(kind.get("type"))
    keep = {STORED_AS: codec.name}
    if family == "image":
        return (
            pa.binary(),
            lambda values: pa.array(map(png_of, _decoded(codec, values)), pa.binary()),
            {STORED_AS: "png"},
        )
    if isinstance(codec, NdArray):
        return _array_form(name, codec, kind, first_arrays)
    if isinstance(codec, Scalar) and family not in ("plain", "decimal"):
        arrow = _number_arrow(kind)
        months = {LOGICAL: json.dumps(_without_mask(kind))} | keep if kind.get("unit") == "M" else {}
        return arrow, lambda values: _numbers(np.asarray(values), arrow), months
    if isinstance(codec, Scalar):
        return *_numbers_form(codec), keep if isinstance(codec, Int) else {}
    if isinstance(codec, Json) and family != "plain":
        arrow, restore = json_arrow(kind), json_restorer(kind)

        def nested(values: Any) -> pa.Array:
            found = _decoded(codec, values)
            return pa.array([_pairs(value if restore is None else restore(value), arrow) for value in found], arrow)

        return arrow, nested, {}
    return _simple_form(name, codec, kind, keep)


def _simple_form(
    name: str, codec: Encoding, kind: Mapping[str, Any], keep: dict[bytes, str]
) -> tuple[pa.DataType, Convert, dict[bytes, str]]:
    if isinstance(codec, Pil):
        return pa.binary(), lambda values: pa.array(map(_png, _decoded(codec, values)), pa.binary()), {STORED_AS: "png"}
    if isinstance(codec, ImageList):
        images = pa.list_(pa.field("item", pa.binary(), nullable=False))
        return images, lambda values: pa.array(map(codec.files, values.tolist()), images), keep
    is_decimal = isinstance(codec, StrDecimal) and kind.get("type") == "decimal"
    if is_decimal or isinstance(codec, StrInt | StrFloat):
        arrow = _decimal(kind) if is_decimal else pa.int64() if isinstance(codec, StrInt) else pa.float64()
        return arrow, lambda values: pa.array(_decoded(codec, values), arrow), {} if is_decimal else keep
    notes = {} if isinstance(codec, Str | Bytes) else keep
    if isinstance(codec, Str | Json | StrDecimal):
        return pa.string(), lambda values: _binary(values, codec).cast(pa.large_string()).cast(pa.string()), notes
    if isinstance(codec, Bytes | ImageFileEncoding):
        return pa.binary(), lambda values: _binary(values, codec).cast(pa.binary()), notes
    raise SchemaError(
        f"column {name!r} has encoding {codec.name!r}, whose values have no form in other formats: leave it out with "
        "`columns`",
        column=name,
    )


def _array_form(
    name: str, codec: NdArray, kind: Mapping[str, Any], first_arrays: Callable[[str], Array | None]
) -> tuple[pa.DataType, Convert, dict[bytes, str]]:
    """Return the form of a column of arrays: lists, nested as many times as the arrays have axes."""
    of = kind.get("of") if kind.get("type") == "array" else None
    if codec.shape is not None and codec.dtype is not None:
        return *_numbers_form(codec), {STORED_AS: codec.name}
    first = first_arrays(name)
    dtype = codec.dtype if codec.dtype is not None else first.dtype if first is not None else np.dtype(np.float64)
    ndim = 1 if first is None else first.ndim
    item = pa.from_numpy_dtype(dtype) if of is None else _number_arrow(of)
    arrow = item
    for _ in range(ndim):
        arrow = pa.list_(pa.field("item", arrow, nullable=False))
    notes = {STORED_AS: codec.name} if codec.dtype is None or kind.get("type") == "vector" else {}
    if kind.get("type") == "vector":
        notes[LOGICAL] = json.dumps(_without_mask(kind))
    return arrow, lambda values: _ragged_arrays(_decoded(codec, values), dtype, ndim, item), notes


def _without_mask(kind: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kind.items() if key != "mask"}


def fixed_lists_of(codec: NdArray) -> tuple[pa.DataType, Convert]:
    """Return the type of arrays of one shape as lists of fixed sizes, and the conversion of such arrays, stacked."""
    kinds = [pa.from_numpy_dtype(codec.dtype)]  # from the numbers outwards
    for size in reversed(codec.shape or ()):
        kinds.append(pa.list_(pa.field("item", kinds[-1], nullable=False), size))

    def convert(values: Any) -> pa.Array:
        array = pa.array(np.ascontiguousarray(np.asarray(values)).reshape(-1), kinds[0])
        for kind in kinds[1:]:
            array = pa.FixedSizeListArray.from_arrays(array, type=kind)
        return array

    return kinds[-1], convert


def _ragged_arrays(arrays: Sequence[Array], dtype: Any, ndim: int, item: pa.DataType) -> pa.Array:
    """Return lists, nested `ndim` deep, of arrays that may differ in their sizes."""
    for array in arrays:
        if array.ndim != ndim or array.dtype != dtype:
            raise SchemaError(
                f"an array of {array.dtype.name} with {array.ndim} axes, where the first has {np.dtype(dtype).name} "
                f"and {ndim}: a column of lists has one type. Leave it out with `columns`"
            )
    flat = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, dtype)
    shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), ndim)
    counts = np.concatenate([np.ones((len(arrays), 1), np.int64), np.cumprod(shapes, axis=1)], axis=1)
    found = _numbers(flat, item)
    for axis in reversed(range(ndim)):
        # Each row has counts[axis] lists of shapes[axis] items.
        sizes = np.repeat(shapes[:, axis], counts[:, axis])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        if ends[-1] >= 1 << 31:
            raise SchemaError("a batch of arrays with 2^31 numbers does not fit a list of Arrow")
        kind = pa.list_(pa.field("item", found.type, nullable=False))
        found = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), found, type=kind)
    return found


def _numbers(values: Array, arrow: pa.DataType) -> pa.Array:
    """Return numbers as an Arrow type that they represent: booleans, dates, times, durations."""
    if pa.types.is_boolean(arrow):
        return pa.array(np.asarray(number_type({"type": "bool"}).restore(values)), arrow)
    plain = pa.int64() if arrow.bit_width == 64 and pa.types.is_temporal(arrow) else pa.int32()
    return pa.array(values).cast(plain).cast(arrow) if pa.types.is_temporal(arrow) else pa.array(values, arrow)


_NUMBER_ARROW: dict[tuple[str, Any], pa.DataType] = {
    ("bool", None): pa.bool_(),
    ("date", None): pa.date32(),
    ("duration", "us"): pa.duration("us"),
    ("duration", "M"): pa.int32(),  # Parquet has no intervals of months
    ("time", "ns"): pa.time64("ns"),
}


def _number_arrow(kind: Mapping[str, Any]) -> pa.DataType:
    number_type(kind)  # refuses an unknown one
    if kind["type"] == "timestamp":
        return pa.timestamp("us", kind.get("zone"))
    return _NUMBER_ARROW[kind["type"], None if kind["type"] in ("bool", "date") else kind.get("unit")]


_JSON_LEAVES = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "binary": pa.binary()}


def json_arrow(kind: Mapping[str, Any]) -> pa.DataType:
    """Return the Arrow type of a value within JSON that the manifest describes so."""
    family = kind["type"]
    if family in _JSON_LEAVES:
        return _JSON_LEAVES[family]
    if family == "decimal":
        return _decimal(kind)
    if family == "list":
        return pa.list_(json_arrow(kind["of"]))
    if family == "map":
        return pa.map_(json_arrow(kind["keys"]), json_arrow(kind["values"]))
    if family == "struct":
        return pa.struct([(name, json_arrow(each)) for name, each in kind["fields"].items()])
    return _number_arrow(kind)


def _decimal(kind: Mapping[str, Any]) -> pa.DataType:
    precision = int(kind["precision"])
    return (pa.decimal128 if precision <= 38 else pa.decimal256)(precision, int(kind["scale"]))  # 38 digits in 128 bits


def _pairs(value: Any, kind: pa.DataType) -> Any:
    """Return a value with its maps as lists of pairs, as Arrow takes them, and numpy's times as numbers."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(_pairs(key, kind.key_type), _pairs(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: _pairs(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_pairs(item, kind.value_type) for item in value]
    if pa.types.is_temporal(kind):
        return pa.scalar(int(value.astype(np.int64)), pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    return value.item() if isinstance(value, np.generic) else value


def _binary(values: Any, codec: Encoding | None) -> pa.LargeBinaryArray:
    """Return the stored bytes of each value; without a copy where they lie end to end."""
    if isinstance(values, Ragged):
        offsets = pa.py_buffer(np.ascontiguousarray(values.offsets, np.int64))
        buffers = [None, offsets, pa.py_buffer(np.ascontiguousarray(values.data))]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)
    if codec is None:
        raise SchemaError("expected stored bytes")
    return pa.array([codec.encode(value) for value in values], pa.large_binary())


def _decoded(codec: Encoding, values: Any) -> Any:
    return codec.decode_many(values.data, values.offsets) if isinstance(values, Ragged) else values


_RED_FIRST = {3: [2, 1, 0], 4: [2, 1, 0, 3]}


def png_of(pixels: Array) -> bytes:
    """Return the PNG file of an image of Spark: uint8, shape (height, width, channels), blue first."""
    from PIL import Image

    channels = pixels.shape[2]
    return _png(Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels[:, :, _RED_FIRST[channels]]))


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    if image.mode not in ("1", "L", "LA", "RGB", "RGBA", "I;16", "I;16L"):
        raise SchemaError(f"an image of mode {image.mode} has no form as a PNG file; leave it out with `columns`")
    image.save(file, "PNG")
    return file.getvalue()


def schema_of(columns: Sequence[ArrowColumn]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([column.field for column in columns])


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as text, for a JSON file."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Return the schema that `encode_schema` wrote.

    Raises:
        SchemaError: The text is none.
    """
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError) as error:
        raise SchemaError(f"expected the text of an Arrow schema: {str(error)[:200]}") from error
