"""Batches by column out of one or many mapped shards: one gather per column over all of them.

A read plan is what reading needs to know about a schema, computed once. A shuffled batch takes a few samples from each
of many shards, so no step here loops over shards except the lookup.
"""

import operator
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import ArgumentError, BadImageError, FormatError, SampleIndexError, SchemaError
from smalti.format.encodings.encoding import Array, Encoding
from smalti.format.encodings.numbers import NdArray, Scalar
from smalti.format.encodings.registry import num_replaced, parse_encoding
from smalti.format.encodings.text import Bytes
from smalti.format.reading.files import (
    Cells,
    MappedRows,
    Ragged,
    collect,
    copies,
    gather,
    gather_into,
    locate,
)
from smalti.format.schema import Schema

_MAX_PLANS = 256
_plans: "dict[tuple[Schema, bool, int, tuple[str, ...] | None], ReadPlan]" = {}
Arrays = Mapping[str, Array]
"""Arrays of the caller to fill, by column."""
DECODER_ERRORS = (ValueError, ArithmeticError, RecursionError)
"""Errors that decoders raise on damaged bytes."""


def pick(at: Any, size: int, get: Callable[[int], Any], what: str) -> Any:
    """Return what `get` returns for an integer, or lists of it for more than one, nested as `at` is.

    `at` is an integer (negative ones count from the end), a slice, a list, perhaps of lists, or an array of integers.

    Raises:
        IndexError: No such number.
        ValueError: `at` is something else.
    """
    if isinstance(at, int | np.integer) and not isinstance(at, bool):
        number = operator.index(at)
        if not -size <= number < size:
            there = f"samples 0 to {size - 1}" if size else "no samples"
            raise SampleIndexError(f"sample {number} of {what}: it has {there}.")
        return get(number % size)
    if isinstance(at, slice):
        return [get(number) for number in range(*at.indices(size))]
    if isinstance(at, np.ndarray) and at.ndim and (at.dtype.kind in "iu" or not at.size):
        at = at.tolist()
    if isinstance(at, list):
        return [pick(item, size, get, what) for item in at]
    raise ArgumentError(
        f"{what} takes an integer, a slice, or lists or arrays of integers, found {type(at).__name__}"
        + (f" of {at.dtype}" if isinstance(at, np.ndarray) else "")
        + "."
    )


def check_rows(indices: Array, size: int, what: str) -> Array:
    """Return the sample numbers as an integer array of shape (n,).

    Negative numbers are refused.

    Raises:
        IndexError: Another shape or type, or a number outside [0, size).
    """
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise SampleIndexError(
            f"expected a one-dimensional array of sample numbers, found {rows.dtype} of shape {rows.shape}"
        )
    if rows.size and not (rows.min() >= 0 and rows.max() < size):
        raise SampleIndexError(f"samples {rows.min()} to {rows.max()} of {size} in {what}")
    return rows


@dataclass(frozen=True)
class ColumnReadPlan:
    """Location, decoder and batch form of the values of one column."""

    name: str
    codec: Encoding
    size: int | None
    """Bytes of each value; None if its length stands in front of the sample."""
    dtype: "np.dtype[Any] | None"
    """Element type, little-endian, if a batch of the column is one array; else None."""
    shape: tuple[int, ...]
    """Shape of one value of such a column."""
    is_verbatim: bool
    """True if batches carry the stored bytes themselves."""


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """A schema prepared for reading.

    Equal schemas share one object, so that batches can compare shards by identity.
    """

    schema: Schema
    names: tuple[str, ...] | None
    """Columns that are read, in the order of the result; None for all."""
    columns: tuple[ColumnReadPlan, ...]
    """Those that are read."""
    steps: tuple[tuple[str, Encoding, Callable[[bytes], Any], int | None], ...]
    """Name, encoding, decoder and size of each column, for single samples."""
    head_bytes: int
    """Bytes of the lengths in front of each sample."""
    lengths: Callable[..., tuple[int, ...]]
    """Unpacks these lengths from a buffer at an offset."""
    min_bytes: int
    """Bytes of a sample whose columns of varying length are all empty."""
    places: tuple[tuple[int, int], ...]
    """For each column that is read, the bytes of columns of fixed size in front of it, and the number of columns of
    varying length there."""


