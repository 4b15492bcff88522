"""Shards written beside others: one for each, with as many samples, in this process or in Spark's tasks."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from smalti.catalog import in_progress
from smalti.catalog.checked_shards import open_checked
from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.format.logical import parse_logical
from smalti.spark.columns import ColumnPlan, plan_table
from smalti.spark.session import make_frame
from smalti.spark.tasks import Attempt, map_in_arrow, run_tasks
from smalti.storage import Store
from smalti.writer import ShardUploader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ID = "sample_id"
_BATCH = 1024
_MOST_TASKS = 256

Found = dict[int, ShardInfo]
"""The place of a shard, and what was written beside it."""


@dataclass(frozen=True)
class AlignedPlan:
    """What every task must know; travels to the executors."""

    store: Store
    write_id: str
    schema: Schema | None
    """Of the new shards; None until the DataFrame's columns were looked at."""
    options: ShardOptions
    columns: ColumnPlan | None = None
    """How Spark's columns become those; None for what a function gives."""

    def uploader(self, place: int, split: str | None, attempt: Attempt) -> ShardUploader:
        """For the shard beside the one in this place."""
        if self.schema is None:
            raise SchemaError("the columns to add are not known yet")
        prefix = f"{self.write_id}/{place:08d}-{attempt.attempt}"
        builder = ShardBuilder(self.schema, self.options)
        return ShardUploader(self.store, prefix if split is None else f"{split}/{prefix}", builder, partition=split)


@dataclass(frozen=True)
class Computed:
    """A function of samples, and how samples are read for it."""

    store: Store
    columns: Mapping[str, str]
    logical: Mapping[str, Any]
    function: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None

    def batches(self, info: ShardInfo) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The values for a shard's samples: how many, and by column."""
        if self.function is None:
            raise SchemaError("there is no function to compute columns with")
        types = parse_logical(self.logical, self.columns)
        with open_checked(self.store, info) as shard:
            for begin in range(0, info.samples, _BATCH):
                rows = np.arange(begin, min(begin + _BATCH, info.samples))
                stored = shard.batch(rows)
                yield len(rows), self.function(stored if types is None else types.batch(stored))


def write_computed(
    spark: "SparkSession | None", plan: AlignedPlan, computed: Computed, shards: Sequence[ShardInfo]
) -> Found:
    """What a function makes of the samples of each shard, beside it.

    Raises:
        SchemaError: the function gives other columns, or another number of values.
    """
    if spark is None:
        attempt = Attempt.new(0)
        return {place: _computed_shard(plan, computed, place, info, attempt) for place, info in enumerate(shards)}
    rows = [(place, _emit(info)) for place, info in enumerate(shards)]
    frame = make_frame(spark, rows, "place int, shard string")
    frame = frame.repartitionByRange(min(len(rows), _MOST_TASKS), "place")
    return _collected(run_tasks(frame, functools.partial(compute_shards, plan, computed)))


def compute_shards(
    plan: AlignedPlan, computed: Computed, batches: Iterator[pa.RecordBatch], attempt: Attempt
) -> dict[str, Any]:
    """What each task does: a shard beside each of its own."""
    found = []
    for row in (row for batch in batches for row in batch.to_pylist()):
        info = _computed_shard(plan, computed, row["place"], _parse(row["shard"]), attempt)
        found.append([row["place"], info.to_json()])
    return {"shards": found}


def _computed_shard(plan: AlignedPlan, computed: Computed, place: int, info: ShardInfo, attempt: Attempt) -> ShardInfo:
    uploader = plan.uploader(place, info.partition, attempt)
    names = plan.schema.names if plan.schema is not None else ()
    try:
        for count, values in computed.batches(info):
            _check_values(values, names, count, info)
            for row in range(count):
                uploader.write({name: values[name][row] for name in names})
        (written,) = uploader.finish()
    except BaseException:
        uploader.abort()
        raise
    return written


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


