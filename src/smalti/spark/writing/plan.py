"""The options and the plan of a write: everything that is decided before a task runs, and travels to the executors.

`plan_write` decides what schema and options determine, and reads no row. `learn_columns` completes the plan of a
transform, whose columns are known only after it has run on the first rows. `select_inputs` and `shuffle_rows` make the
DataFrame that the tasks read. What tasks do by a plan is in `task`.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from smalti.catalog.header import Header
from smalti.catalog.publishing import Mode
from smalti.catalog.sidecars import check_no_added_columns
from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.spark.columns import TablePlan, plan_table
from smalti.spark.prepare import ERROR, PATH, default_columns, policy_of, require, without_bad_images
from smalti.spark.tasks import Answers, Attempt, LocalFrame, decode_errors, run_on_rows
from smalti.spark.writing.transform import Transform, TransformFunction, TransformRun, as_transform
from smalti.storage import Store
from smalti.storage.store import Disk
from smalti.writer import UploadOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ProgressChoice = bool | Literal["always"]
_MAX_SHARDS = 1_000_000
_NUM_TRIAL_ROWS = 16  # on which a transform is run to learn its columns
_KEYS = ("__smalti_key_0", "__smalti_key_1")
_SEED_STEP = 0x9E3779B97F4A7C15  # any odd number: derives the second key's seed from the first's


@dataclass(frozen=True)
class WriteOptions:
    """The keyword arguments of `dataframe_to_mds`, which documents each, with their defaults, and three more."""

    columns: Mapping[str, str | None] | None = None
    nulls: str | Mapping[str, Any] = "reject"
    compression: str | None = "zstd"
    hashes: tuple[str, ...] = ("xxh3_64",)
    size_limit: int | str | None = 1 << 26
    transform: Transform | TransformFunction | None = None
    partition_by: str | None = None
    shuffle_rows: bool | int = False
    target_shards: int | None = None
    mode: Mode = "create"
    progress: ProgressChoice = True
    write_id: str | None = None
    lineage: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    storage_options: Mapping[str, Any] | None = None
    unlisted_hashes: tuple[str, ...] = ()
    """Checksums that only the version's shard table records; of MosaicML's call only."""
    joins_shards: bool = True
    """False leaves the last shard of every Spark partition as it is, however small; of MosaicML's call only."""
    allow_unsafe_types: bool = False
    """True allows columns of pickles; of MosaicML's call only."""

    def __post_init__(self) -> None:
        require("mode", " or ".join(map(repr, get_args(Mode))), self.mode, met=self.mode in get_args(Mode))
        require("progress", "True, False or 'always'", self.progress, met=self.progress in (True, False, "always"))
        require(
            "shuffle_rows",
            "False, True or a seed, a whole number of 64 bits",
            self.shuffle_rows,
            met=_is_seed(self.shuffle_rows),
        )
        require(
            "target_shards",
            f"a whole number from 1 to {_MAX_SHARDS:,}, or None",
            self.target_shards,
            met=self.target_shards is None
            or (type(self.target_shards) is int and 1 <= self.target_shards <= _MAX_SHARDS),
        )

    @property
    def shard_options(self) -> ShardOptions:
        """The options that concern shard files."""
        return ShardOptions(self.compression, tuple(self.hashes), self.size_limit, self.unlisted_hashes)

    @property
    def seed(self) -> int | None:
        """Seed of the global shuffle; None if the rows keep the order of the frame."""
        if self.shuffle_rows is False:
            return 0 if self.target_shards is not None else None
        return 0 if self.shuffle_rows is True else self.shuffle_rows


def _is_seed(found: object) -> bool:
    return isinstance(found, int) and -(2**63) <= found < 2**63


