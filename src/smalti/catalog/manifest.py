"""What a version is: its shards, where they came from, and the digest of its content; values only, no I/O.

The row hash of a version: a multiset hash of its samples (`smalti.format.hashing`), as text in its header.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from smalti.catalog.table.digest import check_shards
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import CatalogError, SchemaError
from smalti.format import Schema, ShardInfo
from smalti.format.hashing import MODULUS, hash_each, hash_rows

_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{3,127}\Z")
_NEW_WRITE_ID = re.compile(r"(?:\A|/)[0-9]{8}t[0-9]{6}-[0-9a-f]{16}/")
ROW_HASH = re.compile("[0-9a-f]{32}|", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """One version of a shard set, complete: every shard that it names was in the store when it was published."""

    version: int
    """1, 2, ...; 0 for a plain MDS set, which has no versions."""
    parent: int | None
    """The version that this one was built on; None for the first."""
    write_id: str
    """Names the write that published it; empty for a plain MDS set."""
    digest: str
    """SHA-256, hex, over schema and shard table: equal content, equal digest."""
    schema: Schema
    shards: Sequence[ShardInfo]
    """In order: sample ids run through them. Immutable; a tuple, or a table that makes them when they are asked for."""
    rows: int
    """Samples in all shards."""
    lineage: Mapping[str, Any]
    """Where the data came from, as its writer said it."""
    metadata: Mapping[str, Any]
    """Whatever else the writer wanted to keep."""
    created: str
    """When it was published by the writer's clock, ISO 8601 in UTC: for people; nothing is ordered by it."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """What stored values stand for, by column (see docs/types.md); empty where they stand for themselves."""
    row_hash: str = ""
    """Of all samples as stored, in whatever order and shards: 32 hex digits (`smalti.catalog.manifest`); empty where
    a writer did not say it."""
    sidecars: Sequence[Mapping[str, Any]] = ()
    """Further columns and what else was laid beside the shards (docs/resharding.md)."""

    def select(self, split: str | None) -> Sequence[ShardInfo]:
        """The shards of one split, or all of them for None.

        Raises:
            CatalogError: there is no such split; the message names those there are.
        """
        if split is None:
            return self.shards
        chosen: Sequence[ShardInfo] = (
            self.shards.of_partition(split)
            if isinstance(self.shards, ShardTable)
            else tuple(shard for shard in self.shards if shard.partition == split)
        )
        if not chosen:
            names = ", ".join(repr(name) for name in self.partitions) or "none (open it without `split`)"
            raise CatalogError(
                f"version {self.version} has no split {split!r}; its splits are: {names}",
                split=split,
                version=self.version,
            )
        return chosen

    @property
    def partitions(self) -> tuple[str, ...]:
        """The names of the splits, sorted; empty when the set has none."""
        if isinstance(self.shards, ShardTable):
            return self.shards.partitions
        return tuple(sorted({shard.partition for shard in self.shards if shard.partition is not None}))

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards as stored."""
        if isinstance(self.shards, ShardTable):
            return self.shards.num_bytes
        return sum(map(stored_bytes, self.shards))


@dataclass(frozen=True)
class VersionInfo:
    """One line of the history."""

    version: int
    parent: int | None
    write_id: str
    digest: str
    rows: int
    num_shards: int
    num_bytes: int
    """Bytes of all shards as stored."""
    operation: str
    """create, overwrite, append, rollback, compact or vacuum."""
    created: str
    is_expired: bool = False
    """Whether a vacuum has removed its shards, so that it cannot be opened."""


@dataclass(frozen=True)
class Draft:
    """What a writer wants to publish: shards that lie in the store already."""

    write_id: str
    """From `new_write_id`; publishing the same one again returns the same version."""
    schema: Schema
    shards: Sequence[ShardInfo]
    """Keys below the root: `[<split>/]<write id>/<task>/shard.00000.mds[.zstd]`, or of another format."""
    lineage: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    logical: Mapping[str, Any] = field(default_factory=dict)
    """What stored values stand for, by column; see `Manifest.logical`."""
    row_hash: str = ""
    """Of the samples of these shards alone; empty if it is not known."""
    sidecars: Sequence[Mapping[str, Any]] = ()
    """Kept with the version; JSON."""

    def __post_init__(self) -> None:
        if not _WRITE_ID.match(self.write_id):
            raise CatalogError(
                f"write id {self.write_id!r} is not usable: expected 4 to 128 letters, digits, '.' and '-'; "
                "see new_write_id()"
            )
        if not ROW_HASH.fullmatch(self.row_hash):
            raise CatalogError(f"row hash {self.row_hash!r:.80} is not usable: expected 32 lower-case hex digits")
        for name, value in (("lineage", self.lineage), ("metadata", self.metadata), ("logical", self.logical)):
            check_json(name, value)
        for sidecar in self.sidecars:
            check_json("sidecars", sidecar)
        check_shards(self.shards, self.schema)


def has_write_id(name: str) -> bool:
    """Return whether the name of a shard's file says that Smalti wrote it, also where the index file does not."""
    return _NEW_WRITE_ID.search(name) is not None


def new_write_id() -> str:
    """A name for a write that nobody else has: UTC time for people, 64 random bits for uniqueness."""
    return f"{datetime.now(timezone.utc):%Y%m%dt%H%M%S}-{secrets.token_hex(8)}"


def check_json(name: str, value: Mapping[str, Any]) -> None:
    """Refuse what JSON cannot hold exactly."""
    try:
        json.dumps(dict(value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SchemaError(
            f"`{name}` must be JSON (strings, finite numbers, booleans, lists, objects): {error}"
        ) from error


def stored_bytes(shard: ShardInfo) -> int:
    """Bytes of all files of a shard as stored."""
    return sum(file.num_bytes for file in shard.stored_files)


__all__ = ["add_row_hashes", "hash_each", "hash_rows", "row_hash_text"]


def row_hash_text(total: int) -> str:
    """The sum as it stands in headers: 32 hex digits."""
    return f"{total % MODULUS:032x}"


def add_row_hashes(parts: Iterable[tuple[str, int]]) -> str:
    """The row hash of all parts together, each a (row hash, number of samples).

    Empty if that of a part with samples is not known.
    """
    known = [(text, rows) for text, rows in parts if rows]
    return "" if any(not text for text, _ in known) else row_hash_text(sum(int(text, 16) for text, _ in known))
