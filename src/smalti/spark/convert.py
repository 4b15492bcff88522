"""A Spark DataFrame to a version of a shard set: executors write shards, the driver publishes them last.

    1. columns and target are checked before a row is read; a write id that is published already ends it here;
    2. each task encodes whole Arrow batches into shards and uploads them below its own prefix, named by attempt;
    3. each task answers with its shards' entries after the store has acknowledged all of them, or raises;
    4. the driver takes one answer per task, orders the shards by split, task and number, and publishes all at once.

A task, executor or driver that dies leaves objects that no version names, and nothing else.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id, publish
from smalti.catalog.publishing import check_target
from smalti.errors import BadImageError, SchemaError
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.spark.prepare import policy_of
from smalti.spark.tasks import Attempt, run_tasks
from smalti.spark.types import plan_columns
from smalti.storage import Store, open_store
from smalti.writer import ShardUploader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}", re.ASCII)
_MAX_SPLITS = 64  # a split costs every task an open shard in memory; more is a mistaken column
_ERROR = "error"
_PATH = "path"


def dataframe_to_mds(  # noqa: PLR0913  the public door: these names are the documented interface
    df: "DataFrame",
    out: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    compression: str | None = "zstd",
    hashes: tuple[str, ...] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    partition_by: str | None = None,
    mode: Literal["create", "overwrite", "append"] = "create",
    write_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write a DataFrame as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    Args:
        df: the rows; their order and partitions decide order and bounds of the shards.
        out: a path or URL that all executors can write to.
        columns: name to encoding, of the columns to store; by default all, by their Spark types (`spark.types`).
        compression: `zstd`, `zstd:<level>` or None.
        hashes: checksums to record for every file.
        size_limit: largest shard before compression, in bytes or as `"64mb"`.
        partition_by: a column of few texts whose values become splits, such as `train` and `validation`.
        mode: `create` a set where there is none, `overwrite` or `append` to one by a new version.
        write_id: from `catalog.new_write_id`, to make a repeated call safe: a write id that is already published
            returns its version and reads no row.
        lineage: where the rows came from, kept in the manifest (JSON).
        metadata: whatever else should be kept in the manifest (JSON).
        storage_options: credentials and endpoint of the store.

    Raises:
        SchemaError: a column cannot be stored as asked, or a value (a null, a number that does not fit) cannot.
        BadImageError: the frame is that of `prepare_images` with policy `fail`, and has a bad image.
        DatasetExists: `create`, and the place holds a data set already.
        CommitConflict: somebody else published first; nothing of ours is visible.
        StoreError: the store failed for longer than its retries.
    """
    store = open_store(out, storage_options)
    write_id = write_id or new_write_id()
    header = check_target(store, mode, write_id=write_id).header
    if header is not None and write_id in header.writes:
        return load_manifest(store, version=header.writes[write_id])
    policy = policy_of(df.schema)
    planned = plan_columns(df.schema, columns if columns is not None else _default_columns(df.columns, policy))
    plan = _Plan(
        store=store,
        write_id=write_id,
        schema=Schema.from_columns(planned),
        options=ShardOptions(compression, tuple(hashes), size_limit),
        partition_by=_check_partition_column(df, partition_by),
        bad_images=policy,
    )
    ShardBuilder(plan.schema, plan.options)  # refuses unusable options now, not in the first task
    answers = run_tasks(_renamed(df, plan.needed()), functools.partial(write_shards, plan))
    shards = collect_shards(answers)
    if not shards and mode != "append":
        raise SchemaError("the DataFrame has no rows; nothing was published")
    draft = Draft(write_id, plan.schema, shards, dict(lineage or {}), dict(metadata or {}))
    return publish(store, draft, mode=mode)


def _default_columns(names: list[str], policy: str | None) -> dict[str, str | None] | None:
    """For the frame of `prepare_images`: everything but `error`, and the image as the JPEG that it is."""
    if policy is None:
        return None
    return {name: "jpeg" if name == "image" else None for name in names if name != _ERROR}


def _check_partition_column(df: "DataFrame", name: str | None) -> str | None:
    if name is None:
        return None
    if name not in df.columns:
        raise SchemaError(f"`partition_by` names {name!r}, the DataFrame has {', '.join(df.columns)}", column=name)
    kind = df.schema[name].dataType.typeName()
    if kind != "string":
        raise SchemaError(f"`partition_by` column {name!r} must hold text, found {kind}: cast it first", column=name)
    return name


def _renamed(df: "DataFrame", names: list[str]) -> "DataFrame":
    """These columns as c0, c1, ...: `mapInArrow` takes no names with dots or backticks; tasks name them back."""
    from pyspark.sql import functions

    quoted = ("`" + name.replace("`", "``") + "`" for name in names)
    return df.select(*(functions.col(name).alias(f"c{place}") for place, name in enumerate(quoted)))


