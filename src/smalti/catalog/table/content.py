"""One file of a shard table: reading an Arrow file that is not trusted, the checks of its columns, its rows as shards.

Layout 1 is for MDS shards. Layout 2, for sets with text shards or Parquet files, has further columns for meta files,
line ends and separators. Both may have columns with which parts of shards are verified: the places of their block
lists (`smalti.format.hashing`).

Everything that pyarrow takes for granted is checked first. Local files are memory-mapped; once a file was checked, the
pages that were read are released again.

Columns are checked as a whole. A row that is not certainly valid by `odd_rows` is converted to a shard, which is
refused or not by the rules of an index file. So these are stated in one place: `odd_rows` may return too many rows, but
never too few.
"""

import hashlib
import json
import mmap
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import CatalogError, FormatError, IndexFileError, SchemaError
from smalti.format import BlockList, FileInfo, Schema, ShardInfo, load_strict, parse_compression
from smalti.format.hashing import HASH_NAMES, check_hash_names, hex_length
from smalti.format.index import MAX_NAME_CHARS, MAX_STORED_BYTES, ONE_FILE_FORMATS, check_basename, parse_schema
from smalti.format.json_fields import Fields
from smalti.format.sizes import MAX_FILE_BYTES, parse_size_limit
from smalti.format.text import TEXT_FORMATS, parse_layout
from smalti.regular_files import open_regular
from smalti.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

Ids = NDArray[np.int64]
Bools = NDArray[np.bool_]
Row = dict[str, Any]
"""Values by the names in `COLUMNS`."""
Known = dict[tuple[Any, ...], Any]
"""Hash names and schemas that rows of a table have in common, by what they were made of: checked and kept once."""
WORD = "word"
"""The type of dictionary-encoded texts, of which many rows have the same one. The other types are Arrow's."""
MDS_COLUMNS = {
    "schema": "int32", "partition": WORD, "samples": "int64", "raw_name": "string", "raw_bytes": "int64",
    "raw_hashes": "string", "zip_name": "string", "zip_bytes": "int64", "zip_hashes": "string", "compression": WORD,
    "hash_names": WORD, "size_limit": "int64",
}  # fmt: skip
TEXT_COLUMNS = {
    "format": WORD, "newline": WORD, "separator": WORD, "meta_name": "string", "meta_bytes": "int64",
    "meta_hashes": "string", "zip_meta_name": "string", "zip_meta_bytes": "int64", "zip_meta_hashes": "string",
}  # fmt: skip
"""Further columns of a table with text shards or Parquet files."""
PARTIAL_COLUMNS = {
    "block_file": WORD, "block_offset": "int64", "block_bytes": "int32", "block_digest": "int64",
}  # fmt: skip
"""Optional columns with which parts of shards are verified; their hashes are signed numbers."""
COLUMNS = MDS_COLUMNS | TEXT_COLUMNS | PARTIAL_COLUMNS
ZIPPED = {"raw": "zip", "meta": "zip_meta"}
"""Prefixes of the columns of uncompressed files, and of their compressed forms."""
_MAX_BYTES = {"raw": MAX_FILE_BYTES, "zip": MAX_STORED_BYTES, "meta": MAX_FILE_BYTES, "zip_meta": MAX_STORED_BYTES}
"""The largest accepted size of each file of a shard."""
NAMES = tuple(f"{part}_name" for part in _MAX_BYTES)
"""The columns with names of files."""
COMMON = ("schema", "partition", "compression", "hash_names", "size_limit", "format", "newline", "separator")
"""Columns in which most rows of a table are equal."""
_hashing_in = itemgetter("compression", "hash_names", "size_limit")
_layout_in = itemgetter("schema", "format", "newline", "separator")
_OWN = ("samples", "partition", "compression", "size_limit", "newline", "separator")
_MAX_WORD_BYTES = 4096
_UNSAFE_NAME = r"[^A-Za-z0-9._\-/=]|(?:^|/)\.{0,2}(?:/|$)"  # the rule of `check_basename` as a pattern
_PAIR = "(?:" + "|".join(f'"{name}": "[0-9a-f]{{{hex_length(name)}}}"' for name in sorted(HASH_NAMES)) + ")"
_HASHES = rf"^\{{(?:{_PAIR}(?:, {_PAIR})*)?\}}$"
_ONE_HASH = re.compile(r'\{"(\w+)": "([0-9a-f]+)"\}', re.ASCII)  # of nearly every file; faster than a JSON parser
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


