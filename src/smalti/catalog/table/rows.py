"""The columns of a shard table: their names and types, their checks, and the conversion of a row to a shard.

Columns are checked as a whole. A row that is not certainly valid by `odd_rows` is converted to a shard, which is
refused or not by the rules of an index file. So these are stated in one place: `odd_rows` may return too many rows, but
never too few.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import IndexFileError
from smalti.format import BlockList, FileInfo, Schema, ShardInfo, parse_compression
from smalti.format.hashing import HASH_NAMES, check_hash_names, hex_length
from smalti.format.index import MAX_NAME_CHARS, MAX_STORED_BYTES, ONE_FILE_FORMATS, check_basename, parse_schema
from smalti.format.json_fields import Fields
from smalti.format.sizes import MAX_FILE_BYTES, parse_size_limit
from smalti.format.text import TEXT_FORMATS, parse_layout

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
    import pyarrow as pa

    keys = {name: columns.column(name) for name in COMMON}
    keys = {name: getattr(array, "indices", array) for name, array in keys.items()}
    others = max(0, columns.num_rows - 1)
    keys = {name: array for name, array in keys.items() if not array.slice(1).equals(array.slice(0, others))}
    if not keys:
        return np.arange(min(1, columns.num_rows))
    table = pa.table({**keys, "row": np.arange(columns.num_rows)})
    rows = table.group_by(list(keys), use_threads=False).aggregate([("row", "min")]).column("row_min")
    return np.sort(numbers_in(rows.combine_chunks()))


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
    doubled = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    for name in present if len(doubled) else ():
        odd |= flags_in(pc.is_in(columns.column(name), value_set=doubled))
    return odd


def numbers_in(array: Any, absent: int = -1) -> Ids:
    """Return the whole numbers of a column; `absent` for nulls.

    `to_numpy` would import pandas where it is installed, which takes longer than opening a million shards.
    """
    if array.null_count == len(array):
        return np.broadcast_to(np.int64(absent), len(array))
    filled = array.fill_null(absent) if array.null_count else array
    values = np.frombuffer(filled.buffers()[1], str(filled.type))
    return values[filled.offset : filled.offset + len(filled)].astype(np.int64, copy=False)


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
