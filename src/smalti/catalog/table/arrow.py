"""The Arrow file of a shard table: a million shards take 200 MB, where JSON takes 450 MB and 1.5 times as long.

Layout 1 is for MDS shards. Layout 2, for sets with text shards or Parquet files, has further columns for meta files,
line ends and separators. Both may have columns with which parts of shards are verified: the places of their block
lists (`smalti.format.blocks`).

Files are untrusted: everything that pyarrow takes for granted is checked first. They are memory-mapped; while a file is
hashed and checked, the pages that were read are released again.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.catalog.table.columns import (
    COLUMN_NAMES,
    Columns,
    Numbers,
    PartialColumns,
    RowParser,
    Texts,
    Words,
)
from smalti.catalog.table.screening import screen
from smalti.catalog.table.shard_table import ShardTable, TableContent, check_shards
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, load_strict
from smalti.regular_files import open_regular
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

Buffer = bytes | mmap.mmap | memoryview
State = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file, by which a replaced file is detected."""

_HASH_BYTES = 8 << 20  # bytes that are hashed before their pages are released
_ROWS = 1 << 17
"""Texts that are checked at once: some megabytes."""
_MAGIC = b"ARROW1\0\0"
_VERSION_FIELD = 0  # of the flatbuffer table Message
_VERSION = 4  # V5, of 2020; in files of older versions pyarrow reads the compression from another field
_HEADER_FIELD = 2  # of Message
_DATA_FIELD = 1  # of DictionaryBatch: the RecordBatch that holds its values
_COMPRESSION_FIELD = 3  # of RecordBatch
TABLE_VERSION = 1
MAX_TABLE_BYTES = 1 << 30
"""About five million shards."""
TEXT_TABLE_VERSION = 2
_COLUMNS: dict[str, type] = {
    "schema": Numbers, "partition": Words, "samples": Numbers, "raw_name": Texts, "raw_bytes": Numbers,
    "raw_hashes": Texts, "zip_name": Texts, "zip_bytes": Numbers, "zip_hashes": Texts, "compression": Words,
    "hash_names": Words, "size_limit": Numbers,
}  # fmt: skip
_TEXT_COLUMNS: dict[str, type] = {
    "format": Words, "newline": Words, "separator": Words, "meta_name": Texts, "meta_bytes": Numbers,
    "meta_hashes": Texts, "zip_meta_name": Texts, "zip_meta_bytes": Numbers, "zip_meta_hashes": Texts,
}  # fmt: skip
_NO_ROWS = np.zeros(0, np.int64)
_ROWS_AT_ONCE = 1 << 14
_COMPRESSION_LEVEL = 6
_quoted = json.encoder.encode_basestring_ascii


def emit_table(shards: Iterable[ShardInfo]) -> bytes:
    """Return the Arrow IPC file of the shards; the same shards give the same bytes with the same version of Arrow.

    The shards are iterated once, some thousands at a time; memory is about twice the size of the file.
    """
    if isinstance(shards, ShardTable) and shards.emitted is not None:
        return shards.emitted
    return _file_of(_built(shards))


def emit_content(content: TableContent) -> bytes:
    """Return the file of a content: the bytes that this process created, or the same rows as a new file."""
    if isinstance(content.reopen, _Kept):
        return bytes(content.reopen.data)
    return emit_joined([ShardTable(content)])


def emit_joined(parts: Sequence[Sequence[ShardInfo]]) -> bytes:
    """Return the file that `emit_table` returns for the shards of all parts; their columns are joined as they are.

    No shards are created if the parts are tables of one layout: this takes a tenth of the time.
    """
    tables = [_arrow_of(part) for part in parts if len(part)]
    abouts = {(table.schema.metadata or {}).get(b"smalti") for table in tables}
    if len(abouts) != 1:
        return _file_of(_built(shard for part in parts for shard in part))
    return _file_of(_joined(tables))


def _built(shards: Iterable[ShardInfo]) -> Any:
    import pyarrow as pa

    builder = _TableBuilder(pa)
    left = iter(shards)
    while part := list(islice(left, _ROWS_AT_ONCE)):
        builder.add(part)
    return builder.table()


def _arrow_of(shards: Sequence[ShardInfo]) -> Any:
    """Return the shards as Arrow's table: views of the columns if they are consecutive rows of a single file."""
    if isinstance(shards, ShardTable) and isinstance(shards.content, TableContent):
        rows, table = shards.rows, shards.content.arrow
        if table is not None and isinstance(rows, range) and rows.step == 1:
            return table.slice(rows.start, len(rows))
    return _built(shards)