def columns_of(table: "pa.Table", names: set[str], *, is_known: bool) -> "pa.RecordBatch":
    """Return the columns of these names in the order of `COLUMNS`, each in one piece; the others are all null.

    Every offset, index and text of them is checked, so that no access can leave the memory of the table; not again if
    it `is_known`. Columns of words are dictionary-encoded.

    Raises:
        ValueError: a column has another type, or is damaged; or a word is null, or very long, so that many rows could
            take very much memory.
        KeyError: a column is missing or duplicated.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # Dictionary-encoded, the rows of a column of texts could refer to one very long text.
    accepted = {WORD: (pa.string(), pa.dictionary(pa.int32(), pa.string())), "string": (pa.string(),)}
    arrays = []
    for name, kind in COLUMNS.items():
        if name not in names:
            arrays.append(pa.nulls(table.num_rows))
            continue
        column = table.column(name)
        if column.type not in accepted.get(kind, (pa.int32(), pa.int64())):
            raise ValueError(f"column {name!r} has the type {str(column.type)[:60]}, not that of {kind}")
        column.validate(full=not is_known)
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # one chunk is not copied
        if kind == WORD:
            array = array if hasattr(array, "dictionary") else array.dictionary_encode()
            words = array.dictionary
            if words.null_count or (pc.max(pc.binary_length(words)).as_py() or 0) > _MAX_WORD_BYTES:
                raise ValueError(
                    f"column {name!r} has a null among its words, or one of more than {_MAX_WORD_BYTES} bytes"
                )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, list(COLUMNS))


def rows_in(columns: "pa.RecordBatch") -> Iterator[Row]:
    """Yield the rows; those with the same word refer to the same text."""
    values = []
    for array in columns.columns:
        if hasattr(array, "dictionary"):
            words = array.dictionary.to_pylist()
            values.append([None if place is None else words[place] for place in array.indices.to_pylist()])
        else:
            values.append(array.to_pylist())
    return (dict(zip(COLUMNS, row, strict=True)) for row in zip(*values, strict=True))


def first_of_each_kind(columns: "pa.RecordBatch") -> Ids:
    """Return the first row of each combination of schema, format, compression and other common properties."""
    kinds, firsts = np.zeros(columns.num_rows, np.int64), np.arange(min(1, columns.num_rows))
    others = max(0, columns.num_rows - 1)
    for array in (columns.column(name) for name in COMMON):
        words = getattr(array, "indices", array)
        if not words.slice(1).equals(words.slice(0, others)):
            ranks = 2 * np.unique(numbers_in(words), return_inverse=True)[1] + flags_in(words.is_valid())
            _, firsts, kinds = np.unique(2 * len(kinds) * kinds + ranks, return_index=True, return_inverse=True)
    return np.sort(firsts)


def odd_rows(columns: "pa.RecordBatch", *, checks_names: bool) -> Ids:
    """Return the rows that may be invalid, ascending; they include all rows that have a file name in common.

    The first row of each kind was checked before. Without `checks_names`, only the numbers are looked at.
    """
    is_there = {name: flags_in(columns.column(name).is_valid()) for name in (*NAMES, "compression")}
    sizes = {part: numbers_in(columns.column(f"{part}_bytes")) for part in _MAX_BYTES}
    samples = numbers_in(columns.column("samples"))
    is_text = _by_word(columns.column("format"), lambda word: word not in ONE_FILE_FORMATS)
    line = _by_word(columns.column("newline"), lambda word: len(word.encode("utf-8")))
    odd: Bools = ~is_there["raw_name"] | (is_text != is_there["meta_name"]) | (samples * line > sizes["raw"])
    for part, limit in _MAX_BYTES.items():
        odd |= (is_there[f"{part}_name"] != (sizes[part] >= 0)) | (sizes[part] > limit)
    for part, zipped in ZIPPED.items():
        odd |= is_there[f"{part}_name"] & (is_there[f"{zipped}_name"] != is_there["compression"])
    # Four bytes in the table of offsets for every sample, as in ShardInfo.check; what would overflow is odd already.
    offsets = np.where(is_there["meta_name"], sizes["meta"], sizes["raw"])
    odd |= (samples < 0) | (samples > np.maximum(0, (np.clip(offsets, 0, MAX_STORED_BYTES) - 8) // 4))
    return np.flatnonzero(odd | _odd_names(columns) if checks_names else odd)


def _odd_names(columns: "pa.RecordBatch") -> Bools:
    """Return which rows have a name or hashes that may be invalid, or a name that occurs twice."""
    import pyarrow as pa
    import pyarrow.compute as pc

    odd = np.zeros(columns.num_rows, bool)
    split, declared = columns.column("partition").cast(pa.string()), columns.column("hash_names")
    declared_names = {name for word in set(declared.dictionary.to_pylist()) for name in word.split(",")} & HASH_NAMES
    present = [name for name in NAMES if columns.column(name).null_count < columns.num_rows]
    for names, hashes in ((columns.column(name), columns.column(f"{name[:-4]}hashes")) for name in present):
        is_safe = ~flags_in(pc.match_substring_regex(names, _UNSAFE_NAME))
        is_safe &= numbers_in(pc.binary_length(names)) <= MAX_NAME_CHARS
        folder = pc.struct_field(pc.extract_regex(names, "^(?P<folder>[^/]*)/"), "folder")
        is_inside = flags_in(pc.equal(folder, split)) | flags_in(split.is_null())
        has_hashes = flags_in(pc.match_substring_regex(hashes, _HASHES))
        for name in declared_names:
            is_free = np.array([*(name not in word.split(",") for word in declared.dictionary.to_pylist()), True])
            has_hashes &= is_free[numbers_in(declared.indices)] | flags_in(pc.match_substring(hashes, f'"{name}": "'))
        odd |= flags_in(names.is_valid()) & ~(is_safe & is_inside & has_hashes)
    counts = pc.value_counts(pa.chunked_array([columns.column(name).drop_null() for name in present], pa.string()))
    doubled = counts.field("values").take(_array_of(np.flatnonzero(numbers_in(counts.field("counts")) > 1)))
    for name in present if len(doubled) else ():
        odd |= flags_in(pc.is_in(columns.column(name), value_set=doubled))
    return odd


def numbers_in(array: Any, absent: int = -1) -> Ids:
    """Return the whole numbers of a column; `absent` for nulls.

    `to_numpy` would import pandas where it is installed, which takes longer than opening a million shards.
    """
    if array.null_count == len(array):
        return np.broadcast_to(np.int64(absent), len(array))
    values = np.frombuffer(array.buffers()[1], str(array.type))[array.offset : array.offset + len(array)]
    known = values if not array.null_count else np.where(flags_in(array.is_valid()), values, absent)
    return known.astype(np.int64, copy=False)


def _array_of(numbers: Ids) -> Any:
    """Return numbers as a column; `pyarrow.array`, and a number in place of a column, would import pandas too."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def flags_in(array: Any) -> Bools:
    """Return the truth values of a column; False for nulls."""
    return numbers_in(array.cast("uint8"), 0).astype(bool)


