"""Columns added to a shard set without writing its shards anew: a second set of shards, aligned with them.

    1. the newest version is looked at, and stays what is built on;
    2. for every shard one more is written, with the new columns of the same samples in the same order;
    3. a version is published that shows the same shards, and these beside them; if nobody published meanwhile.

Readers of Smalti get the columns joined; MosaicML's reader gets the set as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smalti.catalog import Draft, Manifest, in_progress, load_manifest, new_write_id
from smalti.catalog.publishing import check_target
from smalti.catalog.sidecars import ColumnsEntry, columns_of
from smalti.catalog.stored import check_stored
from smalti.errors import SchemaError, SmaltiError, StoreNotFound
from smalti.format import Schema, ShardInfo, ShardOptions
from smalti.spark.aligned import AlignedPlan, Computed, write_computed, write_keyed
from smalti.spark.basing import publish_from
from smalti.spark.frames import require_frame
from smalti.storage import Store, open_store
from smalti.writer.beside import store_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Values = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From a batch of samples by column to a batch of the new columns: a sequence of as many values for each."""


def add_columns(
    out: str | Path,
    columns: Mapping[str, str | None],
    values: "Values | DataFrame",
    *,
    spark: "SparkSession | None" = None,
    compression: str | None = "zstd",
    hashes: tuple[str, ...] = ("xxh3_64",),
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """A version with further columns beside the shards of the newest one, which are not written again. Blocks.

    Args:
        out: the root of the set: a path or URL.
        columns: name to encoding of the new columns; of a DataFrame's, None for that of its Spark type.
        values: a function from a batch of samples, by column as `StreamingDataset` gives them, to a batch of the new
            columns; or a DataFrame with these columns and `sample_id`, a number from 0 for each sample of the set, each
            once.
        spark: a session whose executors run the function; without one it runs here.
        compression: of the new shard files.
        hashes: their checksums.
        storage_options: credentials and endpoint of the store.

    Raises:
        StoreNotFound: there is no version to add to.
        SchemaError: a column is there already or cannot be stored, a sample has no values, or has them twice.
        TypeError: `values` is neither a function nor a DataFrame of Spark.
        CommitConflict: somebody else published meanwhile; nothing of ours is visible.
    """
    if not callable(values):
        require_frame(values, "`values`, where it is no function,")
    store = open_store(out, storage_options)
    base = _base(store, columns)
    options = ShardOptions(compression, tuple(hashes), None)
    write_id = new_write_id()
    computed = Computed(store, base.schema.columns(), base.logical)
    if callable(values):
        plan = AlignedPlan(store, write_id, Schema.from_columns(_encodings(columns)), options)
        in_progress.begin(store, write_id)
        found = write_computed(spark, plan, replace(computed, function=values), base.shards)
        logical: dict[str, Any] = {}
    else:
        plan, logical, found = write_keyed(values, columns, AlignedPlan(store, write_id, None, options), base.shards)
    added = _in_order(found, base.shards)
    check_stored(store, added, write_id)
    manifest = _publish(store, base, _entry(store, plan, added, logical), write_id)
    in_progress.end(store, write_id)
    return manifest


def drop_columns(
    out: str | Path, names: Sequence[str], *, storage_options: Mapping[str, Any] | None = None
) -> Manifest:
    """A version without columns that `add_columns` added; earlier versions keep them. Blocks.

    Args:
        out: the root of the set: a path or URL.
        names: all columns of one or several calls of `add_columns`.
        storage_options: credentials and endpoint of the store.

    Raises:
        StoreNotFound: there is no version.
        SchemaError: a column was not added so, or only together with others that are not named.
        CommitConflict: somebody else published meanwhile.
    """
    store = open_store(out, storage_options)
    base = _newest(store)
    entries = columns_of(base.sidecars)
    known = {name for entry in entries for name in entry.columns}
    unknown = sorted(set(names) - known)
    if unknown:
        raise SchemaError(
            f"column {unknown[0]!r} of {store.url} was not added by `add_columns`; those that were: "
            f"{', '.join(sorted(known)) or 'none'}",
            column=unknown[0],
        )
    for entry in entries:
        rest = sorted(set(entry.columns) - set(names))
        if rest and len(rest) < len(entry.columns):
            raise SchemaError(
                f"columns {', '.join(entry.columns)} of {store.url} were added together and are dropped together; "
                f"{', '.join(rest)} was not named",
                column=rest[0],
            )
    kept = [each for each in base.sidecars if not set(names) & set(each.get("columns", ()))]
    return _published(store, base, kept, new_write_id(), "drop_columns")


def _newest(store: Store) -> Manifest:
    header = check_target(store, "overwrite").header
    if header is None:
        raise StoreNotFound(f"{store.url} holds no version of a shard set; check the address", url=store.url)
    return load_manifest(store, version=header.version)


def _base(store: Store, columns: Mapping[str, str | None]) -> Manifest:
    """The newest version, if it can take these columns."""
    base = _newest(store)
    there = {*base.schema.names, *(name for entry in columns_of(base.sidecars) for name in entry.columns)}
    taken = [name for name in columns if name in there]
    if taken or not columns:
        what = f"{store.url} has a column {taken[0]!r} already" if taken else "`columns` names no column"
        raise SchemaError(f"{what}; the columns of version {base.version} are {', '.join(sorted(there))}")
    if any(shard.samples == 0 for shard in base.shards):
        raise SchemaError(f"version {base.version} of {store.url} has an empty shard, beside which nothing can lie")
    return base


def _encodings(columns: Mapping[str, str | None]) -> dict[str, str]:
    found = {name: encoding for name, encoding in columns.items() if encoding is not None}
    if len(found) < len(columns):
        unnamed = next(name for name in columns if name not in found)
        raise SchemaError(f"`columns` needs an encoding for {unnamed!r}: a function has no types", column=unnamed)
    return found


def _in_order(found: Mapping[int, ShardInfo], shards: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """The new shards, each in the place of its neighbour."""
    missing = [place for place in range(len(shards)) if place not in found]
    if missing:
        begin = sum(shard.samples for shard in shards[: missing[0]])
        raise SchemaError(
            f"{len(missing)} of {len(shards)} shards got no values, the first of them that of samples {begin} to "
            f"{begin + shards[missing[0]].samples - 1}; nothing was published"
        )
    for place, shard in enumerate(shards):
        if found[place].samples != shard.samples:
            raise SmaltiError(f"shard {place} has {shard.samples} samples, its neighbour {found[place].samples}")
    return tuple(replace(found[place], partition=shard.partition) for place, shard in enumerate(shards))


def _entry(store: Store, plan: AlignedPlan, added: Sequence[ShardInfo], logical: Mapping[str, Any]) -> ColumnsEntry:
    if plan.schema is None:
        raise SmaltiError("the columns are not known after they were written")
    return store_columns(store, f"{plan.write_id}/columns.arrow", added, plan.schema.columns(), logical)


def _publish(store: Store, base: Manifest, entry: ColumnsEntry, write_id: str) -> Manifest:
    return _published(store, base, [*base.sidecars, entry.to_json()], write_id, "add_columns")


def _published(
    store: Store, base: Manifest, sidecars: Sequence[Mapping[str, Any]], write_id: str, operation: str
) -> Manifest:
    """The version that shows the same shards, with these things beside them."""
    draft = Draft(
        write_id,
        base.schema,
        base.shards,
        dict(base.lineage),
        dict(base.metadata),
        logical=base.logical,
        row_hash=base.row_hash,
        sidecars=tuple(sidecars),
    )
    return publish_from(store, base, draft, operation=operation)
