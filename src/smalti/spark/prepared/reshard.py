"""A shard set kept up to date with prepared images: only rows that are new or changed are written into shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest, load_manifest, new_write_id, rollback
from smalti.catalog.header import Header, read_header
from smalti.catalog.reading import headers_before
from smalti.errors import StoreNotFound
from smalti.spark.incremental.reshard import reshard_files
from smalti.spark.prepared.rows import read_rows
from smalti.spark.prepared.table import PreparedTable
from smalti.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECIPE = "prepared 1"  # another number when the same table would give other rows


@dataclass(frozen=True)
class Sharding:
    """How rows become shards."""

    columns: Mapping[str, str | None]
    """Name to encoding, of the table's columns to store; `path` among them."""
    compression: str | None = None
    """Of shard files; none by default, because JPEG does not get smaller."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums of shard files."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression."""

    def lineage(self, table: PreparedTable) -> dict[str, Any]:
        """What a version says of itself that holds the rows of this table in such shards."""
        how = {**vars(self), "columns": dict(self.columns), "hashes": list(self.hashes)}
        return {"rows": table.digest, "sharding": how}


@dataclass(frozen=True)
class Resharded:
    """What `reshard_prepared` made, and how much of it was there."""

    manifest: Manifest
    converted: int
    """Images that were written from the prepared table."""
    kept_shards: int
    """Shards of the version before that are in this one too, by name."""


@dataclass(frozen=True)
class Target:
    """A shard set that is to hold the rows of a prepared table, as it was when it was looked at."""

    url: str | Path
    """The root of the set: a path or URL that all executors can write to."""
    newest: Manifest | None
    """Its newest version; None if there is none."""
    storage_options: Mapping[str, Any] | None = None
    """Credentials and endpoint of its store, and of that of the table."""

    @property
    def version(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return self.newest.version if self.newest is not None else 0


def look_at(url: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Target:
    """The set at this place as it is now, for the two functions below: both build on its newest version.

    Raises:
        IndexFileError: the newest version cannot be trusted.
    """
    try:
        newest = load_manifest(open_store(url, storage_options))
    except StoreNotFound:
        newest = None
    return Target(url, newest, storage_options)


def find_version(table: PreparedTable, target: Target, sharding: Sharding, *, write_id: str = "") -> Manifest | None:
    """The newest version that holds the rows of this table in such shards; None if there is none. Needs no Spark.

    If others came after it, it is rolled back to: the same shards and digest under a new number.

    Args:
        table: from `update_prepared`.
        target: from `look_at`.
        sharding: how its rows are to lie in shards.
        write_id: a version that was written under this id will do too.

    Raises:
        CatalogError: as for `rollback`.
    """
    wanted, newest = sharding.lineage(table), target.newest

    def is_wanted(version: Manifest | Header) -> bool:
        same = all(version.lineage.get(name) == fact for name, fact in wanted.items())
        return same or (bool(write_id) and version.write_id == write_id)

    if newest is None or is_wanted(newest):
        return newest
    if not newest.version:  # a plain MDS set
        return None
    store = open_store(target.url, target.storage_options)
    last = read_header(store, newest.version)
    for header in headers_before(store, last):
        if header.version not in last.expired and is_wanted(header):
            return rollback(store, header.version)
    return None


def reshard_prepared(
    spark: "SparkSession",
    table: PreparedTable,
    target: Target,
    sharding: Sharding,
    *,
    rewrite: bool = False,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Resharded:
    """The version that holds exactly the rows of a prepared table; only new and changed ones are written. Blocks.

    Args:
        spark: the session.
        table: from `update_prepared`.
        target: from `look_at`.
        sharding: how rows become shards; another way writes all of them again.
        rewrite: write all of them again now.
        lineage: kept in the manifest.
        metadata: kept in the manifest.

    Raises:
        As `reshard_files`.
    """
    newest, converted = target.newest, 0
    # What was written before a rewrite is not built on; what came after it is.
    generation = new_write_id() if rewrite else str(newest.lineage.get("generation", "")) if newest else ""

    def prepare(session: "SparkSession", paths: Sequence[str]) -> "DataFrame":
        nonlocal converted
        converted = len(paths)
        return read_rows(session, table, only=paths, storage_options=target.storage_options)

    manifest = reshard_files(
        spark,
        table.source_files(),
        target.url,
        prepare=prepare,
        recipe=[_RECIPE, generation],
        columns=sharding.columns,
        compression=sharding.compression,
        hashes=sharding.hashes,
        size_limit=sharding.size_limit,
        partition_by="split",
        lineage={**sharding.lineage(table), "generation": generation, **dict(lineage or {})},
        metadata=metadata,
        storage_options=target.storage_options,
    )
    before = {shard.raw.basename for shard in newest.shards} if newest is not None else set()
    kept = before & {shard.raw.basename for shard in manifest.shards}
    return Resharded(manifest, converted, len(kept))