@dataclass(frozen=True)
class OpenOptions:
    """The choices of a reader of shards."""

    allow_unsafe_types: bool = False
    """True if columns are allowed that run code when they are read."""
    check_config: bool = False
    """True if a shard's own description of its columns must equal that of the index: for shards that Smalti wrote."""
    names: tuple[str, ...] | None = None
    """Columns to read, in the order of the result; None for all. A line of a text shard is parsed as a whole."""


DEFAULTS = OpenOptions()


def read_plan(schema: Schema, *, allow_unsafe_types: bool, names: tuple[str, ...] | None = None) -> ReadPlan:
    """Return the plan of a schema; thread-safe.

    `names` are the columns to read, in the order of the result; None for all.

    Raises:
        SchemaError: There is no such column, or the encoding of one that is read is unknown or unsafe.
    """
    key = schema, allow_unsafe_types, num_replaced(), names
    if (known := _plans.get(key)) is not None:
        return known
    check_column_names(names or (), schema.names)
    read = schema if names is None else schema.only(names)
    columns = []
    for name, codec, size in zip(
        read.names, read.codecs(allow_unsafe_types=allow_unsafe_types), read.sizes, strict=True
    ):
        dtype = codec.dtype if isinstance(codec, Scalar) else None
        shape: tuple[int, ...] = ()
        if isinstance(codec, NdArray) and codec.dtype is not None and codec.shape is not None:
            dtype, shape = codec.dtype, codec.shape
        columns.append(ColumnReadPlan(name, codec, size, dtype, shape, is_verbatim(codec)))
    places, fixed_bytes, num_lengths = {}, 0, 0
    for name, size in zip(schema.names, schema.sizes, strict=True):
        places[name] = fixed_bytes, num_lengths
        fixed_bytes += size or 0
        num_lengths += size is None
    plan = ReadPlan(
        schema,
        names,
        tuple(columns),
        tuple((column.name, column.codec, column.codec.decode, column.size) for column in columns),
        4 * num_lengths,
        struct.Struct(f"<{num_lengths}I").unpack_from,
        4 * num_lengths + fixed_bytes,
        tuple(places[name] for name in read.names),
    )
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    # Not lru_cache: threads that call it at the same time would get different objects.
    return _plans.setdefault(key, plan)


def is_verbatim(codec: Encoding) -> bool:
    """Return whether batches carry the stored bytes themselves, as they do for bytes and image files."""
    return codec.is_image or isinstance(codec, Bytes)


def decode_gathered(schema: Schema, gathered: Mapping[str, Any]) -> dict[str, Any]:
    """Decode what `Shard.gather` returned, perhaps in another process, into the batch of `Shard.batch`; pure.

    Values that are no `Ragged` are returned as they are.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, are attributes.
        SchemaError: A column whose encoding is refused.
    """
    encodings = schema.columns()  # used for `Ragged` values only: numbers in text shards have other encodings
    found = dict(gathered)
    for name, values in gathered.items():
        if isinstance(values, Ragged):
            codec = parse_encoding(encodings[name])
            found[name] = (
                values.tolist()
                if is_verbatim(codec)
                else decode_column(name, codec, values, lambda row: f"row {row} of the batch")
            )
    return found


def decode_column(name: str, codec: Encoding, values: Ragged, where: Callable[[int], str]) -> Any:
    """Decode the values of one column.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, are attributes.
    """
    try:
        return codec.decode_many(values.data, values.offsets)
    except DECODER_ERRORS as error:
        row, cause = 0, error
        if isinstance(error, FormatError) and "row" in error.facts:
            row = int(error.row)
        else:  # the first value that does not decode by itself
            for place, value in enumerate(values.tolist()):
                try:
                    codec.decode(value)
                except DECODER_ERRORS as reason:  # noqa: PERF203 - runs only after a failure
                    row, cause = place, reason
                    break
        raise damaged(name, codec, where(row), cause, row=row) from cause