def write_keyed(
    df: "DataFrame", columns: Mapping[str, str | None], plan: AlignedPlan, shards: Sequence[ShardInfo]
) -> tuple[AlignedPlan, dict[str, Any], Found]:
    """The values of a DataFrame, beside the shards of the samples that it names; the plan and logical types too.

    Raises:
        SchemaError: a column cannot be stored, or a sample has no values or has them twice.
    """
    from pyspark.sql import functions

    if SAMPLE_ID not in df.columns or df.schema[SAMPLE_ID].dataType.simpleString() not in ("int", "bigint"):
        raise SchemaError(
            f"the DataFrame needs a column {SAMPLE_ID!r} of whole numbers, one for each sample of the set"
        )
    stored = plan_table(df.drop(SAMPLE_ID).schema, columns)
    plan = replace(plan, schema=Schema.from_columns(stored.encodings), columns=stored)
    quoted = ("`" + name.replace("`", "``") + "`" for name in stored.names)
    frame = stored.select(df).select(
        functions.col(SAMPLE_ID).cast("long").alias("sample"),
        *(functions.col(name).alias(f"c{place}") for place, name in enumerate(quoted)),
    )
    ends = np.cumsum(np.array([info.samples for info in shards], np.int64))
    kinds = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    placed = map_in_arrow(frame, functools.partial(place_rows, ends), f"place int, {kinds}")
    placed = placed.repartition(min(len(shards), _MOST_TASKS), "place").sortWithinPartitions("place", "sample")
    splits = [info.partition for info in shards]
    in_progress.begin(plan.store, plan.write_id)
    found = _collected(run_tasks(placed, functools.partial(write_placed, plan, ends, splits)))
    return plan, dict(stored.logical), found


def place_rows(ends: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows with the place of their sample's shard.

    Raises:
        SchemaError: a row names no sample of the set.
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
    plan: AlignedPlan, ends: Any, splits: Sequence[str | None], batches: Iterator[pa.RecordBatch], attempt: Attempt
) -> dict[str, Any]:
    """What each task does: sorted rows into the shards of their places."""
    if plan.columns is None:
        raise SchemaError("the columns to add are not known yet")
    found: list[list[Any]] = []
    uploader: ShardUploader | None = None
    place, following = -1, 0
    try:
        for begin_place, batch in _by_place(batches):
            if begin_place != place:
                _finish(found, place, uploader, following, ends)
                place, following = begin_place, int(ends[begin_place - 1]) if begin_place else 0
                uploader = plan.uploader(place, splits[place], attempt)
            ids = batch.column("sample").to_numpy(zero_copy_only=False)
            _check_ids(ids, following)
            named = pa.RecordBatch.from_arrays(batch.columns[2:], list(plan.columns.names))
            if uploader is not None:
                uploader.write_batch(plan.columns.prepare(named, first_row=following))
            following += len(ids)
        _finish(found, place, uploader, following, ends)
    except BaseException:
        if uploader is not None:
            uploader.abort()
        raise
    return {"shards": found}


def _by_place(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches cut where the place changes."""
    for batch in batches:
        places = batch.column("place").to_numpy(zero_copy_only=False)
        cuts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
        for begin, end in itertools.pairwise(cuts):
            if end > begin:
                yield int(places[begin]), batch.slice(begin, end - begin)


def _check_ids(ids: Any, following: int) -> None:
    wrong = np.flatnonzero(ids != following + np.arange(len(ids)))
    if wrong.size:
        expected, number = following + int(wrong[0]), int(ids[wrong[0]])
        what = f"sample {number} has values twice" if number < expected else f"sample {expected} has no values"
        raise SchemaError(f"{what}: {SAMPLE_ID!r} must name each sample of the set once; nothing was published")


def _finish(found: list[list[Any]], place: int, uploader: ShardUploader | None, following: int, ends: Any) -> None:
    if uploader is None:
        return
    if following != int(ends[place]):
        raise SchemaError(f"sample {following} has no values; nothing was published")
    (written,) = uploader.finish()
    found.append([place, written.to_json()])


def _collected(answers: Sequence[tuple[Attempt, dict[str, Any]]]) -> Found:
    entries = ((attempt, place, entry) for attempt, answer in answers for place, entry in answer["shards"])
    return {
        place: ShardInfo.from_json(entry, where=f"answer of task {attempt.name}") for attempt, place, entry in entries
    }


def _emit(info: ShardInfo) -> str:
    return json.dumps([info.partition, info.to_json()])


def _parse(text: str) -> ShardInfo:
    split, entry = json.loads(text)
    return replace(ShardInfo.from_json(entry, where="a shard to add columns to"), partition=split)
