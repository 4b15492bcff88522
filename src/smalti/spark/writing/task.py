"""The tasks of `dataframe_to_mds`, run by Spark; what each does is in `smalti.writer.tables.task`."""

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from smalti.errors import SchemaError
from smalti.spark.tasks import run_tasks
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.plan import WritePlan
from smalti.writer.tables.task import TaskWriter, write_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