@dataclass(frozen=True)
class _Plan:
    """What every task must know; travels to the executors."""

    store: Store
    write_id: str
    schema: Schema
    options: ShardOptions
    partition_by: str | None
    bad_images: str | None

    def needed(self) -> list[str]:
        """Columns that tasks read: those stored, and those that decide where a row goes."""
        extra = [self.partition_by] if self.partition_by else []
        if self.bad_images:
            extra += [_ERROR, _PATH]
        return [*self.schema.names, *(name for name in dict.fromkeys(extra) if name not in self.schema.names)]


def write_shards(plan: _Plan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    """What each task does: its rows as shards in the store, and the entries of these shards as its answer.

    Nothing is left in the store that the answer does not name, unless the process is killed.
    """
    uploaders: dict[str | None, ShardUploader] = {}
    rows = 0
    try:
        for batch in batches:
            named = pa.RecordBatch.from_arrays(batch.columns, plan.needed())
            for split, part in _by_split(_without_bad_images(named, plan.bad_images), plan.partition_by):
                if split not in uploaders:
                    _check_split(plan.partition_by, split, len(uploaders))
                    uploaders[split] = _uploader(plan, split, attempt)
                uploaders[split].write_batch(part.select(list(plan.schema.names)))
                rows += part.num_rows
        shards = [shard for split in sorted(uploaders, key=str) for shard in uploaders[split].finish()]
    except BaseException as error:
        for uploader in uploaders.values():
            uploader.abort()
        if isinstance(error, SchemaError):  # its sample numbers count from the start of the partition
            raise SchemaError(f"Spark partition {attempt.task}: {error.message}", **error.facts) from error
        raise
    stored = sum(shard.samples for shard in shards)
    if stored != rows:
        raise SchemaError(f"task {attempt.task} read {rows} rows and stored {stored}; nothing was published")
    return {"shards": [[shard.partition, shard.to_json()] for shard in shards]}


def _uploader(plan: _Plan, split: str | None, attempt: Attempt) -> ShardUploader:
    prefix = f"{plan.write_id}/{attempt.name}"
    if split is not None:
        prefix = f"{split}/{prefix}"
    return ShardUploader(plan.store, prefix, ShardBuilder(plan.schema, plan.options), partition=split)


def _check_split(column: str | None, split: str | None, count: int) -> None:
    """Refuse a split as soon as it is seen: publishing would refuse it too, but after all the work."""
    if split is None:
        return
    if not _SPLIT_NAME.fullmatch(split):
        raise SchemaError(
            f"`partition_by` column {column!r} holds {split[:80]!r}, which cannot be the folder of a split: expected "
            f"1 to 128 letters, digits and . _ = -, beginning with a letter or digit",
            column=column,
        )
    if count >= _MAX_SPLITS:
        raise SchemaError(
            f"`partition_by` column {column!r} has more than {_MAX_SPLITS} values in one task; it is meant for splits "
            f"such as train and validation",
            column=column,
        )


def _without_bad_images(batch: pa.RecordBatch, policy: str | None) -> pa.RecordBatch:
    if policy is None:
        return batch
    good = pc.is_null(batch.column(_ERROR))
    if policy == "fail" and not pc.all(good).as_py():
        first = batch.filter(pc.invert(good)).slice(0, 1).select([_PATH, _ERROR]).to_pylist()[0]
        raise BadImageError(
            f"{first[_PATH]} is not a usable image: {first[_ERROR]}. Remove or replace it, or set `on_bad_image` to "
            f'"skip"; `write_prepared` names all such files',
            path=first[_PATH],
        )
    return batch.filter(good)


def _by_split(batch: pa.RecordBatch, column: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """The batch cut by the values of the partition column, in order of first appearance."""
    if column is None or batch.num_rows == 0:
        yield None, batch
        return
    values = batch.column(column)
    if values.null_count:
        raise SchemaError(
            f"`partition_by` column {column!r} has a null, so the row belongs to no split: fill it first", column=column
        )
    distinct = pc.unique(values).to_pylist()
    for value in distinct:
        yield value, batch if len(distinct) == 1 else batch.filter(pc.equal(values, value))


def collect_shards(answers: list[tuple[Attempt, dict[str, Any]]]) -> list[ShardInfo]:
    """The shards of all tasks, by split, then task, then number within the task."""
    shards: list[tuple[str, int, int, ShardInfo]] = []
    for attempt, answer in answers:
        for place, (split, entry) in enumerate(answer["shards"]):
            shard = ShardInfo.from_json(entry, where=f"answer of task {attempt.name}")
            shards.append((split or "", attempt.task, place, replace(shard, partition=split)))
    return [shard for *_, shard in sorted(shards, key=lambda item: item[:3])]
