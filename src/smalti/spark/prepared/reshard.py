"""Shard sets of prepared images: only new and changed rows are written into shards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Manifest, load_manifest, new_write_id
from smalti.errors import StoreNotFound
from smalti.redaction import hide_options
from smalti.spark.prepared.rows import few_rows, read_rows
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.reshard import Erased, reshard_files
from smalti.spark.rows import find_same
from smalti.spark.tasks import LocalFrame, session_of
from smalti.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECIPE = "prepared 1"  # increase the number when the same table would give other rows


@dataclass(frozen=True)
class Sharding:
    """Options by which rows become shards."""

    columns: Mapping[str, str | None]
    """Columns of the table to store, name to encoding; `path` is required."""
    compression: str | None = None
    """Compression of shard files; none by default, because JPEG does not get smaller."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums of shard files."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression."""

    def lineage(self, table: PreparedTable) -> dict[str, Any]:
        """Return the lineage of a version that holds the rows of this table in such shards."""
        options = {**vars(self), "columns": dict(self.columns), "hashes": list(self.hashes)}
        return {"rows": table.digest, "sharding": options}


@dataclass(frozen=True)
class Resharded:
    """The result of `reshard_prepared`."""

    manifest: Manifest
    converted: int
    """Images that were written from the prepared table."""
    kept_shards: int
    """Number of shards of the version before that this version reuses."""


@dataclass(frozen=True)
class Target:
    """A shard set that is to hold the rows of a prepared table, and its newest version when `look_at` read it."""

    url: str | Path
    """The root of the set: a path or URL that all executors can write to."""
    newest: Manifest | None
    """Its newest version; None if there is none."""
    storage_options: Mapping[str, Any] | None = None
    """Credentials and endpoint of its store."""

    def __post_init__(self) -> None:
        hide_options(self)

    @property
    def version(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return self.newest.version if self.newest is not None else 0


def look_at(url: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> Target:
    """Return the set at this place with its newest version, for `find_version` and `reshard_prepared`.

    Raises:
        IndexFileError: The newest version is damaged.
    """
    try:
        newest = load_manifest(open_store(url, storage_options))
    except StoreNotFound:
        newest = None
    return Target(url, newest, storage_options)


def find_version(table: PreparedTable, target: Target, sharding: Sharding) -> Manifest | None:
    """Return the newest version that holds the rows of this table in such shards; None if there is none.

    If it is not the newest version of all, it is rolled back to: the same shards and digest under a new number. Needs
    no Spark.

    Args:
        table: Table from `update_prepared`.
        target: Set from `look_at`.
        sharding: Options by which its rows are stored.

    Raises:
        CatalogError: As for `rollback`.
    """
    store = open_store(target.url, target.storage_options)
    return find_same(store, target.newest, sharding.lineage(table))


def reshard_prepared(
    spark: "SparkSession | Callable[[], SparkSession]",
    table: PreparedTable,
    target: Target,
    sharding: Sharding,
    *,
    rewrite: bool = False,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    erased: Erased = "refuse",
) -> Resharded:
    """Publish a version that holds exactly the rows of a prepared table; write only new and changed rows. Blocks.

    A few rows are written in this process, any others on Spark.

    Args:
        spark: The session, or a function that starts one: it is called only if there is much to do.
        table: Table from `update_prepared`.
        target: Set from `look_at`.
        sharding: Options by which rows become shards; other options than before write all rows again.
        rewrite: True writes all rows again.
        lineage: Kept in the manifest.
        metadata: Kept in the manifest.
        erased: What to do with new and changed images that were deleted from the set: refuse, skip or convert.

    Raises:
        Otherwise: As for `reshard_files`.
    """
    newest, converted = target.newest, 0
    # Versions of another generation, written before the last rewrite, are not reused.
    generation = new_write_id() if rewrite else str(newest.lineage.get("generation", "")) if newest else ""

    def prepare(_: object, paths: Sequence[str]) -> "DataFrame | LocalFrame":
        nonlocal converted
        converted = len(paths)
        few = few_rows(table, paths) if newest is not None else None
        return read_rows(session_of(spark), table, only=paths) if few is None else few

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
        erased=erased,
    )
    before = {shard.raw.basename for shard in newest.shards} if newest is not None else set()
    kept = before & {shard.raw.basename for shard in manifest.shards}
    return Resharded(manifest, converted, len(kept))
