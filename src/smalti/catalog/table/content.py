"""One file of a shard table: reading an Arrow file that is not trusted, and the shards in its rows.

Layout 1 is for MDS shards. Layout 2, for sets with text shards or Parquet files, has further columns for meta files,
line ends and separators. Both may have columns with which parts of shards are verified: the places of their block
lists (`smalti.format.hashing`).

Everything that pyarrow takes for granted is checked first. Local files are memory-mapped; once a file was checked, the
pages that were read are released again.
"""

import hashlib
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.rows import (
    MDS_COLUMNS,
    PARTIAL_COLUMNS,
    TEXT_COLUMNS,
    Known,
    columns_of,
    first_of_each_kind,
    odd_rows,
    parse_row,
    rows_in,
)
from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import Schema, ShardInfo, load_strict
from smalti.regular_files import open_regular
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

Buffer = bytes | mmap.mmap
Source = tuple[Path, tuple[int, int, int, int]]
"""Path of a mapped file, and its device, inode, size and modification time, by which a changed file is detected."""

_MAGIC = b"ARROW1\0\0"
_COMPRESSION = (2, 3)  # fields of flatbuffer tables: the header of Message, the compression of RecordBatch
_COMPRESSION_IN_DICTIONARY = (2, 1, 3)  # the header, the data of DictionaryBatch, the compression
TABLE_VERSION = 1
TEXT_TABLE_VERSION = 2
MAX_TABLE_BYTES = 1 << 30
"""About five million shards."""
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}\Z")
_UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True, eq=False)
class TableContent:
    """The shards of one file."""

    columns: "pa.RecordBatch"
    """All columns named in `COLUMNS`; those that the file lacks are null."""
    schemas: Sequence[dict[str, Any]]
    """The columns of the shards, which rows refer to by number, as in the file."""
    where: str
    """Name of the file, for messages."""
    data: Buffer
    sha256: str
    source: Source | None = None
    """The mapped file of a store, which is pickled instead of the content."""
    known: Known = field(default_factory=dict)

    def slice(self, begin: int, end: int) -> "pa.RecordBatch":
        """Return rows [begin, end). They are checked again: a mapped file can change after it was opened.

        Raises:
            IndexFileError: they are damaged now.
        """
        try:
            part = self.columns.slice(begin, max(0, end - begin))
            part.validate(full=True)
        except (ValueError, IndexError) as error:
            raise IndexFileError(
                f"shard table {self.where}, row {begin}: it was changed since the table was opened: {str(error)[:200]}",
                where=f"shard table {self.where}",
            ) from error
        return part

    def read(self, begin: int, end: int) -> list[ShardInfo]:
        """Return the shards of rows [begin, end), checked.

        Raises:
            IndexFileError: a row is invalid, or was changed.
        """
        shards: list[ShardInfo] = []
        where = f"shard table {self.where}, row {begin}"
        try:
            for row in rows_in(self.slice(begin, end)):
                where = f"shard table {self.where}, row {begin + len(shards)}"
                shards.append(parse_row(row, self.schemas, self.known, where))
        except FormatError:
            raise
        except (SchemaError, CatalogError) as error:
            raise IndexFileError(f"{where}: {error.message[:500]}") from error
        except _UNREADABLE as error:
            raise IndexFileError(f"{where} cannot be read: {str(error)[:200]}") from error
        return shards

    def kinds(self) -> list[ShardInfo]:
        """Return the first shard of each combination of schema, format, compression and other common properties."""
        return [shard for row in first_of_each_kind(self.columns).tolist() for shard in self.read(row, row + 1)]

    def release(self) -> None:
        """Release the pages of a mapped file; they are read again on access, from the page cache or the disk."""
        if isinstance(self.data, mmap.mmap) and hasattr(self.data, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
            self.data.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (bytes(self.data) if self.source is None else self.source, self.where, self.sha256)


def checked_content(
    data: Buffer,
    where: str,
    sha256: str,
    source: Source | None = None,
    *,
    checks_names: bool = True,
    is_known: bool = False,
) -> TableContent:
    """Return the content of a file's bytes, checked; what `is_known` was checked before.

    Without `checks_names`, names and hashes are checked when a row is read, and names that occur twice are not found.

    Raises:
        IndexFileError: the bytes are not those that were published, or their content is invalid.
    """
    what = f"shard table {where}"
    found = sha256 if is_known else hashlib.sha256(data).hexdigest()
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
        columns = columns_of(table, names, is_known=is_known)
        content = TableContent(columns, about["schemas"], where, data, sha256, source)
        if is_known:
            return content
        rows = {*first_of_each_kind(columns).tolist(), *odd_rows(columns, checks_names=checks_names).tolist()}
        shards = [shard for row in sorted(rows) for shard in content.read(row, row + 1)]
        if shards:
            check_kinds(shards, shards[0].schema)
        check_unique(shards)
        content.release()
    except FormatError:
        raise
    except (SchemaError, CatalogError) as error:
        raise IndexFileError(f"{what}: {error.message[:500]}", key=where) from error
    except _UNREADABLE as error:
        raise IndexFileError(f"{what} cannot be read: {str(error)[:200]}", key=where) from error
    return content


def check_kinds(shards: Sequence[ShardInfo], schema: Schema) -> None:
    """Check that the shards have this schema, and are in the folder of their split.

    Raises:
        SchemaError: a shard has another schema.
        CatalogError: a split is invalid or not the folder of its shards.
    """
    for shard in shards:
        if shard.schema != schema:
            raise SchemaError(
                f"shard {shard.stored.basename} has columns {shard.schema.columns()}, the data set has "
                f"{schema.columns()}; "
                "one data set has one schema",
                shard=shard.stored.basename,
            )
        if shard.partition is None:
            continue
        if not _PARTITION.match(shard.partition):
            raise CatalogError(f"split {shard.partition!r} cannot be a folder name: use letters, digits and . _ = -")
        if not all(name.startswith(f"{shard.partition}/") for name in shard.file_names):
            raise CatalogError(
                f"shard {shard.raw.basename} of split {shard.partition!r} must lie below the folder {shard.partition}/",
                shard=shard.raw.basename,
            )


def check_unique(shards: Sequence[ShardInfo]) -> None:
    """Check that no file is listed twice.

    Raises:
        CatalogError: one is.
    """
    seen: set[str] = set()
    for shard in shards:
        for name in shard.file_names:
            if name in seen:
                raise CatalogError(f"file {name} is listed 2 times; its samples would be doubled", shard=name)
            seen.add(name)


def own_content(data: bytes, *, in_memory: bool = True) -> TableContent:
    """Return the content of a file that this process created, checked. Without `in_memory`, it is a temporary file.

    Raises:
        IndexFileError: two shards have a file name in common, or one is invalid.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    return checked_content(data if in_memory else _in_temporary_file(data), "of this process", sha256)


def load_content(
    store: Store, key: str, *, sha256: str, num_bytes: int, checks_names: bool = True, in_memory: bool = False
) -> TableContent:
    """Load a file of so many bytes: a local one is mapped, any other object is kept in a temporary file.

    With `in_memory`, its bytes are in memory, and take no file descriptor. For `checks_names`, see `checked_content`.

    Raises:
        StoreNotFound: there is no such object.
        IndexFileError: it is larger than `MAX_TABLE_BYTES`; or as for `checked_content`.
    """
    where = store.locate(key)
    if num_bytes > MAX_TABLE_BYTES:
        raise IndexFileError(f"shard table {where}: {num_bytes} bytes are more than {MAX_TABLE_BYTES}", key=key)
    path, data, source = store.local_path(key), None, None
    if path is not None and not in_memory:
        with suppress(OSError):  # some network file systems cannot map files; `get_range` raises any other fault
            data, source = _mapped(path)
    if data is None:
        data = store.get_range(key, 0, num_bytes)
        data = data if in_memory else _in_temporary_file(data)
    return checked_content(data, where, sha256, source, checks_names=checks_names)


def _mapped(path: Path) -> tuple[Buffer, Source]:
    """Return a local file as a map, and what identifies it.

    Raises:
        OSError: it does not exist, or cannot be mapped.
    """
    with open_regular(path) as file:
        stat = os.fstat(file.fileno())
        # an empty file cannot be mapped
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if stat.st_size else b""
    return data, (path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))


def _opened_again(data: bytes | Source, where: str, sha256: str) -> TableContent:
    """Return content that was pickled; a mapped file is checked again if it was changed since.

    Raises:
        IndexFileError: the file cannot be mapped here; or as for `checked_content`.
    """
    if isinstance(data, bytes):
        return checked_content(data, where, sha256, is_known=True)
    try:
        mapped, source = _mapped(data[0])
    except OSError as error:
        raise IndexFileError(f"shard table {where} cannot be opened here: {error.strerror}", key=where) from error
    return checked_content(mapped, where, sha256, source, is_known=source == data)


def _in_temporary_file(data: bytes) -> Buffer:
    """Return the bytes as a mapped temporary file, so that only the accessed parts are in memory.

    The file has no name, and takes a file descriptor. Where there is no room for it, the bytes stay in memory.
    """
    with suppress(OSError, ValueError), tempfile.TemporaryFile(prefix="smalti-table-") as file:
        file.write(data)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return data


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
    except (OSError, pa.ArrowException, struct.error) as error:
        raise ValueError(f"Arrow cannot read it: {str(error)[:200]}") from error


def _is_compressed(metadata: bytes, kind: str) -> bool:
    """Return whether a flatbuffer message names a compression of its columns."""
    table: int = struct.unpack_from("<I", metadata)[0]
    for number in _COMPRESSION_IN_DICTIONARY if kind == "dictionary" else _COMPRESSION:
        # A table begins with the distance to its vtable: two sizes, and the place of each field, 0 if it is absent.
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        entry, size = 4 + 2 * number, struct.unpack_from("<H", metadata, vtable)[0]
        offset = struct.unpack_from("<H", metadata, vtable + entry)[0] if entry < size else 0
        if not offset:
            return False
        table += offset + struct.unpack_from("<I", metadata, table + offset)[0]
    return True
