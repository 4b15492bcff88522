"""Rows of a source as a version of a shard set: all of them, or those of new and changed partitions."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smalti.catalog import Manifest
from smalti.catalog.manifest import read_header
from smalti.spark import SourceFile, dataframe_to_mds, reshard_files
from smalti.spark.prepared.rows import Target
from smalti.spark.rows import SPLIT, by_split, find_same, transformed, with_split
from smalti.storage import open_store
from smalti.writer.tables.transform import Transform
from smalti_dagster.declaration import Declaration
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.sources.functions import function_digest, load_for_tasks
from smalti_dagster.sources.inventory import inventories_of
from smalti_dagster.sources.partitions import PARTITIONS, ReadPartitions
from smalti_dagster.sources.rows import is_as_read, partition_column, read_frame, rows_of
from smalti_dagster.sources.rows_config import RowsConfig

SparkSession = Any  # Dagster resolves annotations when it loads, and pyspark is not to be imported then
DataFrame = Any

_GENERATION = "generation"  # in the lineage: shards of another one, from before the last rewrite, are not reused
_RECIPE = 1  # another number when the same rows and options would give other shards


@dataclass(frozen=True)
class WriteRows:
    """One way of writing the rows of a data set as shards."""

    declared: Declaration
    rows: str
    """Digest of the rows: of the source, or of the source and the function that prepares it."""
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: str

    @property
    def write_id(self) -> str:
        """Return a name that is equal for equal rows and options."""
        declared = self.declared
        facts = [_RECIPE, self.rows, self.compression, list(self.hashes), self.size_limit]
        facts += [declared.columns, declared.shards.nulls, _split_facts(declared), declared.function]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def options(self, target: Target) -> dict[str, Any]:
        """Return the arguments that both ways of writing have in common."""
        return {
            "nulls": self.declared.shards.nulls or "reject",
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
            "storage_options": target.storage_options,
        }

    def find(self, target: Target) -> Manifest | None:
        """Return the version that has these rows in such shards; an earlier one is rolled back to."""
        store = open_store(target.url, target.storage_options)
        return find_same(store, target.newest, {"write": self.write_id})


def publish_rows(
    frame: DataFrame, write: WriteRows, target: Target, *, lineage: Mapping[str, Any], is_rewrite: bool = False
) -> Manifest:
    """Write rows as a new version of a shard set by `dataframe_to_mds`, and return it."""
    declared, column = write.declared, write.declared.split.column or SPLIT
    frame = _prepared(frame, declared, None)
    transform = None
    if declared.function is not None:
        transform = by_split(load_for_tasks(frame.sparkSession, declared.function), column)
    columns = declared.columns
    if columns is None and transform is None:
        columns = {name: None for name in frame.columns if name != column}
    return dataframe_to_mds(
        frame,
        target.url,
        columns=columns,
        transform=transform,
        partition_by=column,
        mode="overwrite",
        progress=False,
        write_id=_fresh(write.write_id, target, is_rewrite=is_rewrite),
        lineage={"write": write.write_id, **lineage},
        **write.options(target),
    )


def publish_partitions(
    session: SparkSession,
    write: WriteRows,
    target: Target,
    source: Mapping[str, Any],
    storage: StorageResource,
    *,
    lineage: Mapping[str, Any],
    is_rewrite: bool = False,
) -> Manifest:
    """Publish a version with the rows of all partitions; only those of new and changed ones are read and written.

    Args:
        session: of Spark.
        write: how the rows are written.
        target: the shard set.
        source: facts of `raw`.
        storage: where it is said what was read of each partition.
        lineage: kept in the manifest.
        is_rewrite: True reads and writes the rows of all partitions again.

    Raises:
        dg.Failure: a partition changed since `raw` has read it.
    """
    declared, read = write.declared, ReadPartitions.load(inventories_of(write.declared, storage), source[PARTITIONS])
    digests, column, split_column = read.all, partition_column(declared), declared.split.column or SPLIT
    before = str(target.newest.lineage.get(_GENERATION, "")) if target.newest is not None else ""
    generation = {_GENERATION: found} if (found := secrets.token_hex(8) if is_rewrite else before) else {}
    transform = None
    if declared.function is not None:
        transform = by_split(by_split(load_for_tasks(session, declared.function), split_column), column)

    config = RowsConfig(form=source["form"], source=source["reads"])

    def prepare(session: SparkSession, keys: Sequence[str]) -> DataFrame:
        frame = read_frame(session, declared, config, storage)
        known = read.own if is_as_read(declared, source, storage) else ()
        rows = rows_of(frame, declared, {key: digests[key] for key in keys}, known=known)
        return _prepared(rows, declared, transform)

    columns = declared.columns
    if columns is not None:
        columns = {column: "str", **columns}
    elif transform is None:
        names = read_frame(session, declared, config, storage).columns
        columns = {name: None for name in names if name != split_column}
    code = function_digest(declared.function) if declared.function is not None else None
    return reshard_files(
        session,
        [SourceFile(key, digest) for key, digest in digests.items()],
        target.url,
        prepare=prepare,
        recipe=[_RECIPE, _split_facts(declared), code, *generation.values()],
        path_column=column,
        columns=columns,
        partition_by=split_column,
        lineage={"write": write.write_id, **generation, **lineage},
        **write.options(target),
    )


def _split_facts(declared: Declaration) -> dict[str, Any]:
    """Return what decides the split of a row."""
    return declared.split.model_dump(mode="json", exclude={"fixed"})  # of images


def _prepared(frame: DataFrame, declared: Declaration, transform: Transform | None) -> DataFrame:
    """Return rows with their split, transformed if there is a function."""
    split = declared.split
    if split.column is None:
        frame = with_split(frame, {"validation": split.validation, "test": split.test}, seed=split.seed, key=split.key)
    return frame if transform is None else transformed(frame, transform)


def _fresh(write_id: str, target: Target, *, is_rewrite: bool) -> str:
    """Return the name of a write that is not used up: two equal runs at once are one write, a later one is another."""
    if target.newest is None or not target.newest.version:
        return write_id
    header = read_header(open_store(target.url, target.storage_options), target.newest.version)
    is_used = is_rewrite or write_id in header.writes or write_id in header.fenced
    return f"{write_id}-{secrets.token_hex(4)}" if is_used else write_id
