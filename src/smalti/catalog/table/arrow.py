"""The table of shards as an Arrow file: a million shards are 200 MB, where JSON takes 450 and half as long again.

Sets of MDS shards have layout 1. Layout 2 has further columns for the meta files, line ends and separators of text
shards; only sets that have such shards are written so. Either may have a column of hashes of the shards' first
bytes, as signed numbers: who reads a shard before all of it is here checks it by these.

Shards as a short text, with which Spark's tasks answer: a tenth of their JSON, so that a driver can hold them.
"""

import base64
import binascii
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from smalti.catalog.table.arrow_reader import Buffer, State, checked_sha256, let_go, map_file, read_arrow_file
from smalti.catalog.table.columns import Columns, Numbers, Texts, Words, numbers_of
from smalti.catalog.table.digest import check_shards
from smalti.catalog.table.rows import Rows
from smalti.catalog.table.screening import screen
from smalti.catalog.table.shard_table import ShardTable, TableContent
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo, load_strict
from smalti.storage import Store

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
_FIRST = "raw_first"
_NO_ROWS = np.zeros(0, np.int64)
_ROWS_AT_ONCE = 1 << 14
_quoted = json.encoder.encode_basestring_ascii


def emit_table(shards: Iterable[ShardInfo]) -> bytes:
    """The Arrow IPC file of the shards; the same shards give the same bytes on one version of Arrow.

    They are looked at once, some thousands at a time: beside the file itself, memory is about as much as it is long.
    """
    import pyarrow as pa

    if isinstance(shards, ShardTable) and shards.emitted is not None:
        return shards.emitted
    filling = _Filling(pa)
    left = iter(shards)
    while part := list(islice(left, _ROWS_AT_ONCE)):
        filling.add(part)
    sink = io.BytesIO()
    table = filling.table()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def table_of(shards: Iterable[ShardInfo]) -> ShardTable:
    """The same shards as a table, which takes a tenth of the memory that they take one by one.

    Raises:
        IndexFileError: two have a file's name in common, or one cannot be.
    """
    data = emit_table(shards)
    where, sha256 = "of this process", hashlib.sha256(data).hexdigest()
    content = _content(data, where, sha256, partial(_unpickled, data, where))
    return ShardTable(replace(content, emitted=data))


def checked_table(data: bytes, *, where: str) -> ShardTable:
    """The shards of an Arrow file whose digest nobody knows, its content checked as an index file is.

    Raises:
        IndexFileError: its content cannot be trusted.
    """
    return parse_table(data, sha256=hashlib.sha256(data).hexdigest(), where=where)


def parse_table(data: bytes, *, sha256: str, where: str) -> ShardTable:
    """The shards of an Arrow file, checked against the digest that its header declares, and as an index file is.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content cannot be trusted.
    """
    return ShardTable(_content(data, where, sha256, partial(_unpickled, data, where)))


def map_table(path: Path, *, sha256: str, where: str) -> ShardTable:
    """The same of a file of this machine, which is mapped: what nobody asks for is not kept in memory.

    Raises:
        IndexFileError: as for `parse_table`.
        OSError: the file cannot be mapped.
    """
    data, state = map_file(path)
    return ShardTable(_content(data, where, sha256, partial(_mapped_again, path, where, sha256, state)))


def load_table(store: Store, key: str, *, sha256: str) -> ShardTable:
    """Load a shard table from a store: a local file is mapped, any other object is fetched.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is larger than `MAX_TABLE_BYTES`; or as for `parse_table`.
    """
    where = store.locate(key)
    num_bytes = store.size(key)
    if num_bytes > MAX_TABLE_BYTES:
        raise IndexFileError(f"shard table {where}: {num_bytes} bytes are more than {MAX_TABLE_BYTES}", key=key)
    path = store.local_path(key)
    if path is not None:
        with suppress(OSError):  # some network file systems cannot map files; `get` raises any other fault
            return map_table(path, sha256=sha256, where=where)
    return parse_table(store.get(key), sha256=sha256, where=where)


def _unpickled(data: bytes, where: str) -> TableContent:
    """The content of bytes that this or another process checked, and sent here."""
    return _content(data, where, None, partial(_unpickled, data, where))


def _mapped_again(path: Path, where: str, sha256: str, state: State) -> TableContent:
    """The content of a file that another process checked, if it is still the same; else it is checked here."""
    try:
        data, found = map_file(path)
    except OSError as error:
        raise IndexFileError(f"shard table {where} cannot be opened here: {error.strerror}", key=where) from error
    known = None if found == state else sha256
    return _content(data, where, known, partial(_mapped_again, path, where, sha256, found))


def _content(data: Buffer, where: str, sha256: str | None, reopen: Callable[[], TableContent]) -> TableContent:
    """The content of a table's bytes.

    Args:
        data: The Arrow file.
        where: Its address, for messages.
        sha256: What its header says; None for bytes that were checked before, which are not looked at again.
        reopen: Makes the same in another process.

    Raises:
        IndexFileError: as for `parse_table`.
    """
    what = f"shard table {where}"
    try:
        if sha256 is None:
            return _opened(data, what, reopen, is_known=True)
        with checked_sha256(data, sha256, what=what, key=where):
            return _opened(data, what, reopen, is_known=False)
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"{what}: {error.message[:500]}", key=where) from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(f"{what} cannot be read: {str(error)[:200]}", key=where) from error