def _joined(tables: Sequence[Any]) -> Any:
    """Return the rows of all tables as a single batch, with the columns that `_TableBuilder` would give them."""
    import pyarrow as pa

    whole = pa.concat_tables(map(_without_dictionaries, tables), promote_options="default")
    kinds = {**_COLUMNS, **_TEXT_COLUMNS, COLUMN_NAMES["block_file"]: Words}
    columns = {}
    for name in (*_COLUMNS, *_TEXT_COLUMNS, *COLUMN_NAMES.values()):
        column = whole.column(name) if name in whole.column_names else None
        is_optional = name in COLUMN_NAMES.values()  # such columns are left out if they are empty
        if column is not None and not (is_optional and column.null_count == len(column)):
            found = column.combine_chunks()
            columns[name] = found.cast(_word_type(pa)) if kinds.get(name) is Words else found
    return pa.table(columns).replace_schema_metadata(tables[0].schema.metadata)


def _without_dictionaries(table: Any) -> Any:
    import pyarrow as pa

    fields = [pa.field(each.name, pa.string()) if pa.types.is_dictionary(each.type) else each for each in table.schema]
    return table.cast(pa.schema(fields, metadata=table.schema.metadata))


def _file_of(table: Any) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def table_of(shards: Iterable[ShardInfo]) -> ShardTable:
    """Return the shards as a table, which takes a tenth of the memory of the objects.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    data = emit_table(shards)
    return ShardTable(opened_bytes(data, hashlib.sha256(data).hexdigest()))


def opened_bytes(data: bytes, sha256: str, *, in_memory: bool = True) -> TableContent:
    """Return the content of a file that this process created, checked. Without `in_memory`, it is a temporary file.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    where, kept = "of this process", data if in_memory else in_temporary_file(data)
    content = _content(kept, where, sha256, _Kept(kept, where))
    return replace(content, emitted=kept) if isinstance(kept, bytes) else content


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


@dataclass(frozen=True, eq=False)
class _Kept:
    """A function that loads the content of bytes that were checked before; pickled with them."""

    data: Buffer
    where: str

    def __call__(self) -> TableContent:
        return _content(self.data, self.where, None, self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self.data), self.where)


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """Parse an Arrow file of shards; its bytes are checked against the digest, its content like an index file.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content is invalid.
    """
    return ShardTable(_content(data, where, sha256, _Kept(data, where)))


def map_table(path: Path, *, sha256: str, where: str) -> ShardTable:
    """Map a local Arrow file of shards, so that only the accessed parts are in memory; checked like `parse_table`.

    Raises:
        IndexFileError: as for `parse_table`.
        OSError: the file cannot be mapped.
    """
    return ShardTable(_mapped(path, where, sha256))


def _mapped(path: Path, where: str, sha256: str, *, checks_names: bool = True) -> TableContent:
    data, state = map_file(path)
    reopen = partial(_mapped_again, path, where, sha256, state)
    return _content(data, where, sha256, reopen, checks_names=checks_names)


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
    kept = data if in_memory else in_temporary_file(data)
    return _content(kept, where, sha256, _Kept(kept, where), checks_names=checks_names)


def _mapped_again(path: Path, where: str, sha256: str, state: State) -> TableContent:
    """Map a file that another process checked; check it again if it was changed since."""
    try:
        data, found = map_file(path)
    except OSError as error:
        raise IndexFileError(f"shard table {where} cannot be opened here: {error.strerror}", key=where) from error
    known = None if found == state else sha256
    return _content(data, where, known, partial(_mapped_again, path, where, sha256, found))


def _content(
    data: Buffer,
    where: str,
    sha256: str | None,
    reopen: Callable[[], TableContent],
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
    try:
        if sha256 is None:
            return _opened(data, what, reopen, is_known=True)
        with checked_sha256(data, sha256, what=what, key=where):
            return _opened(data, what, reopen, is_known=False, checks_names=checks_names)
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"{what}: {error.message[:500]}", key=where) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(f"{what} cannot be read: {str(error)[:200]}", key=where) from error


