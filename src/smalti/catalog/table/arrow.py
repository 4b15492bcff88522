"""The Arrow file of a shard table: a million shards take 200 MB, where JSON takes 450 MB and 1.5 times as long.

Its layouts, and how it is read, are in `smalti.catalog.table.content`.

`pack_shards` returns a table as short text for the results of Spark tasks: a tenth of the JSON, so that a driver can
keep all of them.
"""

import base64
import binascii
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.content import (
    COLUMNS,
    MAX_TABLE_BYTES,
    PARTIAL_COLUMNS,
    TABLE_VERSION,
    TEXT_COLUMNS,
    TEXT_TABLE_VERSION,
    WORD,
    checked_content,
    load_content,
    own_content,
)
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import IndexFileError
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_AT_ONCE = 1 << 14
_COMPRESSION_LEVEL = 6
_quoted = json.encoder.encode_basestring_ascii


def emit_table(*parts: Iterable[ShardInfo]) -> bytes:
    """Return the Arrow IPC file of the shards of all parts; equal shards give equal bytes with one version of Arrow.

    It is not created again if it is in memory. No shards are created of parts that are tables, if all have the same
    schemas: their columns are joined as they are, in a tenth of the time. Other parts are iterated once, some thousands
    of shards at a time; memory is about twice the size of the file.
    """
    known = created_bytes(parts[0]) if len(parts) == 1 else None
    if known is not None:
        return known
    columns = [(pieces, schemas) for pieces, schemas in map(_columns_of, parts) if pieces]
    if any(schemas != columns[0][1] for _, schemas in columns):
        columns = [_built(chain.from_iterable(parts))]
    return file_of([piece for pieces, _ in columns for piece in pieces], columns[0][1] if columns else [])


def created_bytes(shards: Iterable[ShardInfo]) -> bytes | None:
    """Return the bytes of the file with exactly these shards, if this process has them; they were checked then."""
    files = shards.content.files if isinstance(shards, ShardTable) and shards.is_whole else ()
    content = files[0].loaded if len(files) == 1 else None
    return bytes(content.data) if content is not None and content.source is None else None


def _columns_of(shards: Iterable[ShardInfo]) -> tuple[list["pa.Table"], Sequence[dict[str, Any]]]:
    """Return the columns of the shards, in pieces, and their schemas; not built if they are rows of files."""
    import pyarrow as pa

    spans = shards.spans() if isinstance(shards, ShardTable) else []
    if not spans or any(content.schemas != spans[0][0].schemas for content, _, _ in spans):
        return _built(shards)
    batches = [content.slice(first, last) for content, first, last in spans]
    return [pa.Table.from_batches([batch]).cast(_plain_schema()) for batch in batches], spans[0][0].schemas


def _built(shards: Iterable[ShardInfo]) -> tuple[list["pa.Table"], Sequence[dict[str, Any]]]:
    import pyarrow as pa

    schemas: dict[Schema, int] = {}
    plain = _plain_schema()
    pieces = []
    left = iter(shards)
    while part := list(islice(left, _ROWS_AT_ONCE)):
        columns = zip(*(_row(shard, schemas) for shard in part), strict=True)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, plain.types, strict=True)]
        pieces.append(pa.table(arrays, schema=plain))
    return pieces, [{"names": list(s.names), "encodings": list(s.encodings), "sizes": list(s.sizes)} for s in schemas]


def _plain_schema() -> "pa.Schema":
    """Return the schema of all columns, with words as plain texts."""
    import pyarrow as pa

    return pa.schema({name: pa.type_for_alias("string" if kind == WORD else kind) for name, kind in COLUMNS.items()})


