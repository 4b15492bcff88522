"""The options, the output schema and the plan of a write: everything that is decided before a task runs.

`WriteOptions` is what the caller asks for. `plan_rows` decides by the columns of the table which arrive (`InputRows`),
and which are stored (`OutputColumns`); it reads no row. The columns of a transform's output may be known only after it
has run on the first rows (`OutputColumns.of_transformed`). Then the `WritePlan` is made, which travels to the tasks and
is never changed. What tasks do by a plan is in `task`.

A part of the rows may be written several times: after a failure, or speculatively while a slow attempt runs. Every
attempt has a name of its own, so that no two write to the same place. A version names what one attempt of each part
wrote.

Also here: rows of prepared images that have no image, and the policy for them.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog.manifest import Header
from smalti.catalog.publishing import Mode
from smalti.catalog.sidecars import check_no_added_columns
from smalti.errors import ArgumentError, BadImageError, SchemaError, SmaltiError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.format.writing.sealing import SpareMemory
from smalti.redaction import hide_options
from smalti.storage import Store
from smalti.storage.store import Disk
from smalti.writer.tables.columns import TablePlan, plan_columns, repeated
from smalti.writer.tables.transform import Transform, TransformFunction, TransformRun, as_transform
from smalti.writer.tables.types import Kind, kinds_of
from smalti.writer.uploader import ShardUploader, UploadOptions


@dataclass(frozen=True)
class Attempt:
    """One attempt to write one part of the rows."""

    task: int
    """Number of the part, such as of a Spark partition; 0-based."""
    attempt: str
    """Eight hex digits that no other attempt has."""

    @classmethod
    def new(cls, task: int) -> "Attempt":
        """Return a new attempt."""
        return cls(task, secrets.token_hex(4))

    @property
    def name(self) -> str:
        """`<task>-<attempt>`, usable in a key."""
        return f"{self.task:05d}-{self.attempt}"


TaskFunction = Callable[[Iterator[Any], Attempt], dict[str, Any]]
Answers = list[tuple[Attempt, dict[str, Any]]]


def check_owner(place: str, ending: str, attempt: Attempt) -> None:
    """Check that what an answer names is where only this attempt writes.

    Args:
        place: Folder of a shard, or key of a file.
        ending: End of the names that the attempt uses.
        attempt: Attempt whose answer it is.

    Raises:
        SmaltiError: It is not there, so that the answer is another one's, whose rows would be published twice.
    """
    if not place.endswith(ending):
        raise SmaltiError(
            f"the answer of task {attempt.task} names {place}, expected a name that ends with {ending}; answers were "
            "exchanged, and nothing was published: run the write again",
            task=attempt.task,
        )


def one_answer_each(answers: Answers) -> Answers:
    """Return the answers in order of their tasks.

    Raises:
        SmaltiError: Two attempts of one task answered; publishing both would duplicate its rows.
    """
    answers = sorted(answers, key=lambda item: (item[0].task, item[0].attempt))
    for (first, _), (second, _) in itertools.pairwise(answers):
        if first.task == second.task:
            raise SmaltiError(
                f"Spark returned two attempts of task {first.task} ({first.attempt} and {second.attempt}); nothing was "
                f"published: run the write again",
                task=first.task,
            )
    return answers


ERROR = "error"
"""Column of `prepare_images` with the reason why a row has no image; null if it has one."""
PATH = "path"
"""Column of `prepare_images` with the file of each row."""


ProgressChoice = bool | Literal["always"]
NUM_TRIAL_ROWS = 16
"""Rows on which a transform is run to learn its columns."""
ORIGIN = "\0origin"
"""Name of an additional last column of batches whose rows come from a file each: the files' names, for messages."""
UPLOADS = UploadOptions(hash_rows=True)
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


SampleFunction = Callable[[Any], Iterable[Mapping[str, Any]]]
"""A function of the user that makes samples of a pandas DataFrame: `udf_iterable` of MosaicML's call."""


class Words(NamedTuple):
    """The names of a table and of its parts in messages."""

    table: str
    part: str
    """Stands before the number of the part."""


OF_FRAMES = Words("the DataFrame", "Spark partition")


