"""`dataframe_to_mds`: a Spark DataFrame as a new version of a shard set.

The steps are those of every table, in `smalti.writer.tables.versions`; Spark runs the tasks. `plan_frame` decides the
columns by the schema alone; `learn_columns` runs a transform on the first rows where it must; `select_inputs` and
`shuffled` make the DataFrame that the tasks read. The plan itself is that of every table, in
`smalti.writer.tables.plan`, and what each task does is in `smalti.writer.tables.task`.

Also here: the joining of small shards on Spark's executors, where they are too many for the driver. And Spark's types
as the kinds of columns that `smalti.writer.tables` stores, with the casts that Spark does before its rows leave it.
"""

import base64
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog import Manifest, new_write_id
from smalti.catalog.publishing import Mode
from smalti.errors import SchemaError, StoreError
from smalti.format import Schema
from smalti.spark.lineage import require_unchanged, source_of, write_id_of
from smalti.spark.prepare import policy_and_columns
from smalti.spark.tasks import (
    decode_errors,
    make_frame,
    quoted,
    require_frame,
    require_reach,
    run_jobs,
    run_tasks,
    select_columns,
)
from smalti.spark.writing.progress import reporting
from smalti.storage import Store, open_store
from smalti.storage.opening import check_apart
from smalti.writer import UploadOptions
from smalti.writer.tables.columns import TablePlan, plan_columns
from smalti.writer.tables.plan import (
    NUM_TRIAL_ROWS,
    UPLOADS,
    Answers,
    Attempt,
    InputRows,
    OutputColumns,
    ProgressChoice,
    SampleFunction,
    WriteOptions,
    WritePlan,
    check_append,
    check_shard_options,
    no_output,
    no_rows,
    plan_rows,
)
from smalti.writer.tables.task import TaskWriter, write_shards
from smalti.writer.tables.transform import Transform, TransformFunction
from smalti.writer.tables.types import Kind
from smalti.writer.tables.versions import JoinMany, begun, identify, join_rows, options_in_id, publish_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_INTERVALS = ("daytimeinterval", "yearmonthinterval")
_MODULES = ("pyspark.ml.linalg", "pyspark.mllib.linalg")
_OWN_TYPES = {"VectorUDT": "vector", "MatrixUDT": "matrix"}
_KEYS = ("__smalti_key_0", "__smalti_key_1")
_SEED_STEP = 0x9E3779B97F4A7C15  # any odd number: derives the second key's seed from the first's
_MAX_TASKS = 1000


