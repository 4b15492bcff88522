"""Checks of the shards of a version, and the digest of its content. Pure."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import CatalogError, SchemaError
from smalti.format import FileInfo, Schema, ShardInfo

_quoted = json.encoder.encode_basestring_ascii
_PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}\Z")


def check_shards(shards: Sequence[ShardInfo], schema: Schema) -> None:
    """Check that all shards have this schema, are listed once, and are in the folder of their split.

    Raises:
        SchemaError: a shard has another schema.
        CatalogError: a file is listed twice, or a split is invalid or not the folder of its shards.
    """
    is_screened = isinstance(shards, ShardTable)  # names, splits and duplicates were checked when it was opened
    for shard in shards.kinds if isinstance(shards, ShardTable) else shards:
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
    seen: set[str] = set()
    for shard in () if is_screened else shards:
        for name in shard.file_names:
            if name in seen:
                raise CatalogError(f"file {name} is listed 2 times; its samples would be doubled", shard=name)
            seen.add(name)


def digest_of(shards: Iterable[ShardInfo]) -> str:
    """Return the SHA-256, hex, of the canonical JSON of all shards (schema, counts, names, sizes, hashes, split)."""
    digest = hashlib.sha256(b"smalti-manifest-1\n")
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
        digest.update(f"{schema}[{row}]\n".encode())
    return digest.hexdigest()


def _file_text(file: FileInfo | None) -> str:
    """Return the canonical JSON of a file; formatted by hand, because an encoder takes seconds for a million files."""
    if file is None:
        return "null"
    hashes = ",".join([f"{_quoted(name)}:{_quoted(digest)}" for name, digest in sorted(file.hashes.items())])
    return f"[{_quoted(file.basename)},{file.num_bytes},{{{hashes}}}]"


def canonical(value: Any) -> str:
    """Return the JSON without spaces over which digests are computed."""
    return "null" if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))