@dataclass(frozen=True)
class SampleFunction:
    """A function of the user that yields samples: `udf_iterable` of MosaicML's call."""

    function: Callable[..., Iterable[Mapping[str, Any]]]
    """Called with a pandas DataFrame and `kwargs`."""
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class WritePlan:
    """The plan of one write, as every task gets it; picklable."""

    store: Store
    write_id: str
    schema: Schema | None
    """The columns as stored; None if each task finds them in the output of the transform."""
    options: ShardOptions
    partition_by: str | None = None
    bad_images: str | None = None
    """`on_bad_image` of a frame of `prepare_images`; None for other frames."""
    columns: TablePlan | None = None
    """Plan of the columns that Spark sends; None if they have the values that the encodings take."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types (JSON, for the manifest) of the stored columns."""
    inputs: tuple[str, ...] = ()
    """Columns that Spark sends, in order; by default those that `input_columns` derives."""
    transform: Transform | None = None
    transform_schema: pa.Schema | None = None
    """Columns of the transform's output, if they are known before the tasks run."""
    requested: Mapping[str, str | None] | None = None
    """`columns` of the caller, by which a task plans the columns of a transform's output."""
    nulls: str | Mapping[str, Any] = "reject"
    """`nulls` of the caller, for the same."""
    uploads: UploadOptions = field(default_factory=lambda: UploadOptions(hash_rows=True))
    is_loose: bool = False
    """True if no version is published, and the shards of each task are a folder of their own below the root."""
    disk: Disk | None = None
    """The disk that the driver sees: a task that sees the same one leaves syncing its shards to the driver."""
    samples: SampleFunction | None = None
    """Function that makes samples of the rows, instead of `columns` and `transform`."""
    allow_unsafe_types: bool = False
    """True allows columns of pickles."""

    def input_columns(self) -> tuple[str, ...]:
        """Return the columns that Spark sends, in order: those to store, and those that decide where a row goes."""
        if self.inputs:
            return self.inputs
        stored = self.columns.names if self.columns is not None else self.schema.names if self.schema else ()
        extra = [self.partition_by] if self.partition_by else []
        if self.bad_images:
            extra += [ERROR, PATH]
        return tuple(dict.fromkeys([*stored, *extra]))

    def prefix(self, split: str | None, attempt: Attempt) -> str:
        """Return the folder of an attempt's shards."""
        name = f"{self.write_id}-{attempt.name}" if self.is_loose else f"{self.write_id}/{attempt.name}"
        return name if split is None else f"{split}/{name}"

    def rows(self, batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows to store, of batches as Spark sends them: named, without bad images, transformed.

        Raises:
            BadImageError: There is a bad image, and the policy is `fail`.
            SmaltiError: The transform failed; the message names the partition as `where`.
        """
        usable = self.usable_rows(batches)
        if self.transform is None:
            return usable
        if self.bad_images:
            usable = (batch.drop_columns([ERROR]) for batch in usable)
        return TransformRun(self.transform, where, self.transform_schema).batches(usable)

    def usable_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that Spark sends, under the names of their columns and without bad images.

        Raises:
            BadImageError: There is a bad image, and the policy is `fail`.
        """
        names = list(self.input_columns())
        for batch in batches:
            yield without_bad_images(pa.RecordBatch.from_arrays(batch.columns, names), self.bad_images)


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
    plan = WritePlan(
        store=store,
        write_id="",
        schema=None,
        options=options.shard_options,
        partition_by=options.partition_by,
        requested=options.columns,
        nulls=options.nulls,
        uploads=uploads or UploadOptions(hash_rows=True),
        samples=samples,
        allow_unsafe_types=options.allow_unsafe_types,
    )
    if samples is not None:
        columns = {name: str(encoding) for name, encoding in (options.columns or {}).items()}
        schema = Schema.from_columns(columns, allow_unsafe_types=plan.allow_unsafe_types)
        _check_options(schema, plan.options, allow_unsafe_types=plan.allow_unsafe_types)
        return replace(plan, schema=schema, inputs=tuple(df.columns))
    if options.transform is None:
        _check_partition_column(df, options.partition_by)
    policy = policy_of(df.schema)
    if options.transform is not None:
        _check_options(Schema.from_columns({"x": "int"}), plan.options)
        twice = sorted({name for name in df.columns if df.columns.count(name) > 1})
        if twice:
            raise SchemaError(f"the DataFrame has column {twice[0]!r} more than once; rename or drop one")
        transform = as_transform(options.transform)
        return replace(plan, bad_images=policy, transform=transform, inputs=tuple(df.columns))
    requested = options.columns if options.columns is not None else default_columns(df.columns, policy)
    table = plan_table(df.schema, requested, options.nulls)
    schema = Schema.from_columns(table.encodings)
    _check_options(schema, plan.options)
    return replace(plan, schema=schema, bad_images=policy, columns=table, logical=table.logical)


def _check_options(schema: Schema, options: ShardOptions, *, allow_unsafe_types: bool = False) -> None:
    """Refuse unusable options before the first task does."""
    ShardBuilder(schema, options, allow_unsafe_types=allow_unsafe_types)


def _check_partition_column(df: "DataFrame | LocalFrame", name: str | None) -> None:
    if name is None:
        return
    if name not in df.columns:
        raise SchemaError(f"`partition_by` names {name!r}, the DataFrame has {', '.join(df.columns)}", column=name)
    kind = df.schema[name].dataType.typeName()
    if kind != "string":
        raise SchemaError(f"`partition_by` column {name!r} must hold text, found {kind}: cast it first", column=name)


def select_inputs(df: "DataFrame", plan: WritePlan) -> "DataFrame":
    """Return the columns that tasks read, under the names c0, c1, ...; tasks name them back.

    `mapInArrow` takes no names with dots or backticks.
    """
    from pyspark.sql import functions

    selected = plan.columns.select(df) if plan.columns is not None else df
    quoted = ("`" + name.replace("`", "``") + "`" for name in plan.input_columns())
    return selected.select(*(functions.col(name).alias(f"c{place}") for place, name in enumerate(quoted)))


def learn_columns(frame: "DataFrame", plan: WritePlan) -> WritePlan:
    """Return the plan with the columns of its transform; the plan itself if it has none or all encodings are named.

    Runs the transform on the first rows of the frame from `select_inputs`: Spark computes as much of it as these need,
    and sends them through the driver to one task.

    Raises:
        SchemaError: There is no row, the transform returns none for the first ones, or one of its columns cannot be
            stored as requested.
        SmaltiError: The transform failed.
    """
    is_requested = plan.requested is not None and None not in plan.requested.values()
    if plan.transform is None or is_requested:
        return plan
    with decode_errors():
        rows = frame.take(_NUM_TRIAL_ROWS)
    if not rows:
        raise SchemaError("the DataFrame has no rows; nothing was published")

    def work(batches: Iterator[pa.RecordBatch], _: Attempt) -> dict[str, Any]:
        first = next(plan.rows(batches, "learning the columns of `transform` from the first rows"), None)
        return {"schema": None if first is None else base64.b64encode(first.schema.serialize()).decode()}

    answers = run_on_rows(frame.sparkSession, rows, frame.schema, work)
    found = [answer["schema"] for _, answer in answers if answer["schema"] is not None]
    if not found:
        raise SchemaError(
            f"`transform` gave no rows for the first {len(rows)}, so its columns are not known; give `columns` with an "
            f"encoding for each"
        )
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found[0])))
    columns = plan_output(schema, plan)
    return replace(
        plan,
        transform_schema=schema,
        columns=columns,
        logical=columns.logical,
        schema=Schema.from_columns(columns.encodings),
    )


