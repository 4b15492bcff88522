"""A Spark job without Spark: its tasks, and what the driver does with their answers."""

import numpy as np
import pyarrow as pa

from smalti.catalog import Draft, publish
from smalti.catalog.retention import markers
from smalti.format import Schema, ShardOptions
from smalti.writer.tables.plan import Attempt, InputRows, OutputColumns, WritePlan
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.versions import collect_parts

SCHEMA = Schema.from_columns({"id": "int64"})
ROWS = 200
"""Number of rows of each task; ten a batch."""


def plan(store, write_id, **options):
    """Return the plan of a job that stores numbers, about thirty in a shard."""
    options = {"input": InputRows(SCHEMA.names), "output": OutputColumns(SCHEMA), **options}
    return WritePlan(store, write_id, ShardOptions(compression=None, size_limit=256), **options)


def batches(task=0, on_batch=None):
    """Yield the rows of a task; `on_batch` gets the number of each batch before it is yielded."""
    for number in range(ROWS // 10):
        if on_batch is not None:
            on_batch(number)
        begin = task * ROWS + number * 10
        yield pa.RecordBatch.from_pydict({"id": np.arange(begin, begin + 10)})


def write(store, write_id, attempt, *, task=0, on_batch=None):
    """Run one attempt at one task, and return its answer."""
    found = Attempt(task, attempt)
    return found, write_shards(plan(store, write_id), batches(task, on_batch), found)


def collect_shards(answers):
    """Return the shards of all tasks, in order."""
    return [shard for part in collect_parts(answers) for shard in part.shards()]


def commit(store, write_id, answers, mode="create"):
    """Publish the shards of these answers, as the driver does."""
    return publish(store, Draft(write_id, SCHEMA, collect_shards(answers)), mode=mode)


def begin(store, write_id):
    """Store the marker of the write, as the driver does before its first task."""
    markers.begin(store, write_id)
