"""Arrow record batches to stored samples, column by column: bytes equal to those of one sample at a time.

A column becomes rows of bytes (fixed size) or a binary Arrow array; neighbouring fixed columns are laid side by side,
and one concatenation in Arrow's C++ puts the samples together. Only this and the two `arrow_*` modules of the format
need pyarrow, so they are imported when first used.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import SchemaError
from smalti.format.arrow_columns import Stored, encode_column
from smalti.format.encoding import Encoding
from smalti.format.exact import Array
from smalti.format.layout import OFFSET
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES

_STRIP_BYTES = 1 << 20  # stays in a processor's cache between being put together and being copied on


class EncodedRows:
    """The samples of one batch, checked, column by column; put together strip by strip."""

    def __init__(self, count: int, columns: list[Stored]) -> None:
        self._columns = columns
        variable = [_lengths(column) for column in columns if not isinstance(column, np.ndarray)]
        fixed = sum(column.shape[1] for column in columns if isinstance(column, np.ndarray))
        self.lengths: Array = np.full(count, fixed + 4 * len(variable), np.int64)
        """Bytes of each sample, int64, shape (rows,)."""
        for values in variable:
            self.lengths += values

    def strips(self, begin: int, end: int) -> Iterator[memoryview]:
        """The bytes of samples [begin, end), in order, in pieces of a good size for copying."""
        while begin < end:
            stop = min(end, begin + self._rows_per_strip(begin))
            yield _join([_rows_of(column, begin, stop) for column in self._columns])
            begin = stop

    def _rows_per_strip(self, begin: int) -> int:
        ends = np.cumsum(self.lengths[begin : begin + _STRIP_BYTES // max(1, int(self.lengths[begin]))])
        return max(1, int(np.searchsorted(ends, _STRIP_BYTES, side="right")))


def encode_batch(
    schema: Schema, codecs: tuple[Encoding, ...], batch: pa.RecordBatch, *, first_row: int = 0
) -> EncodedRows:
    """The samples of a batch.

    Args:
        schema: The columns to write; the batch has exactly these, in any order.
        codecs: Their encodings.
        batch: At least one row.
        first_row: Number of the first row, for messages.

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
    columns: list[Stored] = []
    try:
        for name, codec in zip(schema.names, codecs, strict=True):
            columns.append(_checked_lengths(encode_column(codec, batch.column(names.index(name)))))
    except SchemaError as error:
        # The number of columns done is the place of the one that failed.
        name, row = schema.names[len(columns)], first_row + int(error.facts.get("row", 0))
        raise SchemaError(
            f"column {name!r} ({schema.encodings[len(columns)]}), sample {row}: {error.message}",
            **{**error.facts, "column": name, "row": row},
        ) from error
    return EncodedRows(batch.num_rows, columns)


def _checked_lengths(column: Stored) -> Stored:
    if not isinstance(column, np.ndarray):
        lengths = _lengths(column)
        if int(lengths.max()) > MAX_FILE_BYTES:
            raise SchemaError("a value of 4 GiB and more does not fit a shard.", row=int(lengths.argmax()))
    return column


def _rows_of(column: Stored, begin: int, end: int) -> Stored:
    return column[begin:end] if isinstance(column, np.ndarray) else column.slice(begin, end - begin)


def _join(columns: list[Stored]) -> memoryview:
    lengths = [_lengths(column) for column in columns if not isinstance(column, np.ndarray)]
    if lengths:
        head = np.stack(lengths, axis=1).astype(OFFSET).view(np.uint8)
        columns = [head, *columns]
    parts = _side_by_side(columns)
    if len(parts) == 1 and isinstance(parts[0], np.ndarray):
        return memoryview(np.ascontiguousarray(parts[0]).reshape(-1))
    arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
    empty = pa.scalar(b"", pa.large_binary())
    return _content(pc.binary_join_element_wise(*arrays, empty))


def _side_by_side(columns: list[Stored]) -> list[Stored]:
    parts: list[Stored] = []
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


def _offsets(column: pa.LargeBinaryArray) -> Array:
    offsets: Array = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, offset=8 * column.offset)
    return offsets


def _lengths(column: pa.LargeBinaryArray) -> Array:
    return np.diff(_offsets(column))


def _content(column: pa.LargeBinaryArray) -> memoryview:
    offsets, data = _offsets(column), column.buffers()[2]
    return memoryview(data or b"")[int(offsets[0]) : int(offsets[-1])]


def _as_binary(rows: Array) -> pa.LargeBinaryArray:
    count, width = rows.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int64) if width else np.zeros(count + 1, np.int64)
    data = np.ascontiguousarray(rows).reshape(-1)
    buffers: list[Any] = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers)