def damaged(name: str, codec: Encoding, where: str, cause: Exception, **facts: Any) -> FormatError:
    """Return the error for a value that does not decode; for an image file it has the class of the cause."""
    kind = type(cause) if isinstance(cause, BadImageError) else FormatError
    return kind(
        f"{where}, column {name!r}: not a value of {codec.name} ({cause}); the shard is damaged. Fetch it again, or "
        "run the writer again.",
        column=name,
        **facts,
    )


def read_batch(source: MappedRows, plan: ReadPlan, out: Arrays | None = None) -> dict[str, Any]:
    """Read and decode the samples by column; see `batch_of`."""

    def values(column: ColumnReadPlan, cells: Cells) -> Any:
        if column.is_verbatim:
            return copies(source, cells)
        try:
            return decode_column(column.name, column.codec, collect(source, cells), source.where)
        except FormatError as error:
            error.facts["sample"] = int(source.rows[error.row])
            raise

    return _read(source, plan, plan.columns, out or {}, values)


def gather_batch(source: MappedRows, plan: ReadPlan, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the samples by column, undecoded; see `Shard.gather`."""
    known = {column.name: column for column in plan.columns}
    check_column_names(columns or (), known)
    chosen = plan.columns if columns is None else [known[name] for name in columns]
    return _read(source, plan, chosen, {}, lambda _, cells: collect(source, cells))


def check_column_names(names: Iterable[str], known: Collection[str]) -> None:
    """Return only if every column of `names` exists.

    Raises:
        SchemaError: There is no such column.
    """
    columns = set(known)
    for name in names:
        if name not in columns:
            raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(known)}.", column=name)


def _read(
    source: MappedRows,
    plan: ReadPlan,
    columns: Sequence[ColumnReadPlan],
    out: Arrays,
    values: Callable[[ColumnReadPlan, Cells], Any],
) -> dict[str, Any]:
    places = dict(zip(plan.schema.names, locate(source, plan.schema.sizes), strict=True))
    found: dict[str, Any] = {}
    for column in columns:
        cells = places[column.name]
        if column.dtype is None:
            found[column.name] = values(column, cells)
        elif column.name in out:
            array = check_out(out[column.name], column.name, (len(source.rows), *column.shape), column.dtype)
            gather_into(source.data, cells[0], array, column.dtype)
            found[column.name] = array
        else:
            stored = gather(source.data, cells[0], column.size or 0).view(column.dtype)
            native = stored.astype(column.dtype.newbyteorder("="), copy=False)  # a copy on big-endian machines only
            found[column.name] = native.reshape(len(source.rows), *column.shape)
    return found


def check_out(array: Array, name: str, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """Return the array if a column of this shape and element type can be written into it.

    Raises:
        SchemaError: It cannot.
    """
    expected = dtype.newbyteorder("=")
    if array.shape != shape or array.dtype != expected or not array.flags.writeable:
        raise SchemaError(
            f"`out` for column {name!r}: expected a writable array of {expected.name}, shape {shape}, found "
            f"{array.dtype.name}, shape {array.shape}.",
            column=name,
        )
    return array


def filled(columns: dict[str, Any], out: Arrays | None) -> dict[str, Any]:
    """Write the columns that are arrays into those of `out` that have their names, and return the batch.

    Raises:
        SchemaError: An array of `out` has another dtype or shape, or cannot be written.
    """
    for name, array in (out or {}).items():
        found = columns.get(name)
        if isinstance(found, np.ndarray):
            check_out(array, name, found.shape, found.dtype)[...] = found
            columns[name] = array
    return columns
