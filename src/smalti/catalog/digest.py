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
from smalti.catalog.table.segment_list import scheme_of, segment_shards_of
from smalti.catalog.table.shard_table import ShardTable
from smalti.format import ShardInfo

if TYPE_CHECKING:
    import pyarrow as pa

CONTENT = "content"
_ROWS_AT_ONCE = 1 << 14
_HEADING = ("schema", "partition", "format", "newline", "separator")
"""Columns of a shard table whose values make up the first kind of line."""
_HASH = '": "[0-9a-f]+"'


def content_scheme(segment_shards: int | None) -> str:
    """Return the scheme of a version in segments of so many shards; with None, of one with a single table."""
    return CONTENT if segment_shards is None else f"{CONTENT}-{scheme_of(segment_shards)}"


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
    if all(form is None or _is_canonical(form) for form in forms.to_pylist()) and hashes.null_count == names.null_count:
        return hashes
    texts = [
        None if name is None else json.dumps(json.loads(text or "null") or name, sort_keys=True)
        for name, text in zip(names.to_pylist(), hashes.to_pylist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def _is_canonical(text: str) -> bool:
    found = json.loads(text)
    return bool(found) and json.dumps(found, sort_keys=True) == text