def _by_word(words: Any, value: Callable[[str], int]) -> Ids:
    """Return a number for the word of each row; 0 for nulls."""
    if not hasattr(words, "dictionary"):
        return np.zeros(len(words), np.int64)
    values = np.array([*map(value, words.dictionary.to_pylist()), 0], np.int64)
    return values[numbers_in(words.indices)]


def parse_row(row: Row, schemas: Sequence[dict[str, Any]], known: Known, where: str) -> ShardInfo:
    """Return the shard of one row, checked as strictly as an entry of an index file.

    Args:
        row: Its values.
        schemas: The columns of the shards, which rows refer to by number, as in the file.
        known: What rows of the same table have in common; this one's is added.
        where: Name of the row, for messages.

    Raises:
        FormatError, SchemaError, CatalogError: the row is invalid.
        KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError: it cannot be read.
    """
    hashing, layout = _hashing_in(row), _layout_in(row)
    if hashing not in known:
        known[hashing] = _hash_names(hashing, where)
    if layout not in known:
        known[layout] = _schema(schemas, layout, where)
    kind = row["format"] or "mds"
    files: dict[str, Any] = {part: _file(row, part, where) for part in _MAX_BYTES}
    if files["raw"] is None or (kind in ONE_FILE_FORMATS) != (files["meta"] is None):
        raise IndexFileError(f"{where}: a {kind!r:.60} shard has a file too few or too many")
    blocks = None
    if row["block_file"] is not None:
        place = [row[name] for name in ("block_offset", "block_bytes", "block_digest")]
        if None in place:
            raise IndexFileError(f"{where}: a block list without offset, size or digest")
        name = check_basename(row["block_file"], where=f"{where}, block list")
        blocks = BlockList(name, place[0], place[1], place[2] % (1 << 64))
        blocks.check(where)
    own: dict[str, Any] = {name: row[name] for name in _OWN}
    info = ShardInfo(schema=known[layout], hash_names=known[hashing], format=kind, blocks=blocks, **own, **files)
    info.check(where)
    return info


