"""The work of a Spark job without Spark: what its tasks do, and what its driver makes of their answers."""

import numpy as np
import pyarrow as pa

from smalti.catalog import Draft, publish
from smalti.catalog.retention import markers
from smalti.format import Schema, ShardOptions
from smalti.spark.tasks import Attempt
from smalti.spark.writing.packing import collect_shards
from smalti.spark.writing.plan import WritePlan
from smalti.spark.writing.task import write_shards

SCHEMA = Schema.from_columns({"id": "int64"})
ROWS = 200
"""Of each task; ten a batch."""


def plan(store, write_id, **options):
    """The plan of a job that stores numbers, some thirty in a shard."""
    return WritePlan(store, write_id, SCHEMA, ShardOptions(compression=None, size_limit=256), **options)


def batches(task=0, on_batch=None):
    """The rows of a task; `on_batch` is told the number of each batch before it is taken."""
    for number in range(ROWS // 10):
        if on_batch is not None:
            on_batch(number)
        begin = task * ROWS + number * 10
        yield pa.RecordBatch.from_pydict({"id": np.arange(begin, begin + 10)})


def write(store, write_id, attempt, *, task=0, on_batch=None):
    """One attempt at one task; its answer."""
    found = Attempt(task, attempt)
    return found, write_shards(plan(store, write_id), batches(task, on_batch), found)


def commit(store, write_id, answers, mode="create"):
    """What the driver publishes."""
    return publish(store, Draft(write_id, SCHEMA, collect_shards(answers)), mode=mode)


def begin(store, write_id):
    """What the driver does before its first task."""
    markers.begin(store, write_id)
