"""Which columns a transform gives, learnt by running it on the first rows of the frame, in one Spark task."""

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.spark.failures import surfaced
from smalti.spark.session import make_frame
from smalti.spark.tasks import Attempt, run_tasks
from smalti.spark.transform import TransformRun
from smalti.spark.writing import WritePlan, usable_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 16
"""How many rows are tried."""


def learn(frame: "DataFrame", plan: WritePlan) -> pa.Schema:
    """The columns that the plan's transform gives for the first rows.

    Spark computes as much of the frame as its first rows need; they come to the driver, and go to one task.

    Raises:
        SchemaError: there is no row, or the transform gives none for those.
        SmaltiError: the transform fails on them.
    """
    spark = frame.sparkSession
    with surfaced():
        rows = frame.take(ROWS)
    if not rows:
        raise SchemaError("the DataFrame has no rows; nothing was published")
    few = make_frame(spark, rows, frame.schema).coalesce(1)

    def work(batches: Iterator[pa.RecordBatch], _: Attempt) -> dict[str, Any]:
        found = learnt_from(plan, batches)
        return {"schema": base64.b64encode(found.serialize().to_pybytes()).decode() if found is not None else None}

    found = [answer["schema"] for _, answer in run_tasks(few, work) if answer["schema"] is not None]
    if not found:
        raise SchemaError(
            f"`transform` gave no rows for the first {len(rows)}, so its columns are not known; give `columns` with an "
            f"encoding for each"
        )
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found[0])))


def learnt_from(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> pa.Schema | None:
    """The columns of the first batch with rows that the transform gives; None if there is none."""
    if plan.transform is None:
        raise SchemaError("there is no transform to learn from")
    run = TransformRun(plan.transform, "learning the columns of `transform` from the first rows")
    first = next(run.batches(usable_rows(plan, batches)), None)
    return None if first is None else first.schema