def _opened(data: Buffer, what: str, reopen: Callable[[], TableContent], *, is_known: bool) -> TableContent:
    table = read_arrow_file(data, checked=is_known)
    about = load_strict((table.schema.metadata or {})[b"smalti"], where=what)
    if about["version"] not in (TABLE_VERSION, TEXT_TABLE_VERSION):
        raise IndexFileError(
            f"{what} has layout {about['version']!r:.40}, this reader knows {TEXT_TABLE_VERSION}: update smalti"
        )
    kinds = {**_COLUMNS, **_TEXT_COLUMNS} if about["version"] == TEXT_TABLE_VERSION else _COLUMNS
    columns, rows = Columns.of(table, kinds), Rows(about["schemas"], what)
    firsts = numbers_of(table.column(_FIRST)) if _FIRST in table.column_names else None
    content = TableContent(columns, rows, _NO_ROWS, reopen, firsts=firsts)
    if is_known or not table.num_rows:
        return content
    screened = screen(columns, table.num_rows, partial(let_go, data))
    let_go(data)
    suspects = [content.read(row, row + 1)[0] for row in screened.suspects.tolist()]
    check_shards(suspects, suspects[0].schema)
    return replace(content, kinds=screened.kinds)


class _Filling:
    """The columns of a table while they grow, in pieces."""

    def __init__(self, pa: Any) -> None:
        self._pa = pa
        self._schemas: dict[Schema, int] = {}
        self._pieces: dict[str, list[Any]] = {name: [] for name in (*_COLUMNS, *_TEXT_COLUMNS)}
        self._firsts: list[Any] = []
        self._has_text = self._has_first = False

    def add(self, shards: Sequence[ShardInfo]) -> None:
        """These shards behind those there are."""
        pa, schemas = self._pa, self._schemas
        for shard in shards:
            schemas.setdefault(shard.schema, len(schemas))
        self._has_text = self._has_text or any(shard.meta is not None for shard in shards)
        self._put("schema", pa.array([schemas[shard.schema] for shard in shards], pa.int32()))
        self._put("samples", pa.array([shard.samples for shard in shards], pa.int64()))
        self._put("size_limit", pa.array([shard.size_limit for shard in shards], pa.int64()))
        self._put("hash_names", pa.array([",".join(shard.hash_names) for shard in shards], pa.string()))
        for name in ("partition", "compression", "format", "newline", "separator"):
            self._put(name, pa.array([getattr(shard, name) for shard in shards], pa.string()))
        firsts = [_signed(shard.raw.first_hash) for shard in shards]
        self._firsts.append(pa.array(firsts, pa.int64()))
        self._has_first = self._has_first or any(first is not None for first in firsts)
        for name in ("raw", "zip", "meta", "zip_meta"):
            self._put_files(name, [getattr(shard, name) for shard in shards])

    def table(self) -> Any:
        """All of it, in one batch: a reader's map of a column is then one piece. Nothing can be added any more."""
        pa = self._pa
        names = (*_COLUMNS, *_TEXT_COLUMNS) if self._has_text else tuple(_COLUMNS)
        about = {
            "version": TEXT_TABLE_VERSION if self._has_text else TABLE_VERSION,
            "schemas": [{"names": s.names, "encodings": s.encodings, "sizes": s.sizes} for s in self._schemas],
        }
        arrays = {name: self._joined(name, self._pieces.pop(name)) for name in names}
        if self._has_first:
            arrays[_FIRST] = pa.concat_arrays(self._firsts)
        return pa.table(arrays).replace_schema_metadata({"smalti": json.dumps(about, sort_keys=True)})

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
        return whole.cast(pa.dictionary(pa.int32(), pa.string())) if kind is Words else whole


def _signed(first_hash: int | None) -> int | None:
    """As a number of 64 bits with a sign, which is the only kind that a table has."""
    return first_hash if first_hash is None or first_hash < 1 << 63 else first_hash - (1 << 64)


def _hashes(file: FileInfo) -> str:
    """The file's hashes as JSON; an encoder for each of a million would take seconds."""
    pairs = [f"{_quoted(name)}: {_quoted(digest)}" for name, digest in sorted(file.hashes.items())]
    return "{" + ", ".join(pairs) + "}"


_LEVEL = 6
_MAX_BYTES = 1 << 30
"""Of one text, unpacked: about five million shards."""


def pack_shards(shards: Sequence[ShardInfo]) -> str:
    """The shards as ASCII text."""
    return base64.b64encode(zlib.compress(emit_table(shards), _LEVEL)).decode("ascii")


def unpack_shards(text: str, *, where: str) -> ShardTable:
    """The shards of such a text, checked as those of an index file are.

    Raises:
        IndexFileError: It is no such text, or its content cannot be trusted.
    """
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise IndexFileError(f"{where} is not a packed list of shards: {str(error)[:200]}", where=where) from error
    if not inflating.eof:
        raise IndexFileError(
            f"{where}: a packed list of shards is cut short, or larger than {_MAX_BYTES} bytes", where=where
        )
    return checked_table(data, where=where)
