"""Batches by column out of one or many mapped shards: one gather per column over all of them.

A shuffled batch takes a few samples from each of many shards, so no step here loops over shards except the lookup.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.encodings.encoding import Array, Encoding, Int64s
from smalti.format.encodings.registry import parse_encoding
from smalti.format.reading.gather import Cells, Ragged, collect, copies, gather, gather_into, locate
from smalti.format.reading.mapping import MappedFile, MappedRows
from smalti.format.reading.plan import ColumnReadPlan, ReadPlan, is_verbatim
from smalti.format.schema import Schema

Arrays = Mapping[str, Array]
"""Arrays of the caller to fill, by column."""
DECODER_ERRORS = (ValueError, ArithmeticError, RecursionError)
"""Errors that decoders raise on damaged bytes."""


def decode_gathered(schema: Schema, gathered: Mapping[str, Any], *, allow_unsafe_types: bool = False) -> dict[str, Any]:
    """Decode what `Shard.gather` returned, perhaps in another process, into the batch of `Shard.batch`; pure.

    Args:
        schema: The shard's.
        gathered: Column to values; those that are no `Ragged` are returned as they are.
        allow_unsafe_types: Whether columns that run code when they are read are allowed.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, are attributes.
        SchemaError: A column whose encoding is refused.
    """
    encodings = schema.columns()  # used for `Ragged` values only: numbers in text shards have other encodings
    found = dict(gathered)
    for name, values in gathered.items():
        if isinstance(values, Ragged):
            codec = parse_encoding(encodings[name], allow_unsafe_types=allow_unsafe_types)
            found[name] = values.tolist() if is_verbatim(codec) else decode_column(name, codec, values, _place)
    return found


def _place(row: int) -> str:
    return f"row {row} of the batch"


def decode_column(name: str, codec: Encoding, values: Ragged, where: Callable[[int], str]) -> Any:
    """Decode the values of one column.

    Args:
        name: The column's.
        codec: Its encoding.
        values: Their bytes.
        where: Names a row of the batch, for the message.

    Raises:
        FormatError: A value is damaged; `column` and `row`, its place in the batch, are attributes.
    """
    try:
        return codec.decode_many(values.data, values.offsets)
    except DECODER_ERRORS as error:
        row, cause = _find_damaged(codec, values, error)
        raise damaged(name, codec, where(row), cause, row=row) from cause


def damaged(name: str, codec: Encoding, where: str, cause: Exception, **facts: Any) -> FormatError:
    """Return the error for a value that does not decode."""
    return FormatError(
        f"{where}, column {name!r}: not a value of {codec.name} ({cause}); the shard is damaged. Fetch it again, or "
        "run the writer again.",
        column=name,
        **facts,
    )


def _find_damaged(codec: Encoding, values: Ragged, error: Exception) -> tuple[int, Exception]:
    """Find the first value that does not decode by itself, and its error."""
    if isinstance(error, FormatError) and "row" in error.facts:
        return int(error.row), error
    for row, value in enumerate(values.tolist()):
        try:
            codec.decode(value)
        except DECODER_ERRORS as cause:  # noqa: PERF203 - runs only after a failure
            return row, cause
    return 0, error


@dataclass(frozen=True)
class RowSelection:
    """The samples of a batch: which rows of which mapped shards of one schema."""

    files: Sequence[MappedFile]
    which: Int64s
    """Place in `files` of each row of the batch, int64, shape (n,)."""
    rows: Int64s
    """Sample in its shard of each row of the batch, int64, shape (n,), each in [0, N)."""
    plan: ReadPlan

    def where(self, row: int) -> str:
        """Return shard and sample of a row, for messages."""
        return f"{self.files[int(self.which[row])].name}, sample {int(self.rows[row])}"


def read_batch(selection: RowSelection, out: Arrays | None = None) -> dict[str, Any]:
    """Read and decode the samples by column; see `Shard.batch`."""

    def values(source: MappedRows, column: ColumnReadPlan, cells: Cells) -> Any:
        if column.is_verbatim:
            return copies(source, cells)
        try:
            return decode_column(column.name, column.codec, collect(source, cells), selection.where)
        except FormatError as error:
            error.facts["sample"] = int(selection.rows[error.row])
            raise

    return _read(selection, selection.plan.columns, out or {}, values)


def gather_batch(selection: RowSelection, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Read the samples by column, undecoded; see `Shard.gather`."""
    known = {column.name: column for column in selection.plan.columns}
    check_column_names(columns or (), known)
    chosen = selection.plan.columns if columns is None else [known[name] for name in columns]
    return _read(selection, chosen, {}, lambda source, _, cells: collect(source, cells))


def check_column_names(names: Iterable[str], known: Collection[str]) -> None:
    """Return only if every column of `names` exists.

    Raises:
        SchemaError: There is no such column.
    """
    for name in names:
        if name not in known:
            raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(known)}.", column=name)


def _read(
    selection: RowSelection,
    columns: Sequence[ColumnReadPlan],
    out: Arrays,
    values: Callable[[MappedRows, ColumnReadPlan, Cells], Any],
) -> dict[str, Any]:
    source = MappedRows(selection.files, selection.which)
    places = dict(
        zip(selection.plan.schema.names, locate(source, selection.rows, selection.plan.schema.sizes), strict=True)
    )
    found: dict[str, Any] = {}
    for column in columns:
        cells = places[column.name]
        if column.dtype is None:
            found[column.name] = values(source, column, cells)
        elif column.name in out:
            array = check_out(out[column.name], column.name, (len(selection.rows), *column.shape), column.dtype)
            gather_into(source.data, cells.begin, array, column.dtype)
            found[column.name] = array
        else:
            stored = gather(source.data, cells.begin, column.size or 0)
            found[column.name] = _native(stored, column.dtype).reshape(len(selection.rows), *column.shape)
    return found


def _native(stored: Array, dtype: "np.dtype[Any]") -> Array:
    array: Array = stored.view(dtype)
    return array.astype(dtype.newbyteorder("="), copy=False)  # a copy on big-endian machines only


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
