"""The tasks of `dataframe_to_mds`, run by Spark; what each does is in `smalti.writer.tables.task`.

Also here: the joining of small shards on Spark's executors, where they are too many for the driver.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.spark.tasks import run_on_rows, run_tasks, session_of
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import JoinMany, join_rows
from smalti.writer.tables.plan import WritePlan
from smalti.writer.tables.task import TaskWriter, write_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run(frame: "DataFrame", plan: WritePlan) -> Answers:
    """Run the plan's task on every partition of the frame from `select_inputs`; blocks until all rows are in the store.

    Raises:
        SmaltiError: What a task raised, with its type.
    """
    work = write_shards if plan.samples is None else _write_samples
    return run_tasks(frame, functools.partial(work, plan), as_pandas=plan.samples is not None)


def _write_samples(plan: WritePlan, frames: Iterator[Any], attempt: Attempt) -> dict[str, Any]:
    """Write the samples that the plan's function makes of pandas DataFrames, and return the entries of the shards.

    Keys that are no columns are left out, as MosaicML's writer does.
    """
    if plan.samples is None:
        raise SchemaError("there is no function that makes samples")
    names = frozenset(plan.schema.names if plan.schema is not None else ())
    with TaskWriter(plan, attempt) as writer:
        for frame in frames:
            frame.columns = list(plan.input_columns())
            samples = plan.samples.function(frame, **plan.samples.kwargs)
            if not isinstance(samples, Iterable):
                raise SchemaError(f"`udf_iterable` gave {type(samples).__name__}, expected an iterable of dicts")
            for sample in samples:
                writer.write({name: value for name, value in sample.items() if name in names})
        return writer.finish()


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
