"""The Arrow file of a shard table: a million shards take 200 MB, where JSON takes 450 MB and 1.5 times as long.

Layout 1 is for MDS shards. Layout 2, for sets with text shards or Parquet files, has further columns for meta files,
line ends and separators. Both may have columns with which parts of shards are verified: the places of their block
lists (`smalti.format.blocks`).

Files are untrusted: everything that pyarrow takes for granted is checked first. They are memory-mapped; once a file was
checked, the pages that were read are released again.

`pack_shards` returns a table as short text for the results of Spark tasks: a tenth of the JSON, so that a driver can
keep all of them.
"""

import base64
import binascii
import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.rows import COLUMNS, MDS_COLUMNS, PARTIAL_COLUMNS, TEXT_COLUMNS, WORD, RowParser, columns_of
from smalti.catalog.table.shard_table import ShardTable, TableContent
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, load_strict
from smalti.regular_files import open_regular
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

Buffer = bytes | mmap.mmap
State = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file, by which a replaced file is detected."""

_HASH_BYTES = 8 << 20  # bytes that are hashed before their pages are released
_MAGIC = b"ARROW1\0\0"
_HEADER_FIELD = 2  # of the flatbuffer table Message
_DATA_FIELD = 1  # of DictionaryBatch: the RecordBatch that holds its values
_COMPRESSION_FIELD = 3  # of RecordBatch
TABLE_VERSION = 1
MAX_TABLE_BYTES = 1 << 30
"""About five million shards."""
TEXT_TABLE_VERSION = 2
_ROWS_AT_ONCE = 1 << 14
_COMPRESSION_LEVEL = 6
_quoted = json.encoder.encode_basestring_ascii


def emit_table(shards: Iterable[ShardInfo]) -> bytes:
    """Return the Arrow IPC file of the shards; the same shards give the same bytes with the same version of Arrow.

    The shards are iterated once, some thousands at a time; memory is about twice the size of the file.
    """
    if isinstance(shards, ShardTable) and shards.emitted is not None:
        return shards.emitted
    return file_of(*_built(shards))


def emit_content(content: TableContent) -> bytes:
    """Return the file of a content: the bytes that this process has, or the same rows as a new file."""
    if isinstance(content.reopen, _Kept):
        return bytes(content.reopen.data)
    return emit_joined([ShardTable(content)])


def emit_joined(parts: Sequence[Sequence[ShardInfo]]) -> bytes:
    """Return the file that `emit_table` returns for the shards of all parts; their columns are joined as they are.

    No shards are created if the parts are tables with the same schemas: this takes a tenth of the time.
    """
    columns = [_columns_of(part) for part in parts if len(part)]
    if not columns or any(schemas != columns[0][1] for _, schemas in columns):
        return file_of(*_built(shard for part in parts for shard in part))
    return file_of([piece for pieces, _ in columns for piece in pieces], columns[0][1])


def _columns_of(shards: Sequence[ShardInfo]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the columns of the shards, in pieces, and their schemas; not built if they are rows of a single file."""
    import pyarrow as pa

    if isinstance(shards, ShardTable) and isinstance(shards.content, TableContent) and shards.is_range:
        columns = shards.content.columns.slice(shards.rows[0], len(shards))
        return [pa.Table.from_batches([columns]).cast(_plain_schema())], shards.content.parser.schemas
    return _built(shards)


def _built(shards: Iterable[ShardInfo]) -> tuple[list[Any], list[dict[str, Any]]]:
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
    """Return the values of a shard in the order of `COLUMNS`; its schema is added to `schemas` if it is new."""
    blocks = shard.blocks
    return (
        schemas.setdefault(shard.schema, len(schemas)), shard.partition, shard.samples, *_file(shard.raw),
        *_file(shard.zip), shard.compression, ",".join(shard.hash_names), shard.size_limit,
        shard.format, shard.newline, shard.separator, *_file(shard.meta), *_file(shard.zip_meta),
        *((None,) * 4 if blocks is None else (blocks.file, blocks.offset, blocks.block_bytes, _signed(blocks.digest))),
    )  # fmt: skip


def _file(file: FileInfo | None) -> tuple[str | None, int | None, str | None]:
    """Return name, size and hashes; these as JSON, formatted by hand: an encoder takes seconds for a million files."""
    if file is None:
        return None, None, None
    pairs = [f"{_quoted(name)}: {_quoted(digest)}" for name, digest in sorted(file.hashes.items())]
    return file.basename, file.num_bytes, "{" + ", ".join(pairs) + "}"