def _hash_names(hashing: tuple[Any, ...], where: str) -> tuple[str, ...]:
    compression, listed, size_limit = hashing
    names = tuple(listed.split(",")) if listed else ()
    check_hash_names(names)
    if compression is not None and parse_compression(compression) is None:
        raise IndexFileError(f"{where}: an empty name for a compression")
    parse_size_limit(size_limit)
    return names


def _schema(schemas: Sequence[dict[str, Any]], layout: tuple[Any, ...], where: str) -> Schema:
    number, kind, newline, separator = layout[0], layout[1] or "mds", *layout[2:]
    if number < 0:
        raise IndexFileError(f"{where}: there is no schema {number}")
    names, encodings, sizes = (schemas[number][name] for name in ("names", "encodings", "sizes"))
    entry = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    if kind in ONE_FILE_FORMATS:
        return parse_schema(Fields(entry, where))
    if kind not in TEXT_FORMATS:
        raise IndexFileError(f"{where}: unknown shard format {kind!r:.60}")
    entry |= {"columns": dict(zip(names, encodings, strict=True)), "newline": newline, "separator": separator}
    parsed = parse_layout(Fields(entry, where), kind)
    if parsed.separator != separator or any(size is not None for size in sizes):
        raise IndexFileError(f"{where}: separator {separator!r:.60} or column sizes do not belong to {kind}")
    return parsed.schema


def _file(row: Row, part: str, where: str) -> FileInfo | None:
    name, num_bytes = row[f"{part}_name"], row[f"{part}_bytes"]
    if name is None and num_bytes is None:
        return None
    text = row[f"{part}_hashes"] or ""
    match = _ONE_HASH.fullmatch(text)
    hashes = {match[1]: match[2]} if match else json.loads(text or "null")
    hashes = {sys.intern(algorithm): digest for algorithm, digest in hashes.items()}
    file = FileInfo(name, -1 if num_bytes is None else num_bytes, hashes)
    file.check(where, limit=_MAX_BYTES[part])
    return file


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
