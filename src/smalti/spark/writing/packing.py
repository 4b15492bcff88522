"""Joining small shards on Spark's executors, where they are too many for the driver."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.spark.tasks import run_on_rows, session_of
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import JoinMany, join_rows
from smalti.writer.tables.plan import WritePlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_TASKS = 1000


def join_on_executors(spark: "SparkSession | Callable[[], SparkSession]") -> JoinMany:
    """Return the function that joins shards by a Spark job."""

    def join_many(plan: WritePlan, rows: list[tuple[int, str]]) -> Answers:
        work = functools.partial(_join_in_task, plan)
        num_tasks = min(len(rows), _MAX_TASKS)
        return run_on_rows(session_of(spark), rows, "place int, shards string", work, num_tasks=num_tasks)

    return join_many


def _join_in_task(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    rows = ((row["place"], row["shards"]) for batch in batches for row in batch.to_pylist())
    return join_rows(plan, rows, attempt)
