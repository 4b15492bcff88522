"""The options and the plan of a write: everything that is decided before a task runs, and travels to the tasks.

`plan_rows` decides what columns and options determine, and reads no row. `with_output` completes the plan of a
transform, whose columns are known only after it has run on the first rows. What tasks do by a plan is in `task`.

Also here: rows of prepared images that have no image, and the policy for them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog.header import Header
from smalti.catalog.publishing import Mode
from smalti.catalog.sidecars import check_no_added_columns
from smalti.errors import ArgumentError, BadImageError, SchemaError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.redaction import hide_options
from smalti.storage import Store
from smalti.storage.store import Disk
from smalti.writer.tables.attempts import Answers, Attempt
from smalti.writer.tables.columns import TablePlan, plan_columns, repeated
from smalti.writer.tables.kinds import Kind, kinds_of
from smalti.writer.tables.transform import Transform, TransformFunction, TransformRun, as_transform
from smalti.writer.uploader import UploadOptions

ERROR = "error"
"""Column of `prepare_images` with the reason why a row has no image; null if it has one."""
PATH = "path"
"""Column of `prepare_images` with the file of each row."""


def without_bad_images(batch: pa.RecordBatch, policy: str | None) -> pa.RecordBatch:
    """Return the rows of `prepare_images` that have an image; all rows of other frames, whose policy is None.

    Raises:
        BadImageError: The policy is `fail`, and a row has none.
    """
    if policy is None:
        return batch
    good = pc.is_null(batch.column(ERROR))
    if policy == "fail" and not pc.all(good).as_py():
        first = batch.filter(pc.invert(good)).slice(0, 1).select([PATH, ERROR]).to_pylist()[0]
        raise BadImageError(
            f"{first[PATH]} is not a usable image: {first[ERROR]}. Remove or replace it, or set `on_bad_image` to "
            f'"skip"; `update_prepared` names all such files',
            path=first[PATH],
        )
    return batch.filter(good)


ProgressChoice = bool | Literal["always"]
NUM_TRIAL_ROWS = 16
"""Rows on which a transform is run to learn its columns."""
ORIGIN = "\0origin"
"""Name of an additional last column of batches whose rows come from a file each: the files' names, for messages."""
_MAX_SHARDS = 1_000_000


def require(name: str, expected: str, found: object, *, met: bool) -> None:
    """Raise a ValueError about an option whose condition is not met."""
    if not met:
        raise ArgumentError(f"`{name}`: expected {expected}, found {found!r}")


