"""Columns added to a shard set without rewriting its shards: a second shard for each, with the new columns.

    1. the newest version becomes the base of the new one;
    2. for every shard a column shard is written, with the new columns of the same samples in the same order;
    3. a version with the same shards and the column shards is published, unless another writer published in between.

Readers of Smalti get the columns joined; MosaicML's reader gets the set without them. The values come from a function,
which runs in this process or in Spark's tasks, or from a DataFrame with sample ids.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from smalti.catalog import Manifest, load_manifest, new_write_id
from smalti.catalog.publishing import check_stored, check_target
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import columns_of, store_columns
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.verify import open_checked
from smalti.errors import SchemaError, SmaltiError, StoreNotFound
from smalti.format import Schema, ShardInfo, ShardOptions
from smalti.format.logical import parse_logical
from smalti.spark.reshard import publish_from
from smalti.spark.tasks import decode_errors, map_in_arrow, quoted, require_frame, run_jobs, run_tasks
from smalti.spark.writing.dataframe import plan_table, with_casts
from smalti.storage import Store, open_store
from smalti.writer import ShardUploader, UploadOptions
from smalti.writer.tables.columns import TablePlan
from smalti.writer.tables.plan import Answers, Attempt, WritePlan, check_owner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ID = "sample_id"
"""Column of a DataFrame of values with the id of each sample."""
_BATCH_SAMPLES = 1024  # of one call of a function
_MAX_TASKS = 256

Values = Callable[[dict[str, Any]], Mapping[str, Any]]
"""A function from a batch of samples by column to the new columns: for each a sequence of as many values."""


def _write_computed(
    spark: "SparkSession | None", plan: WritePlan, base: Manifest, added: Schema, function: Values
) -> Answers:
    """Write a column shard for each shard, with the values that a function computes from its samples.

    Raises:
        SchemaError: The function returns other columns, or another number of values.
    """
    columns, logical = base.schema.columns(), base.logical

    def work(jobs: Iterator[tuple[int, str]], attempt: Attempt) -> dict[str, Any]:
        """Write the column shards of a task's shards."""
        types = parse_logical(logical, columns)
        entries: list[list[Any]] = []
        for place, packed in jobs:
            (info,) = unpack_shards(packed, where="a shard to add columns to")
            with (
                _column_shard(plan, added, info.partition, place, attempt, entries) as uploader,
                open_checked(plan.store, info) as shard,
            ):
                for begin in range(0, info.samples, _BATCH_SAMPLES):
                    numbers = np.arange(begin, min(begin + _BATCH_SAMPLES, info.samples))
                    stored = shard.batch(numbers)
                    values = function(stored if types is None else types.batch(stored))
                    _check_values(values, added.names, len(numbers), info)
                    for at in range(len(numbers)):
                        uploader.write({name: values[name][at] for name in added.names})
        return {"shards": entries}

    jobs = [(place, pack_shards([info])) for place, info in enumerate(base.shards)]
    return run_jobs(spark, jobs, work, num_tasks=min(len(jobs), _MAX_TASKS), store=plan.store)


@contextlib.contextmanager
def _column_shard(
    plan: WritePlan, schema: Schema, split: str | None, place: int, attempt: Attempt, entries: list[list[Any]]
) -> Iterator[ShardUploader]:
    """Yield the writer of the column shard of a shard; at the end, add the shard's place and the entry to `entries`."""
    with plan.uploader(schema, split, _folder(place, attempt)) as uploader:
        yield uploader
        (written,) = uploader.finish()
    entries.append([place, written.to_json()])


