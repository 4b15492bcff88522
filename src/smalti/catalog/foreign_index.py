"""Large index files of other writers, read as columns by Arrow's JSON reader.

The entries in files of MosaicML's writer differ in names, sizes, hashes and counts only. Parsed to Python objects, 10^5
of them take seconds. A file with other entries, or an invalid one, is left to `parse_index`, which explains the fault.
"""

import hashlib
from typing import TYPE_CHECKING, Any

from smalti.catalog.digest import NAMES_HEAD, canonical
from smalti.catalog.table.arrow import file_of
from smalti.catalog.table.content import own_content
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import SmaltiError
from smalti.format import ShardInfo, parse_index

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD, _TAIL = b'{"shards": [', b'], "version": 2}'
_BETWEEN = b"}, {"  # around and between the entries


def read_regular(data: bytes, *, where: str) -> tuple[ShardTable, str] | None:
    """Return the shards of an index file, checked as by `parse_index`, and their digest, which is `digest_of` them.

    None if its entries are not alike, or it has further top-level keys.
    """
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
        ValueError: one is not JSON, or has other keys or types than that of `shard`.
    """
    import pyarrow as pa
    from pyarrow import json as arrow_json

    schema = pa.Table.from_pylist([shard.to_json()]).schema
    sizes = pa.field("column_sizes", pa.list_(pa.int64()))  # also if all columns vary in size, so that all are null
    # A separator within an entry would split it, so that neither part is an object.
    table = arrow_json.read_json(
        pa.BufferReader(text.replace(_BETWEEN, b"}\n{")),
        parse_options=arrow_json.ParseOptions(
            schema.set(schema.get_field_index("column_sizes"), sizes), unexpected_field_behavior="error"
        ),
    )
    is_whole = table.num_rows == text.count(_BETWEEN) + 1  # the reader accepts entries without a comma, too
    columns = (column.combine_chunks() for column in table.drop(["raw_data", "zip_data", "samples"]).columns)
    return table if is_whole and all(each.slice(1).equals(each.slice(0, len(each) - 1)) for each in columns) else None


def _index(entries: "pa.Table", shard: ShardInfo) -> tuple[ShardTable, str]:
    """Return the shards of entries that differ from that of `shard` in files and samples only, and their digest."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def joined(*parts: Any) -> Any:  # texts and columns of texts
        return pc.binary_join_element_wise(*parts, "")

    samples = entries.column("samples").combine_chunks()
    schema = {name: list(getattr(shard.schema, name)) for name in ("names", "encodings", "sizes")}
    alike = {"compression": shard.compression, "hash_names": ",".join(shard.hash_names), "size_limit": shard.size_limit}
    columns = {name: pa.repeat(pa.scalar(value), len(samples)) for name, value in alike.items()}
    columns |= {"schema": pa.repeat(pa.scalar(0, pa.int32()), len(samples)), "samples": samples}
    line = [f"{canonical(list(schema.values()))}[null,", samples.cast(pa.string())]
    for part, file in {"raw": shard.raw, "zip": shard.zip}.items():
        if file is None:
            line.append(",null")
            continue
        names, sizes, hashes = entries.column(f"{part}_data").combine_chunks().flatten()
        digests = sorted(zip(file.hashes, hashes.flatten(), strict=True), key=lambda pair: pair[0])
        pieces = [piece for name, digest in digests for piece in (f', "{name}": "', digest, '"')]
        text = joined(pa.repeat("{", len(names)), *(pieces and [pieces[0][2:], *pieces[1:]]), "}")
        columns |= {f"{part}_name": names, f"{part}_bytes": sizes, f"{part}_hashes": text}
        dense = pc.replace_substring(pc.replace_substring(text, '": "', '":"'), '", "', '","')
        line += [',["', names, '",', sizes.cast(pa.string()), ",", dense, "]"]
    shards = ShardTable.of(own_content(file_of([pa.table(columns)], [schema])))
    lines = joined(*line, f",{canonical((shard.compression, shard.hash_names, shard.size_limit))[1:-1]}]\n")
    return shards, hashlib.sha256(NAMES_HEAD + "".join(lines.to_pylist()).encode("ascii")).hexdigest()
