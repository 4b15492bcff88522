"""The plan of a DataFrame's write: its columns by Spark's schema, and the DataFrame that the tasks read.

The rest of the plan is that of every table, in `smalti.writer.tables.plan`. `learn_columns` runs a transform on the
first rows; `select_inputs` and `shuffle_rows` make the DataFrame that the tasks read.
"""

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.errors import SchemaError
from smalti.format import Schema
from smalti.spark.columns import kinds_in, with_casts
from smalti.spark.prepare import default_columns, policy_of
from smalti.spark.tasks import LocalFrame, quoted, run_on_rows, select_columns
from smalti.spark.writing.binary_files import read_in_tasks
from smalti.storage import Store
from smalti.writer import UploadOptions
from smalti.writer.tables.attempts import Attempt
from smalti.writer.tables.plan import (
    NUM_TRIAL_ROWS,
    SampleFunction,
    WriteOptions,
    WritePlan,
    begin_plan,
    check_shard_options,
    needs_output,
    no_output,
    plan_rows,
    with_output,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEYS = ("__smalti_key_0", "__smalti_key_1")
_SEED_STEP = 0x9E3779B97F4A7C15  # any odd number: derives the second key's seed from the first's


def plan_write(
    df: "DataFrame | LocalFrame",
    store: Store,
    options: WriteOptions,
    samples: SampleFunction | None = None,
    uploads: UploadOptions | None = None,
) -> WritePlan:
    """Return the plan as far as schema and options determine it; no row is read, and it has no write id yet.

    Raises:
        SchemaError: A column cannot be stored as requested, or an option does not fit the columns.
    """
    plan = begin_plan(store, options, uploads)
    if samples is not None:
        columns = {name: str(encoding) for name, encoding in (options.columns or {}).items()}
        schema = Schema.from_columns(columns, allow_unsafe_types=plan.allow_unsafe_types)
        check_shard_options(schema, plan.options, allow_unsafe_types=plan.allow_unsafe_types)
        return replace(plan, schema=schema, inputs=tuple(df.columns), samples=samples)
    policy = policy_of(df.schema)
    if options.transform is None and options.columns is None:
        plan = replace(plan, requested=default_columns(df.schema, policy))
    return plan_rows(replace(plan, bad_images=policy), kinds_in(df.schema), options)


def select_inputs(df: "DataFrame", plan: WritePlan) -> "DataFrame":
    """Return the columns that tasks read, under the names c0, c1, ...; tasks name them back.

    `mapInArrow` takes no names with dots or backticks. Contents of files are read by the tasks themselves where that is
    possible (`smalti.spark.writing.binary_files`).
    """
    cast = with_casts(df, plan.columns) if plan.columns is not None else df
    columns = [(name, f"c{place}") for place, name in enumerate(plan.input_columns())]
    selected = select_columns(cast, columns)
    read_in_tasks(cast, columns, selected)
    return selected


def learn_columns(frame: "DataFrame", plan: WritePlan) -> WritePlan:
    """Return the plan with the columns of its transform; the plan itself if it has none or all encodings are named.

    Runs the transform on the first rows of the frame from `select_inputs`: Spark computes as much of it as these need,
    and sends them through the driver to one task.

    Raises:
        SchemaError: There is no row, the transform returns none for the first ones, or one of its columns cannot be
            stored as requested.
        SmaltiError: The transform failed.
    """
    if not needs_output(plan):
        return plan
    rows = frame.take(NUM_TRIAL_ROWS)
    if not rows:
        raise SchemaError("the DataFrame has no rows; nothing was published")

    def work(batches: Iterator[pa.RecordBatch], _: Attempt) -> dict[str, Any]:
        first = next(plan.rows(batches, "learning the columns of `transform` from the first rows"), None)
        return {"schema": None if first is None else base64.b64encode(first.schema.serialize()).decode()}

    answers = run_on_rows(frame.sparkSession, rows, frame.schema, work)
    found = [answer["schema"] for _, answer in answers if answer["schema"] is not None]
    if not found:
        raise no_output(len(rows))
    return with_output(plan, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found[0]))))


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
