"""Small shards that stand beside each other joined into full ones, so that small partitions make no small shards.

Every task's last shard of a split ends where its rows end. A run of such last shards, of tasks that follow each other
and filled no whole shard in between, is one shard in the end where the size limit allows it. Samples are copied as they
lie, and keep their order; at most one shard per task and split is written twice. What was joined is named by nobody,
and deleted after the version is published.
"""

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.verify import open_checked
from smalti.errors import SmaltiError, StoreError
from smalti.format import Schema, ShardBuilder, ShardInfo
from smalti.format.layout import config_bytes
from smalti.format.sizes import parse_size_limit
from smalti.spark.session import make_frame
from smalti.spark.tasks import Attempt, run_tasks
from smalti.spark.writing.task import Part, WritePlan
from smalti.storage import Store
from smalti.writer import ShardUploader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON_DRIVER_BYTES = 32 << 20  # a Spark job takes longer than joining these here
_MAX_TASKS = 1000
_DELETES = 16  # at the same time

Runs = list[list[Part]]
"""Parts whose last shards become one; two or more each, in order."""


def find_runs(parts: Sequence[Part], schema: Schema, plan: WritePlan) -> Runs:
    """Which parts' last shards are joined; pure.

    Args:
        parts: in order.
        schema: of all of them.
        plan: with the size limit; without one, nothing is joined.
    """
    limit = parse_size_limit(plan.options.size_limit)
    if limit is None:
        return []
    runs: Runs = []
    size = 0
    for part in parts:
        head = _head_bytes(schema, part.tail)
        added = part.tail.raw.num_bytes - head
        # A full shard in between keeps them apart: rows keep their order.
        follows = runs and part.count == 1 and runs[-1][-1].split == part.split
        if follows and size + added <= limit:
            runs[-1].append(part)
            size += added
        else:
            runs.append([part])
            size = head + added
    return [run for run in runs if len(run) > 1]


def _head_bytes(schema: Schema, info: ShardInfo) -> int:
    """Of a shard without samples: what two shards in one need once."""
    config = config_bytes(schema, compression=info.compression, hashes=info.hash_names, size_limit=info.size_limit)
    return 8 + len(config)


def pack(spark: "SparkSession", plan: WritePlan, runs: Runs) -> list[ShardInfo]:
    """One shard for each run, in the store; blocks until all are.

    Raises:
        SmaltiError: a shard that was written before cannot be read again.
    """
    wanted = [[part.tail for part in run] for run in runs]
    if sum(info.raw.num_bytes for infos in wanted for info in infos) <= _ON_DRIVER_BYTES:
        attempt = Attempt.new(0)
        return [join_shards(plan, infos, place, attempt) for place, infos in enumerate(wanted)]
    rows = [(place, pack_shards(infos)) for place, infos in enumerate(wanted)]
    frame = make_frame(spark, rows, "place int, shards string")
    frame = frame.repartitionByRange(min(len(rows), _MAX_TASKS), "place")
    answers = run_tasks(frame, functools.partial(join_in_task, plan))
    found = {place: unpack_shards(text, where="a joined shard")[0] for _, a in answers for place, text in a["joined"]}
    if len(found) != len(rows):
        raise SmaltiError(f"Spark lost {len(rows) - len(found)} of {len(rows)} joined shards; nothing was published")
    return [found[place] for place in range(len(rows))]


def join_in_task(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    """What each task of the second pass does: a shard of each row, which names those that it is made of."""
    joined = []
    for row in (row for batch in batches for row in batch.to_pylist()):
        infos = unpack_shards(row["shards"], where="shards to be joined")
        joined.append([row["place"], pack_shards([join_shards(plan, infos, row["place"], attempt)])])
    return {"joined": joined}


def join_shards(plan: WritePlan, infos: Sequence[ShardInfo], place: int, attempt: Attempt) -> ShardInfo:
    """One shard in the store with the samples of these, in their order.

    Raises:
        FormatError: one of them is damaged.
        StoreError: one cannot be read, or the new one not be stored.
    """
    first = infos[0]
    prefix = f"{plan.write_id}/joined-{place:05d}-{attempt.attempt}"
    if first.partition is not None:
        prefix = f"{first.partition}/{prefix}"
    builder = ShardBuilder(first.schema, plan.options)
    uploader = ShardUploader(plan.store, prefix, builder, partition=first.partition, uploads=plan.uploads)
    try:
        for info in infos:
            with open_checked(plan.store, info) as shard:
                samples = shard.stored_samples()
                uploader.write_encoded(samples.lengths, samples.content)
        (joined,) = uploader.finish()
        if joined.samples != sum(info.samples for info in infos):
            raise SmaltiError(f"{prefix}: {joined.samples} samples after joining; nothing was published")
    except BaseException:
        uploader.abort()
        raise
    return joined


def in_order(parts: Sequence[Part], runs: Runs, joined: Sequence[ShardInfo]) -> Iterator[ShardInfo]:
    """All shards of the version: those of the parts, each run's last ones as the one that they are in now."""
    heads = {id(run[0]): info for run, info in zip(runs, joined, strict=True)}
    gone = {id(part) for run in runs for part in run}
    for part in parts:
        if part.count > 1 or id(part) not in gone:
            shards = part.shards()
            yield from shards[: part.count - 1] if id(part) in gone else shards
        if id(part) in heads:
            yield heads[id(part)]


def unsynced_keys(parts: Sequence[Part], runs: Runs) -> Iterator[str]:
    """The objects of the version that tasks left to be synced; joined ones were synced when they were put."""
    gone = {id(part) for run in runs for part in run}
    for part in parts:
        if not part.is_synced:
            for info in part.shards()[: part.count - (id(part) in gone)]:
                yield from (file.basename for file in info.stored_files)


def joined_keys(runs: Runs) -> list[str]:
    """The objects whose samples are in joined shards now."""
    return [file.basename for run in runs for part in run for file in part.tail.stored_files]


def delete_all(store: Store, keys: list[str]) -> None:
    """Delete what no version names; what cannot be deleted now is left to a vacuum."""

    def delete(key: str) -> None:
        with suppress(StoreError):
            store.delete(key)

    if keys:
        with ThreadPoolExecutor(min(_DELETES, len(keys)), thread_name_prefix="smalti-delete") as pool:
            list(pool.map(delete, keys))