def _signed(digest: int) -> int:
    """Return the hash as a signed 64-bit number, the only number type of a table."""
    return digest if digest < 1 << 63 else digest - (1 << 64)


def file_of(pieces: Sequence["pa.Table"], schemas: list[dict[str, Any]]) -> bytes:
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
    about = {"version": TEXT_TABLE_VERSION if has_text else TABLE_VERSION, "schemas": schemas}
    table = pa.table(arrays).replace_schema_metadata({"smalti": json.dumps(about, sort_keys=True)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_of(shards: Iterable[ShardInfo]) -> ShardTable:
    """Return the shards as a table, which takes a tenth of the memory of the objects.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    return ShardTable(opened_bytes(emit_table(shards)))


def opened_bytes(data: bytes, *, in_memory: bool = True) -> TableContent:
    """Return the content of a file that this process created, checked. Without `in_memory`, it is a temporary file.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    content = _checked(
        data if in_memory else in_temporary_file(data), "of this process", hashlib.sha256(data).hexdigest()
    )
    return replace(content, emitted=data) if in_memory else content


def in_temporary_file(data: bytes) -> Buffer:
    """Return the bytes as a mapped temporary file, so that only the accessed parts are in memory.

    The file has no name, and takes a file descriptor. Where there is no room for it, the bytes stay in memory.
    """
    try:
        with tempfile.TemporaryFile(prefix="smalti-table-") as file:
            file.write(data)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # an empty file cannot be mapped
        return data


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """Parse an Arrow file of shards; its bytes are checked against the digest, its content like an index file.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content is invalid.
    """
    return ShardTable(_checked(data, where, sha256))


def map_table(path: Path, *, sha256: str, where: str) -> ShardTable:
    """Map a local Arrow file of shards, so that only the accessed parts are in memory; checked like `parse_table`.

    Raises:
        IndexFileError: as for `parse_table`.
        OSError: the file cannot be mapped.
    """
    return ShardTable(_mapped(path, where, sha256))


def _mapped(
    path: Path, where: str, sha256: str, known: State | None = None, *, checks_names: bool = True
) -> TableContent:
    """Map a file, and check it unless it has the state in which it was checked."""
    data, state = map_file(path)
    reopen = partial(_mapped_again, path, where, sha256, state)
    return _checked(data, where, None if state == known else sha256, reopen, checks_names=checks_names)


def _mapped_again(path: Path, where: str, sha256: str, state: State) -> TableContent:
    """Map a file that another process checked; check it again if it was changed since."""
    try:
        return _mapped(path, where, sha256, state)
    except OSError as error:
        raise IndexFileError(f"shard table {where} cannot be opened here: {error.strerror}", key=where) from error


def load_table(store: Store, key: str, *, sha256: str) -> ShardTable:
    """Load a shard table from a store: a local file is mapped, any other object is fetched.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is larger than `MAX_TABLE_BYTES`; or as for `parse_table`.
    """
    path = store.local_path(key)
    content = load_content(store, key, sha256=sha256, num_bytes=store.size(key), in_memory=path is None)
    return ShardTable(content)


def load_content(
    store: Store,
    key: str,
    *,
    sha256: str,
    num_bytes: int,
    checks_names: bool = True,
    in_memory: bool = True,
) -> TableContent:
    """Load the content of a table of so many bytes, as `load_table` does.

    Without `in_memory`, a local file is mapped, and any other object is kept in a temporary file.

    Without `checks_names`, names and hashes are checked when a row is read, and names that occur twice are not found.

    Raises:
        StoreNotFound, IndexFileError: as for `load_table`.
    """
    where = store.locate(key)
    if num_bytes > MAX_TABLE_BYTES:
        raise IndexFileError(f"shard table {where}: {num_bytes} bytes are more than {MAX_TABLE_BYTES}", key=key)
    path = None if in_memory else store.local_path(key)
    if path is not None:
        with suppress(OSError):  # some network file systems cannot map files; `get` raises any other fault
            return _mapped(path, where, sha256, checks_names=checks_names)
    data = store.get_range(key, 0, num_bytes)
    return _checked(data if in_memory else in_temporary_file(data), where, sha256, checks_names=checks_names)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A function that loads the content of bytes that were checked before; pickled with them."""

    data: Buffer
    where: str

    def __call__(self) -> TableContent:
        return _checked(self.data, self.where, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self.data), self.where)


def _checked(
    data: Buffer,
    where: str,
    sha256: str | None,
    reopen: Callable[[], TableContent] | None = None,
    *,
    checks_names: bool = True,
) -> TableContent:
    """Return the content of a table's bytes.

    `sha256` is None for bytes that were checked before, which are not checked again. `reopen` loads the same content in
    another process.

    Raises:
        IndexFileError: as for `parse_table`.
    """
    what = f"shard table {where}"
    found = sha256 and _sha256(data)
    if found != sha256:
        raise IndexFileError(
            f"{what}: expected sha256 {sha256}, found {found}; the object was changed or cut", key=where
        )
    try:
        table = read_arrow_file(data)
        about = load_strict((table.schema.metadata or {})[b"smalti"], where=what)
        if about["version"] not in (TABLE_VERSION, TEXT_TABLE_VERSION):
            raise IndexFileError(
                f"{what} has layout {about['version']!r:.40}, this reader knows {TEXT_TABLE_VERSION}: update smalti"
            )
        names = {*MDS_COLUMNS, *(TEXT_COLUMNS if about["version"] == TEXT_TABLE_VERSION else ())}
        names |= PARTIAL_COLUMNS.keys() & table.column_names
        columns = columns_of(table, names, is_known=sha256 is None)
        parser, release = RowParser(about["schemas"], what), partial(release_pages, data)
        content = TableContent(table, columns, parser, reopen or _Kept(data, where), release=release)
        if sha256 is not None:
            content.check(checks_names=checks_names)
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"{what}: {error.message[:500]}", key=where) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(f"{what} cannot be read: {str(error)[:200]}", key=where) from error
    return content


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


def map_file(path: Path) -> tuple[Buffer, State]:
    """Map a file; return its bytes and its state.

    Raises:
        OSError: it does not exist, or cannot be mapped.
    """
    with open_regular(path) as file:
        stat = os.fstat(file.fileno())
        state = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        if not stat.st_size:
            return b"", state  # an empty file cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), state


def _sha256(data: Buffer) -> str:
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for begin in range(0, len(data), _HASH_BYTES):
            digest.update(view[begin : begin + _HASH_BYTES])
            release_pages(data, begin, min(_HASH_BYTES, len(data) - begin))
    return digest.hexdigest()


def release_pages(data: Buffer, begin: int = 0, length: int | None = None) -> None:
    """Release the pages of a mapped file; they are read again on access, from the page cache or the disk."""
    if isinstance(data, mmap.mmap) and hasattr(data, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, begin, len(data) - begin if length is None else length)


def read_arrow_file(data: Buffer) -> "pa.Table":
    """Read an Arrow IPC file; the table refers to `data`, and its offsets and texts are not checked yet.

    Memory is bounded by the size of the file: compressed columns, which could inflate without bound, are refused.
    Smalti writes none.

    Raises:
        ValueError: it is not such a file, or is damaged.
    """
    import pyarrow as pa

    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as an Arrow file")
    # The body of a file is a stream. The footer is not used: it could point to other places.
    body = pa.py_buffer(data).slice(len(_MAGIC))
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
            if message.metadata_version != pa.ipc.MetadataVersion.V5:  # older ones have the compression elsewhere
                raise ValueError("it has another version of Arrow's format than V5")
            if message.type != "schema" and _is_compressed(message.metadata.to_pybytes(), message.type):
                raise ValueError("its columns are compressed")
        return pa.ipc.open_stream(pa.BufferReader(body)).read_all()
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"Arrow cannot read it: {str(error)[:200]}") from error


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Return whether a flatbuffer message names a compression of its columns."""
    batch = _child(metadata, _uint(metadata, 0), _HEADER_FIELD)
    if kind == "dictionary":
        batch = _child(metadata, batch, _DATA_FIELD)
    return _place(metadata, batch, _COMPRESSION_FIELD) != 0


def _child(data: bytes, table: int, field: int) -> int:
    """Return the position of the flatbuffer table that `field` of the table at `table` refers to."""
    place = _place(data, table, field)
    return place + _uint(data, place)


def _place(data: bytes, table: int, field: int) -> int:
    """Return the position of a field of the flatbuffer table at `table`; 0 if it is absent."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * field
    if entry >= _uint(data, vtable, 2):
        return 0
    offset = _uint(data, vtable + entry, 2)
    return table + offset if offset else 0


def _uint(data: bytes, place: int, size: int = 4) -> int:
    return int.from_bytes(data[place : place + size], "little")
