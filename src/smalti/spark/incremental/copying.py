"""Samples of unchanged files, copied out of shards that are replaced; on executors if they are many."""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog.manifest import row_hash_text
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.verify import open_checked
from smalti.format import ShardBuilder, ShardInfo
from smalti.spark.tasks import Answers, Attempt, run_on_rows
from smalti.spark.writing.plan import WritePlan
from smalti.writer import ShardUploader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_DRIVER_BYTES = 32 << 20  # copied on the driver, which is faster than a Spark job
_TASK_BYTES = 1 << 28  # of shards to read per task


@dataclass(frozen=True)
class Surviving:
    """A shard that is replaced, and its samples that are kept."""

    info: ShardInfo
    kept: Sequence[tuple[int, int]]
    """Half-open ranges of samples, ascending; may be empty."""

    def emit(self) -> str:
        """Return the shard as text, for a task."""
        return json.dumps([pack_shards([self.info]), [list(each) for each in self.kept]])

    @classmethod
    def parse(cls, text: str) -> "Surviving":
        """Return the shard of a text from `emit`."""
        packed, kept = json.loads(text)
        (info,) = unpack_shards(packed, where="a shard to be copied")
        return cls(info, [(begin, end) for begin, end in kept])


def copy_surviving(spark: "SparkSession", plan: WritePlan, shards: Sequence[Surviving]) -> Answers:
    """Write new shards with the kept samples, in the order of `shards` within each split; blocks.

    Returns:
        By task: entries of shards as `write_shards` answers them, and as `dropped` the row hash of the other samples.

    Raises:
        FormatError: A shard is damaged.
        StoreError: A shard cannot be read, or a new one cannot be stored.
    """
    if not shards:
        return []
    total = sum(each.info.raw.num_bytes for each in shards)
    rows = [(place, each.emit()) for place, each in enumerate(shards)]
    if total <= _MAX_DRIVER_BYTES:
        batch = pa.RecordBatch.from_pylist([{"place": place, "shard": text} for place, text in rows])
        attempt = Attempt.new(0)
        return [(attempt, copy_samples(plan, iter([batch]), attempt))]
    num_tasks = min(len(rows), -(-total // _TASK_BYTES))
    work = functools.partial(copy_samples, plan)
    return run_on_rows(spark, rows, "place int, shard string", work, num_tasks=num_tasks)


def copy_samples(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    """Copy the kept samples of a task's shards into new ones, by split."""
    uploaders: dict[str | None, ShardUploader] = {}
    dropped = 0
    try:
        for text in (text for batch in batches for text in batch.column("shard").to_pylist()):
            job = Surviving.parse(text)
            split = job.info.partition
            with open_checked(plan.store, job.info) as shard:
                samples = shard.stored_samples()
                dropped += samples.row_hash()
                for begin, end in job.kept:
                    part = samples[begin:end]
                    dropped -= part.row_hash()
                    if split not in uploaders:
                        builder = ShardBuilder(job.info.schema, plan.options)
                        prefix = plan.prefix(split, attempt)
                        uploaders[split] = ShardUploader(
                            plan.store, prefix, builder, partition=split, uploads=plan.uploads
                        )
                    uploaders[split].write_encoded(part.lengths, part.content)
        shards = [info for split in sorted(uploaders, key=str) for info in uploaders[split].finish()]
    except BaseException:
        for uploader in uploaders.values():
            uploader.abort()
        raise
    return {"shards": pack_shards(shards), "dropped": row_hash_text(dropped)}