def _opened(
    data: Buffer, what: str, reopen: Callable[[], TableContent], *, is_known: bool, checks_names: bool = True
) -> TableContent:
    table = read_arrow_file(data, checked=is_known)
    about = load_strict((table.schema.metadata or {})[b"smalti"], where=what)
    if about["version"] not in (TABLE_VERSION, TEXT_TABLE_VERSION):
        raise IndexFileError(
            f"{what} has layout {about['version']!r:.40}, this reader knows {TEXT_TABLE_VERSION}: update smalti"
        )
    kinds = {**_COLUMNS, **_TEXT_COLUMNS} if about["version"] == TEXT_TABLE_VERSION else _COLUMNS
    columns, parser = Columns.of(table, kinds), RowParser(about["schemas"], what)
    content = TableContent(
        columns,
        parser,
        _NO_ROWS,
        reopen,
        partial=PartialColumns.of(table),
        arrow=table,
        release=partial(release_pages, data),
    )
    if is_known or not table.num_rows:
        return content
    screened = screen(columns, table.num_rows, partial(release_pages, data), checks_names=checks_names)
    release_pages(data)
    suspects = [content.read(row, row + 1)[0] for row in screened.suspects.tolist()]
    check_shards(suspects, suspects[0].schema)
    return replace(content, kinds=screened.kinds)


