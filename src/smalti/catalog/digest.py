"""The digest of a version: the SHA-256 of its content, the same in every store and for every conversion of the rows.

The digest covers, for each shard in order, the columns with their encodings, the format, the split, the number of
samples, and the size and hashes of the uncompressed bytes; and the logical types of the version. It does not cover the
names of files, the compression, or anything else that may differ between two conversions of the same rows. Lines of
JSON (with sorted keys, spelled as by `json.dumps`) are hashed:

    {"columns": [["id", "int64", 8]], "format": "mds", "newline": null, "separator": null, "split": "train"}
    [100, 6710, {"xxh3_64": "c0d29a60eefb93ad"}]
    [100, 6694, {"xxh3_64": "1b25a7a1c70b1f04"}]

The first kind of line precedes the first shard, and every shard that differs in it from the one before. The second kind
is a shard: its samples, then the bytes and hashes of its file; of a text shard also those of its meta file. A file
without hashes has its name there in place of them, so that the digest then identifies files, not content.

The digest of the version is the SHA-256 of a line with the logical types and the scheme, and a line with the hex digest
of the shards; of a version in segments, a line for each segment. The header names the scheme (`digest_scheme`):

    content, content-segments-8192   the digest of this module
    "", segments-8192                the one of earlier versions, over names and compressed files too (`digest_of`)
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.content import TableContent
from smalti.catalog.table.shard_table import ShardTable, segment_shards_of
from smalti.format import FileInfo, Schema, ShardInfo

if TYPE_CHECKING:
    import pyarrow as pa

CONTENT = "content"
_ROWS_AT_ONCE = 1 << 14
_HEADING = ("schema", "partition", "format", "newline", "separator")
"""Columns of a shard table whose values make up the first kind of line."""
_HASH = '": "[0-9a-f]+"'
NAMES_HEAD = b"smalti-manifest-1\n"
_quoted = json.encoder.encode_basestring_ascii


def content_scheme(segment_shards: int | None) -> str:
    """Return the scheme of a version in segments of so many shards; with None, of one with a single table."""
    return CONTENT if segment_shards is None else f"{CONTENT}-segments-{segment_shards}"


def is_content(scheme: str) -> bool:
    """Return whether digests of this scheme are those of this module."""
    size = segment_shards_of(scheme)
    return scheme == content_scheme(size)


def version_digest(shards: Iterable[str], logical: Mapping[str, Any], scheme: str) -> str:
    """Return the digest of a version from the digests of its shards, one for each segment, and its logical types."""
    first = json.dumps({"digest": scheme, "logical": dict(logical)}, sort_keys=True)
    return hashlib.sha256("".join(f"{line}\n" for line in (first, *shards)).encode()).hexdigest()


def digest_of_shards(shards: Sequence[ShardInfo]) -> str:
    """Return the SHA-256, hex, of the lines of these shards; no shard is created of a table in one file."""
    digest = hashlib.sha256()
    is_one_file = isinstance(shards, ShardTable) and len(shards.content.files) == 1
    spans = shards.spans() if is_one_file and isinstance(shards, ShardTable) else []
    for lines in _lines_in(*spans[0]) if spans else _lines_of(shards):
        digest.update("".join(lines).encode())
    return digest.hexdigest()


def _lines_of(shards: Iterable[ShardInfo]) -> Iterator[list[str]]:
    left, before = iter(shards), None
    while part := list(islice(left, _ROWS_AT_ONCE)):
        lines = []
        for shard in part:
            marks = shard.schema, shard.partition, shard.format, shard.newline, shard.separator
            if marks != before:
                before, schema = marks, shard.schema
                lines.append(_heading(zip(schema.names, schema.encodings, schema.sizes, strict=True), *marks[1:]))
            files = ([file.num_bytes, dict(file.hashes) or file.basename] for file in shard.raw_files)
            lines.append(f"{json.dumps([shard.samples, *chain.from_iterable(files)], sort_keys=True)}\n")
        yield lines


def _heading(
    columns: Iterable[Sequence[Any]],
    split: str | None,
    shard_format: str = "mds",
    newline: str | None = None,
    separator: str | None = None,
) -> str:
    values = {"format": shard_format, "newline": newline, "separator": separator, "split": split}
    return f"{json.dumps({'columns': list(map(list, columns)), **values}, sort_keys=True)}\n"


def _lines_in(content: TableContent, begin: int, end: int) -> Iterator[list[str]]:
    before: tuple[Any, ...] | None = None

    @lru_cache(maxsize=1024)
    def heading(schema: int, split: str | None, shard_format: str | None, *marks: str | None) -> str:
        columns = zip(*(content.schemas[schema][part] for part in ("names", "encodings", "sizes")), strict=True)
        return _heading(columns, split, shard_format or "mds", *marks)

    for first in range(begin, end, _ROWS_AT_ONCE):
        part = content.slice(first, min(end, first + _ROWS_AT_ONCE))
        lines = _shard_lines(part)
        marks = list(zip(*(part.column(name).to_pylist() for name in _HEADING), strict=True))
        for place, (last, own) in enumerate(pairwise((before, *marks))):
            if last != own and own is not None and (last is None or heading(*last) != heading(*own)):
                lines[place] = heading(*own) + lines[place]
        before = marks[-1]
        yield lines


def _shard_lines(rows: "pa.RecordBatch") -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [rows.column("samples").cast(pa.string())]
    for file in ("raw", "meta"):
        names = rows.column(f"{file}_name")
        if names.null_count < len(names):
            num_bytes = rows.column(f"{file}_bytes").cast(pa.string())
            hashes = _hashes(rows.column(f"{file}_hashes"), names)
            columns.append(pc.binary_join_element_wise("", num_bytes, hashes, ", ").fill_null(""))
    lines: list[str] = pc.binary_join_element_wise("[", *columns, "]\n", "").to_pylist()
    return lines


def _hashes(hashes: "pa.Array", names: "pa.Array") -> "pa.Array":
    """Return the JSON of the hashes, or else of the name, of each file; null where there is no file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    forms = pc.unique(pc.replace_substring_regex(hashes, _HASH, '": ""'))
    parsed = {form: json.loads(form) for form in forms.to_pylist() if form is not None}
    is_canonical = all(value and json.dumps(value, sort_keys=True) == form for form, value in parsed.items())
    if is_canonical and hashes.null_count == names.null_count:
        return hashes
    texts = [
        None if name is None else json.dumps(json.loads(text or "null") or name, sort_keys=True)
        for name, text in zip(names.to_pylist(), hashes.to_pylist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def digest_of(shards: Iterable[ShardInfo]) -> str:
    """Return the SHA-256, hex, of the canonical JSON of all shards (schema, counts, names, sizes, hashes, split)."""
    digest = hashlib.sha256(NAMES_HEAD)
    columns: dict[Schema, str] = {}
    ends: dict[tuple[Any, ...], str] = {}
    for shard in shards:
        schema = columns.get(shard.schema)
        if schema is None:
            schema = canonical([shard.schema.names, shard.schema.encodings, shard.schema.sizes])
            columns[shard.schema] = schema
        common = (shard.compression, shard.hash_names, shard.size_limit)
        end = ends.get(common)
        if end is None:
            end = ends[common] = canonical(common)[1:-1]
        row = f"{canonical(shard.partition)},{shard.samples},{_file_text(shard.raw)},{_file_text(shard.zip)},{end}"
        if shard.meta is not None:  # text shards only, so that digests of MDS sets do not change
            marks = canonical([shard.format, shard.newline, shard.separator])[1:-1]
            row += f",{marks},{_file_text(shard.meta)},{_file_text(shard.zip_meta)}"
        elif shard.format != "mds":
            row += f",{canonical(shard.format)}"
        digest.update(f"{schema}[{row}]\n".encode())
    return digest.hexdigest()


def canonical(value: Any) -> str:
    """Return the JSON without spaces over which digests are computed."""
    return "null" if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _file_text(file: FileInfo | None) -> str:
    """Return the canonical JSON of a file; formatted by hand, because an encoder takes seconds for a million files."""
    if file is None:
        return "null"
    hashes = ",".join([f"{_quoted(name)}:{_quoted(digest)}" for name, digest in sorted(file.hashes.items())])
    return f"[{_quoted(file.basename)},{file.num_bytes},{{{hashes}}}]"