def plan_output(schema: pa.Schema, plan: WritePlan) -> TablePlan:
    """Return how the columns of a transform's output are stored.

    Raises:
        SchemaError: A column is missing, or cannot be stored as requested.
    """
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        found = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except PySparkTypeError as error:
        kinds = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise SchemaError(
            f"`transform` gave the columns {kinds}, one of which has a type that Spark does not know; cast it in the "
            f"function ({error})"
        ) from error
    columns = plan_table(found, plan.requested, plan.nulls)
    for name in columns.casts:
        raise SchemaError(
            f"`transform` gave column {name!r} as {schema.field(name).type}, which Spark alone can turn into what is "
            f"stored; give it as a number or text",
            column=name,
        )
    return columns


def stored_columns(plan: WritePlan, answers: Answers, parent: Header | None) -> tuple[Schema, Mapping[str, Any]]:
    """Return columns and logical types of the shards: those of the plan, or those that tasks found in their output.

    Raises:
        SchemaError: Two tasks found different columns, none of them had a row, or the columns cannot be appended to
            `parent`.
    """
    if plan.schema is not None:
        return plan.schema, plan.logical
    found = collect_columns(answers)
    if found is None:
        raise SchemaError("the DataFrame has no rows; nothing was published")
    schema = Schema.from_columns(found[0])
    check_append(parent, replace(plan, schema=schema, logical=found[1]))
    return schema, found[1]


def collect_columns(answers: Answers) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Return encodings and logical types that tasks found in the output of a transform; None if none had a row.

    Raises:
        SchemaError: Two tasks found different ones.
    """
    first: tuple[Attempt, dict[str, Any]] | None = None
    for attempt, answer in answers:
        if "encodings" not in answer:
            continue
        if first is None:
            first = attempt, answer
        for name in sorted({*answer["encodings"], *first[1]["encodings"]}):
            for kind in ("encodings", "logical"):
                one, other = first[1][kind].get(name), answer[kind].get(name)
                if one != other:
                    raise SchemaError(
                        f"`transform` gave column {name!r} as {one} in Spark partition {first[0].task} and as {other} "
                        f"in partition {attempt.task}; make it the same everywhere. Nothing was published",
                        column=name,
                    )
    return None if first is None else (first[1]["encodings"], first[1]["logical"])


def check_append(parent: Header | None, plan: WritePlan) -> None:
    """Return only if the columns of a plan can be appended to a version; None takes any.

    Publishing makes the same check, but after all the work.

    Raises:
        SchemaError: A column is missing or additional, or has another encoding or logical type; or the version has
            columns that `add_columns` added.
    """
    if parent is None or not parent.rows or plan.schema is None:
        return
    check_no_added_columns(parent)
    columns = plan.schema.columns()
    for name in sorted({*columns, *parent.columns}):
        found = (columns.get(name), plan.logical.get(name))
        before = (parent.columns.get(name), parent.logical.get(name))
        if found != before:
            raise SchemaError(
                f"cannot append to version {parent.version}: column {name!r} is {_describe(before)} there, and "
                f"{_describe(found)} here",
                column=name,
            )


def _describe(kind: tuple[str | None, Any]) -> str:
    encoding, logical = kind
    if encoding is None:
        return "not there" if logical is None else f"{logical}"
    return repr(encoding) if logical is None else f"{encoding!r} ({logical})"


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

    column = functions.col("`" + name.replace("`", "``") + "`")
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
