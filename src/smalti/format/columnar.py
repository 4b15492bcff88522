"""Arrow record batches to stored samples, column by column: bytes equal to those of one sample at a time.

A column becomes rows of bytes (fixed size) or a binary Arrow array; neighbouring fixed columns are laid side by side,
and one concatenation in Arrow's C++ puts the samples together. Only this and the two `arrow_*` modules of the format
need pyarrow, so they are imported when first used.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import SchemaError
from smalti.format.arrow_columns import Stored, encode_column
from smalti.format.exact import Array
from smalti.format.layout import OFFSET
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES


def encode_batch(schema: Schema, batch: pa.RecordBatch, *, first_row: int = 0) -> tuple[memoryview, Array]:
    """The samples of a batch, back to back, and the length of each (int64, shape (rows,)).

    Args:
        schema: The columns to write; the batch has exactly these, in any order.
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
        for name, codec in zip(schema.names, schema.codecs(), strict=True):
            columns.append(encode_column(codec, batch.column(names.index(name))))
    except SchemaError as error:
        # The number of columns done is the place of the one that failed.
        name, row = schema.names[len(columns)], first_row + int(error.facts.get("row", 0))
        raise SchemaError(
            f"column {name!r} ({schema.encodings[len(columns)]}), sample {row}: {error.message}",
            **{**error.facts, "column": name, "row": row},
        ) from error
    return _Rows(batch.num_rows).join(columns)


@dataclass(frozen=True)
class _Rows:
    count: int

    def join(self, columns: list[Stored]) -> tuple[memoryview, Array]:
        lengths = [_lengths(column) for column in columns if not isinstance(column, np.ndarray)]
        if lengths:
            self._check_lengths(lengths)
            head = np.stack(lengths, axis=1).astype(OFFSET).view(np.uint8)
            columns = [head, *columns]
        parts = self._side_by_side(columns)
        if len(parts) == 1 and isinstance(parts[0], np.ndarray):
            rows = np.ascontiguousarray(parts[0])
            return memoryview(rows.reshape(-1)), np.full(self.count, rows.shape[1], np.int64)
        arrays = [_as_binary(part) if isinstance(part, np.ndarray) else part for part in parts]
        empty = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(*arrays, empty) if len(arrays) > 1 else arrays[0]
        return _content(joined), _lengths(joined)

    def _side_by_side(self, columns: list[Stored]) -> list[Stored]:
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

    def _check_lengths(self, lengths: list[Array]) -> None:
        for values in lengths:
            if int(values.max()) > MAX_FILE_BYTES:
                raise SchemaError("a value of 4 GiB and more does not fit a shard.", row=int(values.argmax()))


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
