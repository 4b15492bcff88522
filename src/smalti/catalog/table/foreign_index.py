"""Reading of large index files of other writers, as columns, by Arrow's JSON reader.

The entries in files of MosaicML's writer differ in names, sizes, hashes and counts only. Parsed to Python objects, 10^5
of them take seconds. A file with other entries, or an invalid one, is left to `parse_index`, which explains the fault.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smalti.catalog.table.arrow import file_of, opened_bytes
from smalti.catalog.table.shard_table import ShardTable, canonical
from smalti.errors import SmaltiError
from smalti.format import FileInfo, ShardInfo, parse_index

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD, _TAIL = b'{"shards": [', b'], "version": 2}'
_BETWEEN = b"}, {"


@dataclass(frozen=True)
class RegularIndex:
    """The content of such a file, which has no further top-level keys."""

    shards: ShardTable
    digest: str
    """Equal to `digest_of(shards)`."""


def read_regular(data: bytes, *, where: str) -> RegularIndex | None:
    """Return the shards of an index file, checked as by `parse_index`; None if its entries are not alike."""
    text = data.rstrip(b" \t\r\n")
    end = text.find(_BETWEEN, len(_HEAD)) + 1
    if not (end and text.startswith(_HEAD) and text.endswith(_TAIL)):
        return None
    try:
        (shard,), _ = parse_index(text[:end] + _TAIL, where=where)
        entries = _entries(text[len(_HEAD) : -len(_TAIL)], shard)
        return None if entries is None or shard.meta is not None else _index(entries, shard)
    except (SmaltiError, ValueError, KeyError):
        return None


def _entries(text: bytes, shard: ShardInfo) -> "pa.Table | None":
    """Return the entries, separated by commas, as rows; None if they differ in more than files and samples.

    Raises:
        ValueError: one is not JSON, or has other keys than that of `shard`.
    """
    import pyarrow as pa
    from pyarrow import json

    texts, number = pa.list_(pa.string()), pa.int64()
    alike = {
        "column_encodings": texts, "column_names": texts, "column_sizes": pa.list_(number), "compression": pa.string(),
        "format": pa.string(), "hashes": texts, "size_limit": number, "version": number,
    }  # fmt: skip
    files = {"raw_data": _file_type(shard.raw), "zip_data": _file_type(shard.zip or shard.raw)}
    # A separator within an entry would split it, so that neither part is an object.
    table = json.read_json(
        pa.BufferReader(text.replace(_BETWEEN, b"}\n{")),
        parse_options=json.ParseOptions(
            pa.schema({**alike, **files, "samples": number}), unexpected_field_behavior="error"
        ),
    )
    is_whole = table.num_rows == text.count(_BETWEEN) + 1  # the reader accepts entries without a comma, too
    columns = (table.column(name).combine_chunks() for name in alike)
    return table if is_whole and all(each.slice(1).equals(each.slice(0, len(each) - 1)) for each in columns) else None


def _file_type(file: FileInfo) -> "pa.DataType":
    import pyarrow as pa

    hashes = pa.struct({name: pa.string() for name in file.hashes})
    return pa.struct({"basename": pa.string(), "bytes": pa.int64(), "hashes": hashes})


def _index(entries: "pa.Table", shard: ShardInfo) -> RegularIndex:
    import pyarrow as pa

    samples = entries.column("samples").combine_chunks()
    raw, raw_lines = _file_columns("raw", entries, shard.raw)
    packed, zip_lines = _file_columns("zip", entries, shard.zip)
    schema = [list(part) for part in (shard.schema.names, shard.schema.encodings, shard.schema.sizes)]
    alike = {"compression": shard.compression, "hash_names": ",".join(shard.hash_names), "size_limit": shard.size_limit}
    columns = {name: pa.repeat(pa.scalar(value), len(samples)) for name, value in alike.items()}
    columns |= {"schema": pa.repeat(pa.scalar(0, pa.int32()), len(samples)), "samples": samples, **raw, **packed}
    data = file_of([pa.table(columns)], [dict(zip(("names", "encodings", "sizes"), schema, strict=True))])
    shards = ShardTable(opened_bytes(data))
    tail = canonical((shard.compression, shard.hash_names, shard.size_limit))[1:-1]
    head = f"{canonical(schema)}[null,"
    lines = _joined(head, samples.cast(pa.string()), ",", raw_lines, ",", zip_lines, f",{tail}]\n")
    digest = hashlib.sha256(b"smalti-manifest-1\n")
    digest.update("".join(lines.to_pylist()).encode("ascii"))
    return RegularIndex(shards, digest.hexdigest())


def _file_columns(part: str, entries: "pa.Table", file: FileInfo | None) -> tuple[dict[str, Any], Any]:
    """Return the columns of one kind of file, and what the lines of the digest have of them.

    Raises:
        ValueError: there are such files, and the first entry has none.
    """
    import pyarrow as pa

    files = entries.column(f"{part}_data").combine_chunks()
    if file is None:
        if files.null_count < len(files):
            raise ValueError(f"entries with and without {part}_data")
        return {}, "null"
    names, sizes, hashes = files.flatten()
    digests = sorted(zip(file.hashes, hashes.flatten(), strict=True), key=lambda pair: pair[0])

    def text(colon: str, comma: str) -> list[Any]:
        """Return what the JSON of the hashes is joined of, with these separators."""
        pairs = [
            (f'{comma if number else ""}"{name}"{colon}"', digest, '"') for number, (name, digest) in enumerate(digests)
        ]
        return ["{", *(piece for pair in pairs for piece in pair), "}"]

    columns = {"name": names, "bytes": sizes, "hashes": _joined(pa.repeat("", len(names)), *text(": ", ", "))}
    line = _joined('["', names, '",', sizes.cast(pa.string()), ",", *text(":", ","), "]")
    return {f"{part}_{name}": column for name, column in columns.items()}, line


def _joined(*parts: Any) -> Any:
    """Return the concatenation of texts and columns of texts."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")
