"""Batches by column out of one or many mapped shards: one gather per column over all of them.

A shuffled batch takes a few samples from each of many shards. So nothing here is done per shard but to look it up.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import FormatError, SchemaError
from smalti.format.decoding import decode_column
from smalti.format.gather import Cells, collect, copies, gather, gather_into, locate
from smalti.format.mapping import Int64s, MappedFile, Source
from smalti.format.plan import ColumnPlan, ReadPlan

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Picked:
    """Which samples a batch has, out of which mapped shards of one schema."""

    files: Sequence[MappedFile]
    which: Int64s
    """Each row's place in `files`, int64, shape (n,)."""
    rows: Int64s
    """Each row's sample in its shard, int64, shape (n,), each in [0, N)."""
    plan: ReadPlan

    def where(self, row: int) -> str:
        """A row's shard and sample, for messages."""
        return f"{self.files[int(self.which[row])].name}, sample {int(self.rows[row])}"


def read_batch(picked: Picked, out: Arrays | None = None) -> dict[str, Any]:
    """The samples by column; see `Shard.batch`."""

    def values(source: Source, column: ColumnPlan, cells: Cells) -> Any:
        if column.is_verbatim:
            return copies(source, cells)
        try:
            return decode_column(column.name, column.codec, collect(source, cells), picked.where)
        except FormatError as error:
            error.facts["sample"] = int(picked.rows[error.row])
            raise

    return _read(picked, picked.plan.columns, out or {}, values)


def gather_batch(picked: Picked, columns: Sequence[str] | None = None) -> dict[str, Any]:
    """The samples by column, undecoded; see `Shard.gather`."""
    known = {column.name: column for column in picked.plan.columns}
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise SchemaError(f"there is no column {unknown[0]!r}; the columns are {', '.join(known)}.", column=unknown[0])
    wanted = picked.plan.columns if columns is None else [known[name] for name in columns]
    return _read(picked, wanted, {}, lambda source, _, cells: collect(source, cells))


def _read(
    picked: Picked, wanted: Sequence[ColumnPlan], out: Arrays, values: Callable[[Source, ColumnPlan, Cells], Any]
) -> dict[str, Any]:
    source = Source(picked.files, picked.which)
    places = dict(zip(picked.plan.schema.names, locate(source, picked.rows, picked.plan.schema.sizes), strict=True))
    found: dict[str, Any] = {}
    for column in wanted:
        cells = places[column.name]
        if column.dtype is None:
            found[column.name] = values(source, column, cells)
        elif column.name in out:
            array = check_out(out[column.name], column.name, (len(picked.rows), *column.shape), column.dtype)
            gather_into(source.data, cells.begin, array, column.dtype)
            found[column.name] = array
        else:
            stored = gather(source.data, cells.begin, column.size or 0)
            found[column.name] = _native(stored, column.dtype).reshape(len(picked.rows), *column.shape)
    return found


def _native(stored: Array, dtype: "np.dtype[Any]") -> Array:
    array: Array = stored.view(dtype)
    return array.astype(dtype.newbyteorder("="), copy=False)  # moves bytes on big-endian machines alone


def check_out(array: Array, name: str, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """The array, when a column of this shape and element type can be written into it.

    Raises:
        SchemaError: It cannot.
    """
    wanted = dtype.newbyteorder("=")
    if array.shape != shape or array.dtype != wanted or not array.flags.writeable:
        raise SchemaError(
            f"`out` for column {name!r}: expected a writable array of {wanted.name}, shape {shape}, found "
            f"{array.dtype.name}, shape {array.shape}.",
            column=name,
        )
    return array