@dataclass(frozen=True)
class WriteOptions:
    """The keyword arguments of `dataframe_to_mds`, which documents each, with their defaults, and three more.

    `convert` has the same, apart from those that concern Spark.
    """

    columns: Mapping[str, str | None] | None = None
    nulls: str | Mapping[str, Any] = "reject"
    compression: str | None = "auto"
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
    """False leaves the last shard of every part as it is, however small; of MosaicML's call only."""
    allow_unsafe_types: bool = False
    """True allows columns of pickles; of MosaicML's call only."""

    def __post_init__(self) -> None:
        hide_options(self)
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
    """Plan of the columns that arrive; None if they have the values that the encodings take."""
    logical: Mapping[str, Any] = field(default_factory=dict)
    """Logical types (JSON, for the manifest) of the stored columns."""
    inputs: tuple[str, ...] = ()
    """Columns that arrive, in order; by default those that `input_columns` derives."""
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
    part_word: str = "Spark partition"
    """Name of a part of the rows in messages, before its number."""
    table_word: str = "the DataFrame"
    """Name of the table in messages."""
    samples: SampleFunction | None = None
    """Function that makes samples of the rows, instead of `columns` and `transform`."""
    allow_unsafe_types: bool = False
    """True allows columns of pickles."""

    def input_columns(self) -> tuple[str, ...]:
        """Return the columns that arrive, in order: those to store, and those that decide where a row goes."""
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

    def where(self, attempt: Attempt) -> str:
        """Return the name of the part that an attempt writes, for messages."""
        return f"{self.part_word} {attempt.task}"

    def rows(self, batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows to store, of batches as they arrive: named, without bad images, transformed.

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
        """Yield the rows that arrive, under the names of their columns and without bad images.

        Raises:
            BadImageError: There is a bad image, and the policy is `fail`.
        """
        inputs = self.input_columns()
        for batch in batches:
            names = [*inputs, ORIGIN] if batch.num_columns > len(inputs) else list(inputs)
            yield without_bad_images(pa.RecordBatch.from_arrays(batch.columns, names), self.bad_images)


def plan_rows(plan: WritePlan, kinds: Sequence[tuple[str, Kind]], options: WriteOptions) -> WritePlan:
    """Return a plan, begun with `begin_plan`, with the columns of rows of these kinds; no row is read.

    With a transform, its columns stay open until `with_output`.

    Raises:
        SchemaError: A column cannot be stored as requested, or an option does not fit the columns.
    """
    names = [name for name, _ in kinds]
    if options.transform is not None:
        check_shard_options(Schema.from_columns({"x": "int"}), plan.options)
        if twice := repeated(names):
            raise SchemaError(f"{plan.table_word} has column {twice[0]!r} more than once; rename or drop one")
        return replace(plan, transform=as_transform(options.transform), inputs=tuple(names))
    _check_partition_column(dict(kinds), options.partition_by, plan.table_word)
    table = plan_columns(kinds, plan.requested, options.nulls, table=plan.table_word)
    schema = Schema.from_columns(table.encodings)
    check_shard_options(schema, plan.options)
    return replace(plan, schema=schema, columns=table, logical=table.logical)


def begin_plan(store: Store, options: WriteOptions, uploads: UploadOptions | None = None) -> WritePlan:
    """Return the part of a plan that the options determine; it has no columns and no write id yet."""
    return WritePlan(
        store=store,
        write_id="",
        schema=None,
        options=options.shard_options,
        partition_by=options.partition_by,
        requested=options.columns,
        nulls=options.nulls,
        uploads=uploads or UploadOptions(hash_rows=True),
        allow_unsafe_types=options.allow_unsafe_types,
    )


def check_shard_options(schema: Schema, options: ShardOptions, *, allow_unsafe_types: bool = False) -> None:
    """Refuse unusable options before the first task does."""
    ShardBuilder(schema, options, allow_unsafe_types=allow_unsafe_types)


def _check_partition_column(kinds: Mapping[str, Kind], name: str | None, table: str) -> None:
    if name is None:
        return
    if name not in kinds:
        raise SchemaError(f"`partition_by` names {name!r}, {table} has {', '.join(kinds)}", column=name)
    if kinds[name].family != "string":
        raise SchemaError(
            f"`partition_by` column {name!r} must hold text, found {kinds[name].text}: cast it first", column=name
        )


def needs_output(plan: WritePlan) -> bool:
    """Return whether the columns of the plan are open until the transform has run on the first rows."""
    is_requested = plan.requested is not None and None not in plan.requested.values()
    return plan.transform is not None and not is_requested


def with_output(plan: WritePlan, schema: pa.Schema) -> WritePlan:
    """Return the plan with the columns of its transform's output.

    Raises:
        SchemaError: A column is missing, or cannot be stored as requested.
    """
    columns = plan_output(schema, plan)
    return replace(
        plan,
        transform_schema=schema,
        columns=columns,
        logical=columns.logical,
        schema=Schema.from_columns(columns.encodings),
    )


def no_output(num_rows: int) -> SchemaError:
    """Return the error of a transform that gave no rows for the first ones."""
    return SchemaError(
        f"`transform` gave no rows for the first {num_rows}, so its columns are not known; give `columns` with an "
        f"encoding for each"
    )


def plan_output(schema: pa.Schema, plan: WritePlan) -> TablePlan:
    """Return how the columns of a transform's output are stored.

    Raises:
        SchemaError: A column is missing, or cannot be stored as requested.
    """
    return plan_columns(kinds_of(schema), plan.requested, plan.nulls, table="the output of `transform`")


def stored_columns(plan: WritePlan, answers: Answers, parent: Header | None) -> tuple[Schema, Mapping[str, Any]]:
    """Return columns and logical types of the shards: those of the plan, or those that tasks found in their output.

    Raises:
        SchemaError: Two tasks found different columns, none of them had a row, or the columns cannot be appended to
            `parent`.
    """
    if plan.schema is not None:
        return plan.schema, plan.logical
    found = collect_columns(answers, plan.part_word)
    if found is None:
        raise SchemaError(f"{plan.table_word} has no rows; nothing was published")
    schema = Schema.from_columns(found[0])
    check_append(parent, replace(plan, schema=schema, logical=found[1]))
    return schema, found[1]


def collect_columns(
    answers: Answers, part_word: str = "Spark partition"
) -> tuple[dict[str, str], dict[str, Any]] | None:
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
                        f"`transform` gave column {name!r} as {one} in {part_word} {first[0].task} and as {other} "
                        f"in {part_word.rpartition(' ')[2]} {attempt.task}; make it the same everywhere. Nothing was "
                        f"published",
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
