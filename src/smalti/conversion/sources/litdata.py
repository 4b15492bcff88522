"""Chunks of LitData (`litdata.optimize`), read by their own format: neither litdata nor torch is needed.

    index.json    chunks, and config: form of the samples, compression
    a chunk       samples leaf by leaf (`litdata_items`), or as the rows of an Arrow table (`ChunkOfRows`)

A sample that is a dict gives a column for each key, `a.b` for a nested one that is stored leaf by leaf; of a list or
tuple the columns are named by number, and a single leaf is `value`. Pickles are refused: to read them runs code. Chunks
that are encrypted, of tokens (`TokensLoader`) or compressed in frames are refused with advice.

Samples in chunks that are stored as an Arrow table are flat or nested dicts of numbers, texts and bytes.

The index describes the columns of all chunks (`types`); each chunk has those that its samples have, in the types that
Arrow found for their values. Arrow trusts the offsets in a table, so each batch is validated before it is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from smalti.conversion.files import StoredFile, is_file_name, marks_of
from smalti.conversion.source import OpenedSource, SourceOptions, check_columns
from smalti.conversion.sources.litdata_items import ADVICE, Chunk, ChunkData, ChunkOfItems, item_columns
from smalti.errors import FormatError, SchemaError, StoreNotFound
from smalti.format import load_strict
from smalti.format.index import MAX_INDEX_BYTES
from smalti.storage import Store, open_store
from smalti.writer.tables.plain import cast_array, plain_array

_FILE = b"ARROW1"
_KINDS = {
    "str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "bytes": pa.binary(),
    "null": pa.null(),
}  # fmt: skip
_MAX_DEPTH = 64


@dataclass(frozen=True)
class ChunkOfRows(Chunk):
    """The samples of a chunk that are the rows of an Arrow table."""

    schema: pa.Schema = field(repr=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the samples in order; memory holds one chunk.

        Raises:
            FormatError: The chunk is damaged, or has samples of another form.
        """
        content = self.read()
        count = 0
        for batch in self._tables(content):
            count += batch.num_rows
            arrays = [self._column(batch, field) for field in self.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        expected = len(content.offsets) - 1
        if count != expected:
            raise self.damaged(f"its table has {count} rows, and {expected} samples are declared")

    def _tables(self, content: ChunkData) -> Iterator[pa.RecordBatch]:
        table = content.table()
        if table is None:
            raise self.damaged("its samples are stored as items, and those of the first chunk as an Arrow table")
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
            raise self.damaged(f"its Arrow table: {str(error)[:200]}") from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            return pa.nulls(batch.num_rows, field.type)
        try:
            return cast_array(plain_array(batch.column(place)), field.type)
        except pa.ArrowException as error:
            raise FormatError(
                f"{self.file.url}: column {field.name!r} is {batch.column(place).type} there, and the index describes "
                f"it as {field.type}: {str(error)[:200]}; leave it out with `columns`, or {ADVICE}",
                column=field.name,
                key=self.file.key,
            ) from error


def row_columns(where: str, types: Any, names: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a set of rows, by the `types` of its index.

    Raises:
        FormatError: They cannot be read.
        SchemaError: There is no such column, or one has values of several types.
    """
    if not isinstance(types, dict) or not types:
        raise FormatError(f"{where}: the chunks hold Arrow tables, and `types` of the index names no columns; {ADVICE}")
    if names is not None:
        check_columns(where, names, types)
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


_INDEX = "index.json"


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001 -- the interface of formats
    """Return whether files of these names are chunks of LitData."""
    return _INDEX in names and any(name.startswith("chunk-") and name.endswith(".bin") for name in names)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the samples of the chunks at a place.

    Raises:
        StoreNotFound: There is no index file, or a chunk is missing.
        FormatError: The index cannot be read, or the chunks have a form that is not.
        SchemaError: A column is pickled or cannot be stored; or there is no such column.
    """
    options.settings_of("chunks of LitData")
    store = open_store(place, options.storage_options)
    index = _read_index(store)
    config = index["config"]
    _check_config(store, config)
    compression = None if config.get("compression") is None else str(config["compression"]).partition(":")[0]
    chunks = tuple(_chunks(store, index["chunks"], compression))
    first = chunks[0].read() if chunks else None
    parts: list[ChunkOfRows] | list[ChunkOfItems]
    if first is not None and first.table() is not None:
        schema = row_columns(store.url, config.get("types"), options.columns)
        parts = [ChunkOfRows(**vars(chunk), schema=schema) for chunk in chunks]
    else:
        num_leaves, columns = item_columns(store.url, config, first, options.columns)
        schema = pa.schema([column.field for column in columns])
        parts = [ChunkOfItems(**vars(chunk), num_leaves=num_leaves, columns=columns) for chunk in chunks]
    return OpenedSource(store.url, schema, parts, partial(marks_of, [chunk.file for chunk in chunks]))


def _read_index(store: Store) -> dict[str, Any]:
    found = load_strict(store.get_limited(_INDEX, MAX_INDEX_BYTES), where=store.locate(_INDEX))
    if not isinstance(found, dict) or not isinstance(found.get("chunks"), list):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with `chunks` and `config`")
    if not isinstance(found.get("config"), dict):
        raise FormatError(f"{store.locate(_INDEX)}: expected an index of LitData with a `config`")
    return found


def _check_config(store: Store, config: Mapping[str, Any]) -> None:
    if config.get("encryption"):
        raise FormatError(f"{store.url}: the chunks are encrypted; {ADVICE}")
    if config.get("item_loader") not in (None, "PyTreeLoader"):
        raise FormatError(f"{store.url}: the chunks are made for {config['item_loader']}, which is not read; {ADVICE}")
    compression = str(config.get("compression") or "zstd").partition(":")[0]
    is_framed = config.get("compression_batch_size") or config.get("compression_level") not in (None, "chunk")
    if compression != "zstd" or is_framed:
        raise FormatError(f"{store.url}: compression {config.get('compression')!r} in frames is not read; {ADVICE}")


def _chunks(store: Store, entries: Sequence[Any], compression: str | None) -> Iterator[Chunk]:
    names = set()
    for entry in entries:
        name = entry.get("filename") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not is_file_name(name):
            raise FormatError(f"{store.locate(_INDEX)}: {name!r:.100} is no name of a chunk")
        if name in names:
            raise FormatError(f"{store.locate(_INDEX)} names chunk {name} twice; write the index again")
        names.add(name)
        count = entry.get("chunk_size")
        try:
            file = StoredFile(store, name, store.size(name))
        except StoreNotFound as error:
            raise StoreNotFound(
                f"{store.locate(name)}: the index names this chunk, which is missing", key=name
            ) from error
        yield Chunk(file, compression, count if type(count) is int else None)