def _row(shard: ShardInfo, schemas: dict[Schema, int]) -> tuple[Any, ...]:
    """Return the values of a shard in the order of `COLUMNS`; its schema is added to `schemas` if it is new.

    Hashes are JSON, and the digest of a block list is a signed number, because a table has no other ones.
    """
    blocks: tuple[Any, ...] = (None,) * 4
    if shard.blocks is not None:
        digest = shard.blocks.digest
        blocks = shard.blocks.file, shard.blocks.offset, shard.blocks.block_bytes, (digest ^ 1 << 63) - (1 << 63)
    return (
        schemas.setdefault(shard.schema, len(schemas)), shard.partition, shard.samples, *_file(shard.raw),
        *_file(shard.zip), shard.compression, ",".join(shard.hash_names), shard.size_limit,
        shard.format, shard.newline, shard.separator, *_file(shard.meta), *_file(shard.zip_meta), *blocks,
    )  # fmt: skip


def _file(file: FileInfo | None) -> tuple[str | None, int | None, str | None]:
    """Return name, size and hashes; these as JSON, formatted by hand: an encoder takes seconds for a million files."""
    if file is None:
        return None, None, None
    pairs = [f"{_quoted(name)}: {_quoted(digest)}" for name, digest in sorted(file.hashes.items())]
    return file.basename, file.num_bytes, "{" + ", ".join(pairs) + "}"


def file_of(pieces: Sequence["pa.Table"], schemas: Sequence[dict[str, Any]]) -> bytes:
    """Return the Arrow file of these rows, as a single batch, so that readers map each column in one piece.

    Columns that a piece lacks are null there; words are plain texts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pa.concat_tables([_plain_schema().empty_table(), *pieces], promote_options="default")
    formats = whole.column("format").fill_null("mds")
    has_text = bool(pc.any(pc.not_equal(formats, "mds")).as_py())
    arrays = {}
    for name, kind in COLUMNS.items():
        column = formats if name == "format" else whole.column(name)
        is_empty = name in PARTIAL_COLUMNS and column.null_count == len(column)
        if not is_empty and (has_text or name not in TEXT_COLUMNS):
            array = column.combine_chunks()
            arrays[name] = array.cast(pa.dictionary(pa.int32(), pa.string())) if kind == WORD else array
    about = {"version": TEXT_TABLE_VERSION if has_text else TABLE_VERSION, "schemas": list(schemas)}
    return ipc_file(pa.table(arrays).replace_schema_metadata({"smalti": json.dumps(about, sort_keys=True)}), None)


def ipc_file(table: "pa.Table", compression: str | None = "zstd") -> bytes:
    """Return the table as an Arrow file."""
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def table_of(shards: Iterable[ShardInfo]) -> ShardTable:
    """Return the shards as a table, which takes a tenth of the memory of the objects.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    return ShardTable.of(own_content(emit_table(shards)))


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """Parse an Arrow file of shards; its bytes are checked against the digest, its content like an index file.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content is invalid.
    """
    return ShardTable.of(checked_content(data, where, sha256))


def load_table(store: Store, key: str, *, sha256: str) -> ShardTable:
    """Load a shard table from a store: a local file is mapped, so that only the accessed parts are in memory.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is larger than `MAX_TABLE_BYTES`; or as for `parse_table`.
    """
    is_far = store.local_path(key) is None
    return ShardTable.of(load_content(store, key, sha256=sha256, num_bytes=store.size(key), in_memory=is_far))


def pack_shards(shards: Sequence[ShardInfo]) -> str:
    """Return the shards as ASCII text."""
    return base64.b64encode(zlib.compress(emit_table(shards), _COMPRESSION_LEVEL)).decode("ascii")


def unpack_shards(text: str, *, where: str) -> ShardTable:
    """Return the shards of a text from `pack_shards`, checked like an index file.

    Raises:
        IndexFileError: the text is not of this form, or its content is invalid.
    """
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b64decode(text, validate=True), MAX_TABLE_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise IndexFileError(f"{where} is not a packed list of shards: {str(error)[:200]}", where=where) from error
    if not inflating.eof:
        raise IndexFileError(
            f"{where}: a packed list of shards is cut short, or larger than {MAX_TABLE_BYTES} bytes", where=where
        )
    return parse_table(data, sha256=hashlib.sha256(data).hexdigest(), where=where)
