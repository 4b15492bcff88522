"""Samples of LitData's chunks that are stored as an Arrow table: flat or nested dicts of numbers, texts and bytes.

The index describes the columns of all chunks (`types`); each chunk has those that its samples have, in the types that
Arrow found for their values. Arrow trusts the offsets in a table, so each batch is validated before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from smalti.conversion.sources.litdata_chunk import ADVICE, Chunk, ChunkData
from smalti.errors import FormatError, SchemaError
from smalti.writer.tables.plain import cast_array, plain_array

_FILE = b"ARROW1"
_KINDS = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "bytes": pa.binary(),
    "null": pa.null(),
}  # fmt: skip
_MAX_DEPTH = 64


@dataclass(frozen=True)
class Rows:
    """Samples that are the rows of Arrow tables, and their columns."""

    schema: pa.Schema

    def batches(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a chunk in order.

        Raises:
            FormatError: The chunk is damaged, or has samples of another form.
        """
        content = chunk.read()
        count = 0
        for batch in _batches(content):
            count += batch.num_rows
            arrays = [_column(chunk, batch, field) for field in self.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if count != content.num_items:
            raise chunk.damaged(f"its table has {count} rows, and {content.num_items} samples are declared")


def row_columns(where: str, types: Any, names: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a set of rows, by the `types` of its index.

    Raises:
        FormatError: They cannot be read.
        SchemaError: There is no such column, or one has values of several types.
    """
    if not isinstance(types, dict) or not types:
        raise FormatError(f"{where}: the chunks hold Arrow tables, and `types` of the index names no columns; {ADVICE}")
    if names is not None:
        for name in names:
            if name not in types:
                raise SchemaError(f"there is no column {name!r}; the columns are {', '.join(types)}", column=name)
        types = {name: types[name] for name in names}
    fields = []
    for name, described in types.items():
        kind = _arrow_type(described, 0)
        if kind is None:
            raise SchemaError(
                f"{where}: column {name!r} has values of several types ({str(described)[:100]}), which are not read; "
                f"leave it out with `columns`, or {ADVICE}",
                column=name,
            )
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _arrow_type(described: Any, depth: int) -> pa.DataType | None:
    """Return the type that LitData describes; None if it is no type of a column."""
    if isinstance(described, str):
        return _KINDS.get(described)
    kind = described.get("type") if isinstance(described, Mapping) else None
    if kind == "list" and depth < _MAX_DEPTH:
        # The type of lists that were all empty is "json".
        value = pa.null() if described.get("value") == "json" else _arrow_type(described.get("value"), depth + 1)
        return None if value is None else pa.list_(value)
    if kind == "struct" and depth < _MAX_DEPTH and isinstance(described.get("fields"), Mapping):
        fields = {name: _arrow_type(field, depth + 1) for name, field in described["fields"].items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return _KINDS.get(kind) if isinstance(kind, str) else None


def _batches(content: ChunkData) -> Iterator[pa.RecordBatch]:
    table = content.table()
    if table is None:
        raise content.chunk.damaged("its samples are stored as items, and those of the first chunk as an Arrow table")
    source = pa.py_buffer(table)
    try:
        if bytes(table[: len(_FILE)]) == _FILE:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            batches = iter(pa.ipc.open_stream(source))
        for batch in batches:
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, ValueError) as error:
        raise content.chunk.damaged(f"its Arrow table: {str(error)[:200]}") from error


def _column(chunk: Chunk, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    place = batch.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(batch.num_rows, field.type)
    try:
        return cast_array(plain_array(batch.column(place)), field.type)
    except pa.ArrowException as error:
        raise FormatError(
            f"{chunk.file.url}: column {field.name!r} is {batch.column(place).type} there, and the index describes it "
            f"as {field.type}: {str(error)[:200]}; leave it out with `columns`, or {ADVICE}",
            column=field.name,
            key=chunk.file.key,
        ) from error
