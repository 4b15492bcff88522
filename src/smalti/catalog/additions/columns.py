"""Columns that were added to a version later, and the `sidecars` entries of a header in general.

A header's `sidecars` are entries of two kinds:

columns   a shard table aligned with the version's own: shard i has further columns of the samples of shard i
sources   the source files with the shards that contain their rows (`source_files`); see `spark.incremental.reshard`

The digest of a version covers its own shards alone. Cached copies, the sample order and saved cursors are therefore
those of the version without the added columns.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smalti.catalog.header import Header
from smalti.catalog.manifest import Draft, Manifest, num_bytes_of
from smalti.catalog.table.arrow import emit_table, load_table
from smalti.catalog.table.digest import digest_of
from smalti.catalog.table.shard_table import ShardTable, sizes_of
from smalti.errors import IndexFileError, SchemaError, StoreNotFound
from smalti.format import Schema, ShardInfo
from smalti.format.index import check_basename
from smalti.storage import Store

COLUMNS = "columns"
SOURCES = "sources"
Entries = Sequence[Mapping[str, Any]]
Version = Header | Manifest
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ColumnsEntry:
    """The `sidecars` entry of columns that were added together."""

    columns: Mapping[str, str]
    """Name to encoding."""
    table_key: str
    """Key of the Arrow file with the aligned shards, below the write id that added them."""
    table_sha256: str
    digest: str
    """Digest of the aligned shards; names the folder of their cached copies."""
    num_bytes: int
    """Bytes of the aligned shards as stored."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types by column; see `Annotations.logical`."""

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it is in a header."""
        return {
            "kind": COLUMNS,
            "columns": dict(self.columns),
            "table_key": self.table_key,
            "table_sha256": self.table_sha256,
            "digest": self.digest,
            "num_bytes": self.num_bytes,
            "logical": dict(self.logical),
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], *, where: str) -> "ColumnsEntry":
        """Parse and check an entry.

        Raises:
            IndexFileError: a field is missing or invalid.
        """
        values: dict[str, Any] = {name: entry.get(name) for name in cls.__dataclass_fields__}
        columns, digests = values["columns"], (values["table_sha256"], values["digest"])
        is_valid = (
            isinstance(columns, dict)
            and all(isinstance(item, str) for pair in columns.items() for item in pair)
            and all(isinstance(text, str) and _SHA256.fullmatch(text) for text in digests)
            and isinstance(values["num_bytes"], int)
            and isinstance(values["logical"], dict)
        )
        if not is_valid:
            raise IndexFileError(f"{where}: an entry of `sidecars` cannot be understood: {dict(entry)!r:.200}")
        found = cls(**values)
        check_basename(found.table_key, where=where)
        return found


def columns_of(sidecars: Entries, *, where: str = "version header") -> tuple[ColumnsEntry, ...]:
    """Return the entries of added columns, in the order in which they were added.

    Raises:
        IndexFileError: an entry is invalid.
    """
    return tuple(ColumnsEntry.from_json(entry, where=where) for entry in sidecars if entry.get("kind") == COLUMNS)


def sources_of(sidecars: Entries) -> Mapping[str, Any] | None:
    """Return the entry of the source files; None if there is none."""
    return next((entry for entry in sidecars if entry.get("kind") == SOURCES), None)


def sidecars_after(parent: Version | None, draft: Draft, mode: str) -> tuple[Mapping[str, Any], ...]:
    """Return the sidecars of the version that publishing `draft` after `parent` creates.

    Raises:
        SchemaError: an append to a version with added columns, which the new shards would lack.
    """
    if mode != "append" or parent is None:
        return tuple(draft.sidecars)
    check_no_added_columns(parent)
    # The appended rows have no known source files; what is known of the parent's shards stays valid.
    return tuple(entry for entry in parent.sidecars if entry.get("kind") == SOURCES)


def check_no_added_columns(parent: Version) -> None:
    """Check that rows can be appended to the version.

    Raises:
        SchemaError: it has added columns, which the new shards would lack.
    """
    added = [name for entry in columns_of(parent.sidecars) for name in entry.columns]
    if added:
        raise SchemaError(
            f"cannot append to version {parent.version}: its columns {', '.join(map(repr, added))} were added beside "
            "the shards, and the new shards would lack them. Take them out with `drop_columns`, append, and add them "
            "again; or write the whole set anew with mode='overwrite'",
            version=parent.version,
            columns=added,
        )


def aligned_shards(store: Store, entry: ColumnsEntry, main: Sequence[ShardInfo]) -> ShardTable:
    """Load the shards with an entry's columns, and check that they match `main`, the shards of the version, one by one.

    Raises:
        IndexFileError: their table is missing, damaged, or does not match.
    """
    found = shards_of(store, entry)
    expected = Schema.from_columns(entry.columns, allow_unsafe_types=True).columns()
    fits = np.array_equal(sizes_of(found), sizes_of(main))
    if not fits or any(kind.schema.columns() != expected for kind in found.kinds):
        raise IndexFileError(
            f"{store.locate(entry.table_key)}: the shards of the added columns "
            f"{', '.join(entry.columns)} do not fit the {len(main)} shards that they were added to",
            key=entry.table_key,
        )
    return found


def shards_of(store: Store, entry: ColumnsEntry) -> ShardTable:
    """Load the shards with an entry's columns.

    Raises:
        IndexFileError: the table is missing, too large, or not the one that the header names.
    """
    key = entry.table_key
    try:
        return load_table(store, key, sha256=entry.table_sha256)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of added columns {store.locate(key)} is gone; roll back", key=key) from error


def live_keys(store: Store, sidecars: Entries) -> Iterator[str]:
    """Yield the keys of all objects that the sidecars of a version need; none of them may be removed.

    Raises:
        IndexFileError: a table cannot be read, so that its keys are unknown.
    """
    for entry in sidecars:
        if entry.get("kind") == SOURCES:
            yield str(entry["key"])
    for added in columns_of(sidecars):
        yield added.table_key
        yield from _keys(shards_of(store, added))


def _keys(shards: Iterable[ShardInfo]) -> Iterator[str]:
    for shard in shards:
        for file in shard.stored_files:
            yield file.basename


def store_columns(
    store: Store, key: str, shards: Sequence[ShardInfo], columns: Mapping[str, str], logical: Mapping[str, Any]
) -> ColumnsEntry:
    """Put the table of aligned shards, and return the entry for a header's `sidecars`.

    Args:
        store: The root of the set.
        key: Key of the table, below the folder of the write that made the shards.
        shards: One for each shard of the version, with as many samples; in the store already.
        columns: Name to encoding of the columns in these shards.
        logical: Logical types by column.

    Raises:
        StoreError: the table could not be put.
    """
    table = emit_table(shards)
    store.put(key, table)
    return ColumnsEntry(
        columns=columns,
        table_key=key,
        table_sha256=hashlib.sha256(table).hexdigest(),
        digest=digest_of(shards),
        num_bytes=num_bytes_of(shards),
        logical=logical,
    )
