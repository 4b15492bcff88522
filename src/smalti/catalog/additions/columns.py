"""What a version has beside its shards: columns that were added later, and the source files that rows came from.

A header's `sidecars` are entries of two kinds:

columns   a shard table, aligned with the version's own: shard i holds further columns of the samples of shard i
sources   the source files with the shards that hold their rows (`source_files`); see `spark.incremental.reshard`

The digest of a version is over its own shards alone, so its copies in caches, its order and saved cursors are those of
the version without the column.

Columns beside the shards of a version: the table of theirs, put into the store, and the entry that names it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from smalti.catalog.header import MAX_TABLE_BYTES
from smalti.catalog.manifest import stored_bytes
from smalti.catalog.table.arrow import emit_table, map_table, parse_table
from smalti.catalog.table.digest import digest_of
from smalti.catalog.table.shard_table import ShardTable, sizes_of
from smalti.errors import IndexFileError, SchemaError, StoreNotFound
from smalti.format import Schema, ShardInfo
from smalti.format.names import check_basename
from smalti.storage import Store

COLUMNS = "columns"
SOURCES = "sources"
Entries = Sequence[Mapping[str, Any]]
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ColumnsEntry:
    """Columns beside the shards, as a header names them."""

    columns: Mapping[str, str]
    """Name to encoding."""
    table_key: str
    """The Arrow file with the aligned shards, below the write id of whoever added them."""
    table_sha256: str
    digest: str
    """Of the aligned shards; names the folder of their copies."""
    num_bytes: int
    """Of the aligned shards, as stored."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """What stored values stand for, by column; see `Manifest.logical`."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a header."""
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
        """A checked entry.

        Raises:
            IndexFileError: a field is missing, or is not as it must be.
        """
        values: dict[str, Any] = {name: entry.get(name) for name in cls.__dataclass_fields__}
        columns, digests = values["columns"], (values["table_sha256"], values["digest"])
        is_whole = (
            isinstance(columns, dict)
            and all(isinstance(item, str) for pair in columns.items() for item in pair)
            and all(isinstance(text, str) and _SHA256.fullmatch(text) for text in digests)
            and isinstance(values["num_bytes"], int)
            and isinstance(values["logical"], dict)
        )
        if not is_whole:
            raise IndexFileError(f"{where}: an entry of `sidecars` cannot be understood: {dict(entry)!r:.200}")
        found = cls(**values)
        check_basename(found.table_key, where=where)
        return found


class Draftlike(Protocol):
    """The part of a `Draft` that matters here."""

    @property
    def sidecars(self) -> Entries:
        """What the draft has beside its shards."""


class Versionlike(Protocol):
    """The part of a `Header` or `Manifest` that matters here."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def sidecars(self) -> Entries:
        """What it has beside its shards."""


def columns_of(sidecars: Entries, *, where: str = "version header") -> tuple[ColumnsEntry, ...]:
    """The columns beside the shards, in the order in which they were added.

    Raises:
        IndexFileError: an entry cannot be understood.
    """
    return tuple(ColumnsEntry.from_json(entry, where=where) for entry in sidecars if entry.get("kind") == COLUMNS)


def sources_of(sidecars: Entries) -> Mapping[str, Any] | None:
    """The entry that tells source files apart; None where a version has none."""
    return next((entry for entry in sidecars if entry.get("kind") == SOURCES), None)


def carried(parent: Versionlike | None, draft: Draftlike, mode: str) -> tuple[Mapping[str, Any], ...]:
    """What the version made of `draft` has beside its shards.

    Raises:
        SchemaError: an append to a version with added columns, which the new shards would lack.
    """
    if mode != "append" or parent is None:
        return tuple(draft.sidecars)
    check_no_added_columns(parent)
    # Who appends rows does not say which files they came from; those of the shards before them are known as they were.
    return tuple(entry for entry in parent.sidecars if entry.get("kind") == SOURCES)


def check_no_added_columns(parent: Versionlike) -> None:
    """Return only if rows can be appended to the version.

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
    """The shards that hold an entry's columns, shard by shard beside `main`, the shards of the whole version.

    Raises:
        IndexFileError: their table is gone or damaged, or does not fit.
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
    """The shards that hold an entry's columns; of a local store, mapped.

    Raises:
        IndexFileError: the table is gone, too large, or not the one that the header names.
    """
    key = entry.table_key
    where = store.locate(key)
    try:
        num_bytes = store.size(key)
        if num_bytes > MAX_TABLE_BYTES:
            raise IndexFileError(f"shard table {where}: {num_bytes} bytes are more than {MAX_TABLE_BYTES}", key=key)
        path = store.local_path(key)
        if path is not None:
            with suppress(OSError):  # some network disks map nothing; `get` says what else it is
                return map_table(path, sha256=entry.table_sha256, where=where)
        data = store.get(key)
    except StoreNotFound as error:
        raise IndexFileError(f"the table of added columns {where} is gone; roll back", key=key) from error
    return parse_table(data, sha256=entry.table_sha256, where=where)


def live_keys(store: Store, sidecars: Entries) -> Iterator[str]:
    """Every object that a version needs for what it has beside its shards; nothing of it may be removed.

    Raises:
        IndexFileError: a table cannot be read, so that it cannot be told.
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
    """The entry for a header's `sidecars`, after the table of these shards was put under `key`.

    Args:
        store: The root of the set.
        key: Below the folder of the write that made the shards.
        shards: One beside each of the version, with as many samples; in the store.
        columns: Name to encoding of what they hold.
        logical: What stored values stand for, by column.

    Raises:
        StoreError: The table could not be put.
    """
    table = emit_table(shards)
    store.put(key, table)
    return ColumnsEntry(
        columns=columns,
        table_key=key,
        table_sha256=hashlib.sha256(table).hexdigest(),
        digest=digest_of(shards),
        num_bytes=sum(map(stored_bytes, shards)),
        logical=logical,
    )