@dataclass(frozen=True)
class InputRows:
    """The rows of a table as they reach a task, and the function that makes of them the rows to store; picklable."""

    names: tuple[str, ...]
    """Columns that arrive, in order."""
    casts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Casts that Spark does on a column before it arrives, one after the other, because Arrow cannot carry its type."""
    transform: Transform | None = None
    samples: SampleFunction | None = None
    """Function that makes samples of the rows, instead of `columns` and `transform`."""
    bad_images: str | None = None
    """`on_bad_image` of a frame of `prepare_images`; None for other frames."""
    partition_by: str | None = None
    """Column of the rows to store whose values are their splits."""
    words: Words = OF_FRAMES

    def where(self, attempt: Attempt) -> str:
        """Return the name of the part that an attempt writes, for messages."""
        return f"{self.words.part} {attempt.task}"

    def to_store(
        self, batches: Iterator[pa.RecordBatch], where: str, transform_schema: pa.Schema | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows to store, of batches as they arrive: named, without bad images, transformed.

        Args:
            batches: Rows as they arrive.
            where: Name of the part in messages.
            transform_schema: Columns of the transform's output, if they are known.

        Raises:
            BadImageError: There is a bad image, and the policy is `fail`.
            SmaltiError: The transform failed; the message names the partition as `where`.
        """
        usable = self.usable(batches)
        if self.transform is None:
            return usable
        if self.bad_images:
            usable = (batch.drop_columns([ERROR]) for batch in usable)
        return TransformRun(self.transform, where, transform_schema).batches(usable)

    def usable(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that arrive, under the names of their columns and without bad images.

        Raises:
            BadImageError: There is a bad image, and the policy is `fail`.
        """
        for batch in batches:
            names = [*self.names, ORIGIN] if batch.num_columns > len(self.names) else list(self.names)
            rows = pa.RecordBatch.from_arrays(batch.columns, names)
            good = None if self.bad_images is None else pc.is_null(rows.column(ERROR))
            if self.bad_images == "fail" and not pc.all(good).as_py():
                first = rows.filter(pc.invert(good)).slice(0, 1).select([PATH, ERROR]).to_pylist()[0]
                raise BadImageError(
                    f"{first[PATH]} is not a usable image: {first[ERROR]}. Remove or replace it, or set `on_bad_image` "
                    'to "skip"; `update_prepared` names all such files',
                    path=first[PATH],
                )
            yield rows if good is None else rows.filter(good)

    def first_transformed(self, batches: Iterator[pa.RecordBatch]) -> pa.Schema | None:
        """Return the columns that the transform makes of the first rows; None if it makes no row of them."""
        first = next(self.to_store(batches, "learning the columns of `transform` from the first rows"), None)
        return None if first is None else first.schema


@dataclass(frozen=True)
class OutputColumns:
    """The output schema of a write: the columns that its shards store, and how values become those; picklable."""

    schema: Schema | None = None
    """The columns as stored; None if each task finds them in the output of the transform."""
    table: TablePlan | None = None
    """Plan of the columns that arrive; None if they have the values that the encodings take."""
    transform_schema: pa.Schema | None = None
    """Columns of the transform's output, if they are known before the tasks run."""
    requested: Mapping[str, str | None] | None = None
    """`columns` of the caller, by which a task finds the columns of a transform's output."""
    nulls: str | Mapping[str, Any] = "reject"
    """`nulls` of the caller, for the same."""
    allow_unsafe_types: bool = False
    """True if columns may be pickles."""

    @property
    def logical(self) -> Mapping[str, Any]:
        """Logical types (JSON, for the manifest) of the stored columns."""
        return {} if self.table is None else self.table.logical

    @property
    def needs_first_rows(self) -> bool:
        """True if the columns are open until the transform has run on the first rows."""
        return self.schema is None and (self.requested is None or None in self.requested.values())

    def of_transformed(self, schema: pa.Schema) -> "OutputColumns":
        """Return the columns that are stored of a transform's output with these columns.

        Raises:
            SchemaError: As for `table_of`.
        """
        table = self.table_of(schema)
        return OutputColumns(Schema.from_columns(table.encodings), table, schema)

    def table_of(self, schema: pa.Schema) -> TablePlan:
        """Return how the columns of a transform's output are stored.

        Raises:
            SchemaError: A column is missing, or cannot be stored as requested.
        """
        return plan_columns(kinds_of(schema), self.requested, self.nulls, table="the output of `transform`")


@dataclass(frozen=True)
class WritePlan:
    """The plan of one write, as every task gets it; picklable. It is made once, and nothing of it changes."""

    store: Store
    write_id: str
    options: ShardOptions
    input: InputRows = InputRows(())
    output: OutputColumns = OutputColumns()
    uploads: UploadOptions = UPLOADS
    disk: Disk | None = None
    """The disk that the driver sees: a task that sees the same one leaves syncing its shards to the driver."""
    is_loose: bool = False
    """True if no version is published, and the shards of each task are a folder of their own below the root."""

    @contextmanager
    def uploader(
        self,
        schema: Schema,
        split: str | None,
        folder: str,
        *,
        uploads: UploadOptions | None = None,
        spare: SpareMemory | None = None,
    ) -> Iterator[ShardUploader]:
        """Yield an uploader of shards of a split, which is aborted if the block raises.

        Args:
            schema: Columns of the shards.
            split: Split that the shards belong to, if the set has splits.
            folder: Folder of the write that no other attempt writes to.
            uploads: Options of uploading, by default those of the plan.
            spare: Buffers for reuse.
        """
        path = f"{self.write_id}{'-' if self.is_loose else '/'}{folder}"
        builder = ShardBuilder(schema, self.options, allow_unsafe_types=self.output.allow_unsafe_types, spare=spare)
        prefix = path if split is None else f"{split}/{path}"
        uploader = ShardUploader(self.store, prefix, builder, partition=split, uploads=uploads or self.uploads)
        try:
            yield uploader
        except BaseException:
            uploader.abort()
            raise


def plan_rows(
    kinds: Sequence[tuple[str, Kind]],
    options: WriteOptions,
    *,
    columns: Mapping[str, str | None] | None,
    bad_images: str | None = None,
    words: Words = OF_FRAMES,
) -> tuple[InputRows, OutputColumns]:
    """Return the rows of a table with columns of these kinds as they are to arrive, and the columns stored of them.

    No row is read. With a transform, the columns to store may be open until it has run on the first rows.

    Args:
        kinds: Name and kind of each column of the table.
        options: Options of the caller.
        columns: Columns to store, with their encodings: those of the caller, or the defaults of the table.
        bad_images: As for `InputRows`.
        words: As for `InputRows`.

    Raises:
        SchemaError: A column cannot be stored as requested, or an option does not fit the columns.
    """
    names = [name for name, _ in kinds]
    if options.transform is not None:
        check_shard_options(OutputColumns(Schema.from_columns({"x": "int"})), options)
        if twice := repeated(names):
            raise SchemaError(f"{words.table} has column {twice[0]!r} more than once; rename or drop one")
        rows = InputRows(
            tuple(names), {}, as_transform(options.transform), None, bad_images, options.partition_by, words
        )
        return rows, OutputColumns(requested=columns, nulls=options.nulls)
    split_column, kind_of = options.partition_by, dict(kinds)
    if split_column is not None and split_column not in kind_of:
        raise SchemaError(
            f"`partition_by` names {split_column!r}, {words.table} has {', '.join(kind_of)}", column=split_column
        )
    if split_column is not None and kind_of[split_column].family != "string":
        raise SchemaError(
            f"`partition_by` column {split_column!r} must hold text, found {kind_of[split_column].text}: cast it first",
            column=split_column,
        )
    table = plan_columns(kinds, columns, options.nulls, table=words.table)
    output = OutputColumns(Schema.from_columns(table.encodings), table)
    check_shard_options(output, options)
    extra = [split_column] if split_column else []
    extra += [ERROR, PATH] if bad_images else []
    names = list(dict.fromkeys([*table.names, *extra]))
    return InputRows(tuple(names), table.casts, None, None, bad_images, options.partition_by, words), output


def check_shard_options(output: OutputColumns, options: WriteOptions) -> None:
    """Refuse unusable options before the first task does."""
    if output.schema is not None:
        ShardBuilder(output.schema, options.shard_options, allow_unsafe_types=output.allow_unsafe_types)


def no_rows(words: Words) -> SchemaError:
    """Return the error of a table without rows."""
    return SchemaError(f"{words.table} has no rows; nothing was published")


def no_output(num_rows: int) -> SchemaError:
    """Return the error of a transform that gave no rows for the first ones."""
    return SchemaError(
        f"`transform` gave no rows for the first {num_rows}, so its columns are not known; give `columns` with an "
        f"encoding for each"
    )


def stored_columns(plan: WritePlan, answers: Answers, parent: Header | None) -> tuple[Schema, Mapping[str, Any]]:
    """Return columns and logical types of the shards: those of the plan, or those that tasks found in their output.

    Raises:
        SchemaError: Two tasks found different columns, none of them had a row, or the columns cannot be appended to
            `parent`.
    """
    if plan.output.schema is not None:
        return plan.output.schema, plan.output.logical
    columns = collect_columns(answers, plan.input.words)
    if columns is None:
        raise no_rows(plan.input.words)
    schema, logical = Schema.from_columns(columns[0]), columns[1]
    check_append(parent, schema, logical)
    return schema, logical


def collect_columns(answers: Answers, words: Words = OF_FRAMES) -> tuple[dict[str, str], dict[str, Any]] | None:
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
                        f"`transform` gave column {name!r} as {one} in {words.part} {first[0].task} and as {other} "
                        f"in {words.part.rpartition(' ')[2]} {attempt.task}; make it the same everywhere. Nothing was "
                        f"published",
                        column=name,
                    )
    return None if first is None else (first[1]["encodings"], first[1]["logical"])


def check_append(parent: Header | None, schema: Schema | None, logical: Mapping[str, Any]) -> None:
    """Return only if columns can be appended to a version; None as the version takes any, unknown columns always can.

    Publishing makes the same check, but after all the work.

    Raises:
        SchemaError: A column is missing or additional, or has another encoding or logical type; or the version has
            columns that `add_columns` added.
    """
    if parent is None or not parent.rows or schema is None:
        return
    check_no_added_columns(parent)
    columns = schema.columns()
    for name in sorted({*columns, *parent.columns}):
        here = (columns.get(name), logical.get(name))
        before = (parent.columns.get(name), parent.logical.get(name))
        if here != before:
            raise SchemaError(
                f"cannot append to version {parent.version}: column {name!r} is {_describe(before)} there, and "
                f"{_describe(here)} here",
                column=name,
            )


def _describe(kind: tuple[str | None, Any]) -> str:
    encoding, logical = kind
    if encoding is None:
        return "not there" if logical is None else f"{logical}"
    return repr(encoding) if logical is None else f"{encoding!r} ({logical})"