@decode_errors()
def dataframe_to_mds(  # noqa: PLR0913  these names are the documented interface
    dataframe: "DataFrame",
    out: str | Path,
    *,
    columns: Mapping[str, str | None] | None = None,
    nulls: str | Mapping[str, Any] = "reject",
    compression: str | None = "auto",
    hashes: tuple[str, ...] = ("xxh3_64",),
    size_limit: int | str | None = 1 << 26,
    transform: Transform | TransformFunction | None = None,
    partition_by: str | None = None,
    shuffle_rows: bool | int = False,
    target_shards: int | None = None,
    mode: Mode = "create",
    progress: ProgressChoice = True,
    write_id: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write a DataFrame as Mosaic Data Shards and publish them as one new version; blocks until that is done.

    MosaicML's call, `dataframe_to_mds(df, merge_index=True, mds_kwargs={...})`, is that of
    `smalti.compat.streaming.base.converters`.

    Args:
        dataframe: The rows, a DataFrame of Spark. They keep their order, and shards are on average more than half full
            however the rows are partitioned: small last shards of neighbouring partitions are joined.
        out: Path or URL that all executors and this process can write to.
        columns: Columns to store: name to encoding, or to None for the default of its Spark type; by default all
            columns (docs/types.md). With `transform`, columns of its output.
        nulls: What is done with nulls, for all columns or by name: `reject`, `mask` or `{"default": value}`.
        compression: `auto` compresses each shard by zstd if that makes it at least a tenth smaller, by a sample of
            it, which JPEG files are not; or `zstd`, `zstd:<level>`, another one of MDS, or None.
        hashes: Checksums to record for every file.
        size_limit: Largest shard before compression, in bytes or as `"64mb"`; None makes one shard of each Spark
            partition and split.
        transform: Function over batches that runs between Spark and the shards: from pyarrow.RecordBatch to the same,
            from pandas.DataFrame to the same, or between iterators of these, by the annotation of its first parameter
            or as `smalti.spark.Transform` declares it. Unless `columns` names every encoding, it runs on the first rows
            beforehand to learn its columns.
        partition_by: Column of a few texts whose values become splits, such as `train` and `validation`; with
            `transform`, a column of its output.
        shuffle_rows: True or a seed stores all rows in an order that their content and the seed decide. Costs a shuffle
            of all rows through Spark. Equal rows become neighbours.
        target_shards: About how many shards of about equal size to make of each split, by shuffling the rows into as
            many Spark partitions, as `shuffle_rows` does; more where `size_limit` is reached.
        mode: `create` a set where there is none, `overwrite` the set or `append` to it by a new version.
        progress: True shows a line about tasks, rows and bytes on the error stream, after some seconds and if it is a
            terminal; `"always"` shows it on other streams too; False never.
        write_id: Identifies this write: if it is published already, its version is returned and no row is read. By
            default derived from source and options, if Spark knows enough to recognise the same source.
        lineage: Where the rows came from, kept in the manifest (JSON) together with what Spark knows of it.
        metadata: Anything else to keep in the manifest (JSON).
        storage_options: Credentials and endpoint of the store.

    Returns:
        The manifest of the version.

    Raises:
        SchemaError: A column cannot be stored as requested, or a value (a null, a number out of range) cannot be
            stored; or there are no rows.
        BadImageError: The frame is that of `prepare_images` with policy `fail`, and has a bad image.
        SmaltiError: `transform` failed; the message names partition, rows and line.
        DatasetExists: The mode is `create`, and the place holds a data set already.
        CommitConflict: Another writer published first; this write published nothing.
        CatalogError: A source file was replaced or removed while it was read; nothing was published.
        StoreError: The store failed for longer than its retries.
        ValueError: An option has an unusable value.
        TypeError: `dataframe` is no DataFrame of Spark; the message has the call that makes one of it.

    Examples:
        >>> frame = spark.createDataFrame([(1, "one"), (2, "two")], "id int, text string")
        >>> version = dataframe_to_mds(frame, "s3://bucket/set", compression="zstd")
        >>> version.rows, version.schema.columns()
        (2, {'id': 'int32', 'text': 'str'})
    """
    require_frame(dataframe, "`dataframe`", is_set=True)
    options = WriteOptions(
        columns=columns,
        nulls=nulls,
        compression=compression,
        hashes=tuple(hashes),
        size_limit=size_limit,
        transform=transform,
        partition_by=partition_by,
        shuffle_rows=shuffle_rows,
        target_shards=target_shards,
        mode=mode,
        progress=progress,
        write_id=write_id,
        lineage=lineage,
        metadata=metadata,
        storage_options=storage_options,
    )
    return write_frame(dataframe, open_store(out, storage_options), options)


@decode_errors()
def write_frame(
    df: "DataFrame",
    store: Store,
    options: WriteOptions,
    samples: SampleFunction | None = None,
    uploads: UploadOptions = UPLOADS,
) -> Manifest:
    """Write the rows of the frame, and return the version that has them; a write that is published reads no row.

    With `samples`, a function of the user makes the samples of the rows; errors are those of `dataframe_to_mds`.
    """
    rows, planned = plan_frame(df.schema, options, samples)
    source, chosen = source_of(df), options_in_id(options)
    for path in {path for entry in source.get("sources", ()) for path in entry.get("paths", ())}:
        with contextlib.suppress(StoreError):  # a scheme of Hadoop's own: this machine cannot address it
            check_apart(open_store(path), store, advice="write to another place")
    write = identify(store, options, source, None if chosen is None else write_id_of(source, chosen))
    if write.published is not None:
        return write.published
    with reporting(df.sparkSession, store.url, options.progress) as report:
        frame, output = _prepared(df, store, rows, planned, options)
        check_append(write.parent, output.schema, output.logical)
        with begun(store, write) as watch:
            plan = WritePlan(store, write.write_id, options.shard_options, rows, output, uploads, watch.disk)
            with require_unchanged(df):
                answers = _run(frame, plan)
            join_many = join_on_executors(df.sparkSession)
            manifest, shards = publish_shards(plan, write, options, answers, join_many, watch)
        if report is not None:
            report.finish(manifest, shards)
    return manifest


@decode_errors()
def write_folders(
    df: "DataFrame",
    store: Store,
    options: WriteOptions,
    samples: SampleFunction | None = None,
    uploads: UploadOptions = UPLOADS,
) -> Answers:
    """Write the shards of each Spark partition to a folder of its own, and return them; nothing is published."""
    rows, planned = plan_frame(df.schema, options, samples)
    with reporting(df.sparkSession, store.url, options.progress):
        frame, output = _prepared(df, store, rows, planned, options)
        plan = WritePlan(store, new_write_id(), options.shard_options, rows, output, uploads, is_loose=True)
        return _run(frame, plan)


def _prepared(
    df: "DataFrame", store: Store, rows: InputRows, planned: OutputColumns, options: WriteOptions
) -> "tuple[DataFrame, OutputColumns]":
    """Return the frame that the tasks read, and the columns to store; executors that cannot use the store are an error.

    Of the planned columns, those of a transform's output may still be open; they are known then, if they have to be.
    """
    require_reach(df.sparkSession, store)
    frame = select_inputs(df, rows)
    output = learn_columns(frame, rows, planned)
    if options.seed is not None:
        frame = shuffled(frame, options.seed, options.target_shards)
    return frame, output


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
    policy, defaults = policy_and_columns(schema)
    columns = defaults if options.transform is None and options.columns is None else options.columns
    return plan_rows(kinds_in(schema), options, columns=columns, bad_images=policy)


def select_inputs(df: "DataFrame", rows: InputRows) -> "DataFrame":
    """Return the columns that tasks read, under the names c0, c1, ...; tasks name them back.

    `mapInArrow` takes no names with dots or backticks.
    """
    return select_columns(with_casts(df, rows.casts), [(name, f"c{place}") for place, name in enumerate(rows.names)])


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

    for _, answer in run_tasks(make_frame(frame.sparkSession, first, frame.schema).coalesce(1), work):
        if answer["schema"] is not None:
            return output.of_transformed(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(answer["schema"]))))
    raise no_output(len(first))


def _run(frame: "DataFrame", plan: WritePlan) -> Answers:
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
            given = samples(frame)
            if not isinstance(given, Iterable):
                raise SchemaError(f"`udf_iterable` gave {type(given).__name__}, expected an iterable of dicts")
            for sample in given:
                writer.write({name: value for name, value in sample.items() if name in names})
        return writer.finish()


def join_on_executors(spark: "SparkSession | Callable[[], SparkSession]") -> JoinMany:
    """Return the function that joins shards by a Spark job."""

    def join_many(plan: WritePlan, rows: list[tuple[int, str]]) -> Answers:
        return run_jobs(spark, rows, functools.partial(join_rows, plan), num_tasks=min(len(rows), _MAX_TASKS))

    return join_many


def shuffled(df: "DataFrame", seed: int, partitions: int | None) -> "DataFrame":
    """Return the same rows in an order that their content and `seed` decide; lazy.

    Each row gets a key of 128 bits, a hash of the seed and of all its values. The keys decide the row's Spark partition
    and its place in it. So the order depends on the rows, the seed and the number of partitions (by default
    `spark.sql.shuffle.partitions`), and neither on the order or partitioning of the input nor on which attempt at a
    task Spark counts. Equal rows become neighbours. Costs one shuffle of all rows, and a sort of each partition.
    """
    from pyspark.sql import functions

    count = partitions or int(str(df.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    values = []
    for field in df.schema:
        column = functions.col(quoted(field.name))
        has_map = "map<" in field.dataType.simpleString()  # Spark does not hash maps: their JSON is
        values.append(functions.to_json(functions.struct(column)) if has_map else column)
    keys = []
    for number, name in enumerate(_KEYS):
        seed_of_key = (seed + number * _SEED_STEP + 2**63) % 2**64 - 2**63  # as the signed integer of Spark's long
        keys.append(functions.xxhash64(functions.lit(seed_of_key), *values).alias(name))
    keyed = df.select("*", *keys)
    return keyed.repartition(count, _KEYS[0]).sortWithinPartitions(*_KEYS).drop(*_KEYS)


def plan_table(
    schema: "StructType", columns: Mapping[str, str | None] | None = None, nulls: str | Mapping[str, Any] = "reject"
) -> TablePlan:
    """Return how each column of a DataFrame is stored, as `plan_columns` does for any table."""
    return plan_columns(kinds_in(schema), columns, nulls)


def with_casts(df: "DataFrame", casts: Mapping[str, Sequence[str]]) -> "DataFrame":
    """Return the DataFrame with the casts of a `TablePlan` done; its other columns stay as they are."""
    from pyspark.sql import functions

    for name, kinds in casts.items():
        column = functions.col(quoted(name))
        for kind in kinds:
            column = column.cast(kind)
        df = df.withColumn(name, column)
    return df


def kinds_in(schema: "StructType") -> list[tuple[str, Kind]]:
    """Return name and kind of every column of a DataFrame."""
    return [(field.name, kind_of_spark(field.dataType)) for field in schema.fields]


def kind_of_spark(spark: Any) -> Kind:
    """Return the kind of a `pyspark.sql.types.DataType`."""
    name = type(spark).__name__.removesuffix("Type").lower()  # the type name of an interval lists its fields
    text, family = spark.simpleString(), name if name in _INTERVALS else str(spark.typeName().split("(")[0])
    if hasattr(spark, "sqlType"):
        name = type(spark).__name__ if type(spark).__module__ in _MODULES else ""
        stored = spark.sqlType()
        fields = tuple(kinds_in(stored)) if hasattr(stored, "fields") else ()
        return Kind(_OWN_TYPES.get(name, "udt"), text, fields=fields)
    if family == "decimal":
        return Kind(family, text, precision=spark.precision, scale=spark.scale)
    if family == "array":
        return Kind(family, text, element=kind_of_spark(spark.elementType))
    if family == "map":
        return Kind(family, text, keys=kind_of_spark(spark.keyType), values=kind_of_spark(spark.valueType))
    if family == "struct":
        return Kind(family, text, fields=tuple(kinds_in(spark)))
    return Kind(family, text)
