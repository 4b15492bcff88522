"""A DataFrame's write on Spark: its columns by Spark's schema, the DataFrame that the tasks read, and the tasks.

`plan_frame` decides the columns by the schema alone; `learn_columns` runs a transform on the first rows where it must;
`select_inputs` and `shuffle_rows` make the DataFrame that the tasks read, and `run` runs them. The plan itself is that
of every table, in `smalti.writer.tables.plan`, and what each task does is in `smalti.writer.tables.task`.

Also here: the joining of small shards on Spark's executors, where they are too many for the driver.
"""

import base64
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import Schema
from smalti.spark.columns import kinds_in, with_casts
from smalti.spark.prepare import default_columns, policy_of
from smalti.spark.tasks import quoted, run_on_rows, run_tasks, select_columns, session_of
from smalti.spark.writing.binary_files import read_in_tasks
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.packing import JoinMany, join_rows
from smalti.writer.tables.plan import (
    NUM_TRIAL_ROWS,
    InputRows,
    OutputColumns,
    SampleFunction,
    WriteOptions,
    WritePlan,
    check_shard_options,
    no_output,
    no_rows,
    plan_rows,
)
from smalti.writer.tables.task import TaskWriter, write_shards

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_KEYS = ("__smalti_key_0", "__smalti_key_1")
_SEED_STEP = 0x9E3779B97F4A7C15  # any odd number: derives the second key's seed from the first's
_MAX_TASKS = 1000


def plan_frame(
    schema: "StructType", options: WriteOptions, samples: SampleFunction | None = None
) -> tuple[InputRows, OutputColumns]:
    """Return the rows of a DataFrame as they are to arrive in tasks, and the columns stored of them; no row is read.

    Raises:
        SchemaError: A column cannot be stored as requested, or an option does not fit the columns.
    """
    if samples is not None:
        encodings = {name: str(encoding) for name, encoding in (options.columns or {}).items()}
        allowed = options.allow_unsafe_types
        stored = Schema.from_columns(encodings, allow_unsafe_types=allowed)
        output = OutputColumns(stored, allow_unsafe_types=allowed)
        check_shard_options(output, options)
        return InputRows(tuple(schema.fieldNames()), samples=samples), output
    policy, columns = policy_of(schema), options.columns
    if options.transform is None and columns is None:
        columns = default_columns(schema, policy)
    return plan_rows(kinds_in(schema), options, columns=columns, bad_images=policy)


def select_inputs(df: "DataFrame", rows: InputRows) -> "DataFrame":
    """Return the columns that tasks read, under the names c0, c1, ...; tasks name them back.

    `mapInArrow` takes no names with dots or backticks. Contents of files are read by the tasks themselves where that is
    possible (`smalti.spark.writing.binary_files`).
    """
    cast = with_casts(df, rows.casts)
    columns = [(name, f"c{place}") for place, name in enumerate(rows.names)]
    selected = select_columns(cast, columns)
    read_in_tasks(cast, columns, selected)
    return selected


def learn_columns(frame: "DataFrame", rows: InputRows, output: OutputColumns) -> OutputColumns:
    """Return the columns that are stored of a transform's output; `output` itself unless they are still open.

    Runs the transform on the first rows of the frame from `select_inputs`: Spark computes as much of it as these need,
    and sends them through the driver to one task.

    Raises:
        SchemaError: There is no row, the transform returns none for the first ones, or one of its columns cannot be
            stored as requested.
        SmaltiError: The transform failed.
    """
    if not output.needs_first_rows:
        return output
    first = frame.take(NUM_TRIAL_ROWS)
    if not first:
        raise no_rows(rows.words)

    def work(batches: Iterator[pa.RecordBatch], _: Attempt) -> dict[str, Any]:
        schema = rows.first_transformed(batches)
        return {"schema": None if schema is None else base64.b64encode(schema.serialize()).decode()}

    for _, answer in run_on_rows(frame.sparkSession, first, frame.schema, work):
        if answer["schema"] is not None:
            return output.of_transformed(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(answer["schema"]))))
    raise no_output(len(first))


def run(frame: "DataFrame", plan: WritePlan) -> Answers:
    """Run the plan's task on every partition of the frame from `select_inputs`; blocks until all rows are in the store.

    Raises:
        SmaltiError: What a task raised, with its type.
    """
    samples = plan.input.samples
    work = write_shards if samples is None else functools.partial(_write_samples, samples)
    return run_tasks(frame, functools.partial(work, plan), as_pandas=samples is not None)


def _write_samples(samples: SampleFunction, plan: WritePlan, frames: Iterator[Any], attempt: Attempt) -> dict[str, Any]:
    """Write the samples that a function makes of pandas DataFrames, and return the entries of the shards.

    Keys that are no columns are left out, as MosaicML's writer does.
    """
    names = frozenset(plan.output.schema.names if plan.output.schema is not None else ())
    with TaskWriter(plan, attempt) as writer:
        for frame in frames:
            frame.columns = list(plan.input.names)
            given = samples.function(frame, **samples.kwargs)
            if not isinstance(given, Iterable):
                raise SchemaError(f"`udf_iterable` gave {type(given).__name__}, expected an iterable of dicts")
            for sample in given:
                writer.write({name: value for name, value in sample.items() if name in names})
        return writer.finish()


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


def shuffle_rows(df: "DataFrame", seed: int, partitions: int | None) -> "DataFrame":
    """Return the same rows in an order that their content and `seed` decide; lazy.

    Each row gets a key of 128 bits, a hash of the seed and of all its values. The keys decide the row's Spark partition
    and its place in it. So the order depends on the rows, the seed and the number of partitions (by default
    `spark.sql.shuffle.partitions`), and neither on the order or partitioning of the input nor on which attempt at a
    task Spark counts. Equal rows become neighbours. Costs one shuffle of all rows, and a sort of each partition.
    """
    from pyspark.sql import functions

    count = partitions or int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    values = [_hashable(field.name, field.dataType) for field in df.schema]
    keys = [
        functions.xxhash64(functions.lit(_signed(seed + number * _SEED_STEP)), *values).alias(name)
        for number, name in enumerate(_KEYS)
    ]
    keyed = df.select("*", *keys)
    return keyed.repartition(count, _KEYS[0]).sortWithinPartitions(*_KEYS).drop(*_KEYS)


def _signed(number: int) -> int:
    """Return the number modulo 2^64, as the signed integer of Spark's long."""
    return (number + 2**63) % 2**64 - 2**63


def _hashable(name: str, kind: Any) -> "Column":
    """Return the column, or its JSON where it has a map, which Spark does not hash."""
    from pyspark.sql import functions

    column = functions.col(quoted(name))
    return functions.to_json(functions.struct(column)) if _has_map(kind) else column


def _has_map(kind: Any) -> bool:
    family = kind.typeName()
    if family == "map":
        return True
    if family == "array":
        return _has_map(kind.elementType)
    if family == "struct":
        return any(_has_map(field.dataType) for field in kind.fields)
    return False