class _TableBuilder:
    """The columns of a table that is being built, in pieces."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self._schemas: dict[Schema, int] = {}
        self._pieces: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *_TEXT_COLUMNS)}
        self._partial: dict[str, list[Any]] = {name: [] for name in COLUMN_NAMES}
        self._has_text = self._has_blocks = False

    def add(self, shards: Sequence[ShardInfo]) -> None:
        """Append shards."""
        pa, schemas = self._pa, self._schemas
        for shard in shards:
            schemas.setdefault(shard.schema, len(schemas))
        self._has_text = self._has_text or any(shard.format != "mds" for shard in shards)
        self._put("schema", pa.array([schemas[shard.schema] for shard in shards], pa.int32()))
        self._put("samples", pa.array([shard.samples for shard in shards], pa.int64()))
        self._put("size_limit", pa.array([shard.size_limit for shard in shards], pa.int64()))
        self._put("hash_names", pa.array([",".join(shard.hash_names) for shard in shards], pa.string()))
        for name in ("partition", "compression", "format", "newline", "separator"):
            self._put(name, pa.array([getattr(shard, name) for shard in shards], pa.string()))
        self._add_partial(shards)
        for name in ("raw", "zip", "meta", "zip_meta"):
            self._put_files(name, [getattr(shard, name) for shard in shards])

    def table(self) -> Any:
        """Return the table as a single batch, so that readers map each column in one piece. Call it once."""
        pa = self._pa
        names = (*_COLUMNS, *_TEXT_COLUMNS) if self._has_text else tuple(_COLUMNS)
        about = {
            "version": TEXT_TABLE_VERSION if self._has_text else TABLE_VERSION,
            "schemas": [{"names": s.names, "encodings": s.encodings, "sizes": s.sizes} for s in self._schemas],
        }
        arrays = {name: self._joined(name, self._pieces.pop(name)) for name in names}
        for name, pieces in self._partial.items():
            if self._has_blocks:
                column = pa.concat_arrays(pieces)
                is_word = name == "block_file"
                arrays[COLUMN_NAMES[name]] = column.cast(_word_type(pa)) if is_word else column
        return pa.table(arrays).replace_schema_metadata({"smalti": json.dumps(about, sort_keys=True)})

    def _add_partial(self, shards: Sequence[ShardInfo]) -> None:
        """Append the columns with which parts of the shards are verified."""
        pa = self._pa
        lists = [shard.blocks for shard in shards]
        self._has_blocks = self._has_blocks or any(each is not None for each in lists)
        columns: dict[str, tuple[list[Any], Any]] = {
            "block_file": ([each and each.file for each in lists], pa.string()),
            "block_offset": ([each and each.offset for each in lists], pa.int64()),
            "block_bytes": ([each and each.block_bytes for each in lists], pa.int32()),
            "block_digest": ([each and _signed(each.digest) for each in lists], pa.int64()),
        }
        for name, (values, kind) in columns.items():
            self._partial[name].append(pa.array(values, kind))

    def _put(self, name: str, piece: Any) -> None:
        self._pieces[name].append(piece)

    def _put_files(self, part: str, files: Sequence[FileInfo | None]) -> None:
        pa = self._pa
        there = any(file is not None for file in files)
        texts, numbers = pa.string(), pa.int64()
        if not there:
            for name, kind in (("name", texts), ("bytes", numbers), ("hashes", texts)):
                self._put(f"{part}_{name}", pa.nulls(len(files), kind))
            return
        self._put(f"{part}_name", pa.array([None if file is None else file.basename for file in files], texts))
        self._put(f"{part}_bytes", pa.array([None if file is None else file.num_bytes for file in files], numbers))
        self._put(f"{part}_hashes", pa.array([None if file is None else _hashes(file) for file in files], texts))

    def _joined(self, name: str, pieces: list[Any]) -> Any:
        pa, kind = self._pa, {**_COLUMNS, **_TEXT_COLUMNS}[name]
        empty = {Words: pa.string(), Texts: pa.string(), Numbers: pa.int32() if name == "schema" else pa.int64()}[kind]
        whole = pa.concat_arrays(pieces) if pieces else pa.array([], empty)
        return whole.cast(_word_type(pa)) if kind is Words else whole


def _word_type(pa: Any) -> Any:
    return pa.dictionary(pa.int32(), pa.string())


def _signed(digest: int) -> int:
    """Return the hash as a signed 64-bit number, the only number type of a table."""
    return digest if digest < 1 << 63 else digest - (1 << 64)


def _hashes(file: FileInfo) -> str:
    """Return the hashes of a file as JSON; formatted by hand, because an encoder takes seconds for a million files."""
    pairs = [f"{_quoted(name)}: {_quoted(digest)}" for name, digest in sorted(file.hashes.items())]
    return "{" + ", ".join(pairs) + "}"


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
        found = os.fstat(file.fileno())
        state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        if not found.st_size:
            return b"", state  # an empty file cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), state


@contextmanager
def checked_sha256(data: Buffer, expected: str, *, what: str, key: str) -> Iterator[None]:
    """Hash the bytes, in a thread if there are many, while the block parses them. The block must not trust them.

    Raises:
        IndexFileError: the SHA-256 is not `expected`, in hex; raised at the end, in place of errors of the block.
    """
    found: list[str] = []
    thread = Thread(target=lambda: found.append(_sha256(data)), name="smalti-sha256")
    if len(data) > _HASH_BYTES:
        thread.start()
    else:
        thread.run()
    try:
        if found in ([], [expected]):
            yield
    finally:
        if thread.ident is not None:
            thread.join()
        if found != [expected]:
            raise IndexFileError(
                f"{what}: expected sha256 {expected}, found {''.join(found) or 'none'}; the object was changed or cut",
                key=key,
            )


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


def read_arrow_file(data: Buffer, *, checked: bool = False) -> "pa.Table":
    """Read an Arrow IPC file, with every offset and text checked, so that no access can leave the file.

    Memory is bounded by the size of the file: compressed columns, which could inflate without bound, are refused.
    Smalti writes none. The table refers to `data`. With `checked`, this was called for the same bytes before: offsets
    and texts are not checked again, which saves reading every byte.

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
            metadata = message.metadata.to_pybytes()
            if not _is_current(metadata):
                raise ValueError("it has another version of Arrow's format than V5")
            if message.type != "schema" and _is_compressed(metadata, message.type):
                raise ValueError("its columns are compressed")
        table = pa.ipc.open_stream(pa.BufferReader(body)).read_all()
        # pyarrow trusts the offsets and indices in a file; a wrong one reads foreign memory or crashes the process.
        if checked:
            table.validate()
        else:
            _validate(table, data)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"Arrow cannot read it: {str(error)[:200]}") from error
    return table


def _validate(table: "pa.Table", data: Buffer) -> None:
    """Check every offset, index and text, in parts, so that a mapped file need not be in memory as a whole."""
    import pyarrow as pa

    table.validate()  # checks the sizes of buffers, which slicing relies on
    for column in table.columns:
        step = _ROWS if pa.types.is_string(column.type) else max(1, len(column))
        for begin in range(0, max(1, len(column)), step):
            column.slice(begin, step).validate(full=True)
            release_pages(data)


def _is_current(metadata: bytes) -> bool:
    place = _place(metadata, _uint(metadata, 0), _VERSION_FIELD)
    return place != 0 and _uint(metadata, place, 2) == _VERSION


def _is_compressed(metadata: bytes, kind: str) -> bool:
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