def _check_values(values: Any, names: Sequence[str], count: int, info: ShardInfo) -> None:
    if not isinstance(values, Mapping) or set(values) != set(names):
        found = ", ".join(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
        raise SchemaError(f"the function must give a mapping with the columns {', '.join(names)}, it gave {found}")
    for name in names:
        if len(values[name]) != count:
            raise SchemaError(
                f"the function gave {len(values[name])} values of {name!r} for {count} samples of "
                f"{info.raw.basename}; it must give one for each, in their order",
                column=name,
            )


def _write_keyed(df: "DataFrame", plan: WritePlan, stored: TablePlan, shards: Sequence[ShardInfo]) -> Answers:
    """Write column shards with the values of a DataFrame.

    Raises:
        SchemaError: A value cannot be stored, or a sample has no values or has them twice.
    """
    from pyspark.sql import functions

    frame = with_casts(df, stored.casts).select(
        functions.col(SAMPLE_ID).cast("long").alias("sample"),
        *(functions.col(quoted(name)).alias(f"c{place}") for place, name in enumerate(stored.names)),
    )
    ends = np.cumsum(np.array([info.samples for info in shards], np.int64))
    kinds = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    placed = map_in_arrow(frame, functools.partial(place_rows, ends), f"place int, {kinds}")
    placed = placed.repartition(min(len(shards), _MAX_TASKS), "place").sortWithinPartitions("place", "sample")
    splits = [info.partition for info in shards]
    return run_tasks(placed, functools.partial(write_placed, plan, stored, ends, splits), store=plan.store)


def place_rows(ends: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the place of their sample's shard.

    Raises:
        SchemaError: A row names no sample of the set.
    """
    for batch in batches:
        ids = batch.column("sample")
        if ids.null_count:
            raise SchemaError(f"{SAMPLE_ID!r} has a null; nothing was published")
        numbers = ids.to_numpy(zero_copy_only=False)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < ends[-1]):
            wrong = numbers[(numbers < 0) | (numbers >= ends[-1])][0]
            raise SchemaError(
                f"{SAMPLE_ID!r} is {wrong}, the set has samples 0 to {ends[-1] - 1}; nothing was published"
            )
        places = pa.array(np.searchsorted(ends, numbers, side="right"), pa.int32())
        yield pa.RecordBatch.from_arrays([places, *batch.columns], ["place", *batch.schema.names])


def write_placed(
    plan: WritePlan,
    columns: TablePlan,
    ends: Any,
    splits: Sequence[str | None],
    batches: Iterator[pa.RecordBatch],
    attempt: Attempt,
) -> dict[str, Any]:
    """Write sorted rows to the column shards of their places."""
    schema = Schema.from_columns(columns.encodings)
    entries: list[list[Any]] = []
    for place, parts in itertools.groupby(_by_place(batches), key=lambda found: found[0]):
        following = int(ends[place - 1]) if place else 0
        with _column_shard(plan, schema, splits[place], place, attempt, entries) as uploader:
            for _, batch in parts:
                ids = batch.column("sample").to_numpy(zero_copy_only=False)
                wrong = np.flatnonzero(ids != following + np.arange(len(ids)))
                if wrong.size:
                    expected, number = following + int(wrong[0]), int(ids[wrong[0]])
                    fault = f"{number} has values twice" if number < expected else f"{expected} has no values"
                    raise SchemaError(
                        f"sample {fault}: {SAMPLE_ID!r} must name each sample of the set once; nothing was published"
                    )
                named = pa.RecordBatch.from_arrays(batch.columns[2:], list(columns.names))
                uploader.write_batch(columns.prepare(named, first_row=following))
                following += batch.num_rows
            if following != int(ends[place]):
                raise SchemaError(f"sample {following} has no values; nothing was published")
    return {"shards": entries}


def _by_place(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches, cut where the place changes, with their places."""
    for batch in batches:
        places = batch.column("place").to_numpy(zero_copy_only=False)
        cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
        for begin, end in itertools.pairwise(cuts):
            if end > begin:
                yield int(places[begin]), batch.slice(begin, end - begin)


def _folder(place: int, attempt: Attempt) -> str:
    return f"{place:08d}-{attempt.attempt}"


@decode_errors()
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
    """Publish a version with further columns; the shards of the newest version are reused. Blocks.

    Args:
        out: Root of the set: a path or URL.
        columns: New columns, name to encoding; with a DataFrame, None is the default encoding of the Spark type.
        values: A function from a batch of samples, by column as `StreamingDataset` returns them, to a batch of the new
            columns; or a DataFrame with these columns and `sample_id`, which has each sample id of the set once.
        spark: Session whose executors run the function; without one it runs in this process.
        compression: Compression of the new shard files.
        hashes: Checksums of the new shard files.
        storage_options: Credentials and endpoint of the store.

    Raises:
        StoreNotFound: There is no version to add to.
        SchemaError: A column exists already or cannot be stored, a sample has no values, or has them twice.
        TypeError: `values` is neither a function nor a DataFrame of Spark.
        CommitConflict: Another writer published in between; this call published nothing.

    Examples:
        >>> def lengths(batch):
        ...     return {"length": [len(text) for text in batch["text"]]}
        >>> add_columns("s3://bucket/users", {"length": "int32"}, lengths).version
        3
        >>> int(smalti.open_dataset("s3://bucket/users")[0]["length"])
        6
    """
    if not callable(values):
        require_frame(values, "`values`, where it is no function,")
    store = open_store(out, storage_options)
    base = _newest(store)
    existing = {*base.schema.names, *(name for entry in columns_of(base.sidecars) for name in entry.columns)}
    taken = [name for name in columns if name in existing]
    if taken or not columns:
        what = f"{store.url} has a column {taken[0]!r} already" if taken else "`columns` names no column"
        raise SchemaError(f"{what}; the columns of version {base.version} are {', '.join(sorted(existing))}")
    if any(shard.samples == 0 for shard in base.shards):
        raise SchemaError(f"version {base.version} of {store.url} has an empty shard, to which columns cannot be added")
    write_id = new_write_id()
    plan = WritePlan(store, write_id, ShardOptions(compression, tuple(hashes), None), uploads=UploadOptions())
    logical: Mapping[str, Any] = {}
    if callable(values):
        unnamed = next((name for name, encoding in columns.items() if encoding is None), None)
        if unnamed is not None:
            raise SchemaError(f"`columns` needs an encoding for {unnamed!r}: a function has no types", column=unnamed)
        schema = Schema.from_columns({name: str(encoding) for name, encoding in columns.items()})
        markers.begin(store, write_id)
        answers = _write_computed(spark, plan, base, schema, values)
    else:
        if SAMPLE_ID not in values.columns or values.schema[SAMPLE_ID].dataType.simpleString() not in ("int", "bigint"):
            raise SchemaError(
                f"the DataFrame needs a column {SAMPLE_ID!r} of whole numbers, one for each sample of the set"
            )
        stored = plan_table(values.drop(SAMPLE_ID).schema, columns)
        schema, logical = Schema.from_columns(stored.encodings), stored.logical
        markers.begin(store, write_id)
        answers = _write_keyed(values, plan, stored, base.shards)
    added = _in_order(answers, base.shards)
    check_stored(store, added, write_id)
    entry = store_columns(store, f"{write_id}/columns.arrow", added, schema.columns(), logical)
    draft = base.redraft(write_id, sidecars=(*base.sidecars, entry.to_json()))
    manifest = publish_from(store, base, draft, operation="add_columns")
    markers.end(store, write_id)
    return manifest


def drop_columns(
    out: str | Path, names: Sequence[str], *, storage_options: Mapping[str, Any] | None = None
) -> Manifest:
    """Publish a version without `names`, columns that `add_columns` added; earlier versions keep them. Blocks.

    Args:
        out: Root of the set: a URL, folder or store.
        names: Columns that `add_columns` added.
        storage_options: Options of the store's client, such as credentials.

    Raises:
        StoreNotFound: There is no version.
        SchemaError: A column was not added by `add_columns`, or only together with others that are not named.
        CommitConflict: Another writer published in between.

    Examples:
        >>> _ = add_columns("s3://bucket/users", {"even": "uint8"}, lambda batch: {"even": batch["user_id"] % 2 == 0})
        >>> drop_columns("s3://bucket/users", ["even"]).version
        4
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
    return publish_from(store, base, base.redraft(new_write_id(), sidecars=tuple(kept)), operation="drop_columns")


def _newest(store: Store) -> Manifest:
    header = check_target(store, "overwrite").header
    if header is None:
        raise StoreNotFound(f"{store.url} holds no version of a shard set; check the address", url=store.url)
    return load_manifest(store, version=header.version)


def _in_order(answers: Answers, shards: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
    """Return the column shards that tasks wrote, in the order of their shards.

    Raises:
        SmaltiError: An answer has the shard of another attempt, or a shard is missing or of another size.
    """
    found = {}
    for attempt, answer in answers:
        for place, entry in answer["shards"]:
            found[place] = ShardInfo.from_json(entry, where=f"answer of task {attempt.name}")
            check_owner(found[place].raw.basename.rpartition("/")[0], _folder(place, attempt), attempt)
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
