"""What each task of `dataframe_to_mds` does with its rows, and what the driver makes of the tasks' answers.

Which columns a transform gives, learnt by running it on the first rows of the frame, in one Spark task.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from smalti.catalog.manifest import row_hash_text
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import SchemaError
from smalti.format import Schema, ShardBuilder, ShardInfo, ShardOptions
from smalti.format.writing.memory import SpareMemory
from smalti.spark.session import make_frame
from smalti.spark.tasks import Answers, Attempt, run_tasks, surfaced
from smalti.spark.types.columns import ColumnPlan, plan_table
from smalti.spark.writing.routing import ERROR, PATH, by_split, check_split, without_bad_images
from smalti.spark.writing.transform import Transform, TransformRun
from smalti.storage import Store
from smalti.storage.store import Disk
from smalti.writer import ShardUploader, UploadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SPARE = SpareMemory()
"""Of this worker process: Spark gives it one task after the other."""


@dataclass(frozen=True)
class WritePlan:
    """What every task must know; travels to the executors."""

    store: Store
    write_id: str
    schema: Schema | None
    """The columns as stored; None if each task finds them in what the transform gives."""
    options: ShardOptions
    partition_by: str | None = None
    bad_images: str | None = None
    """The policy of a frame of `prepare_images`."""
    columns: ColumnPlan | None = None
    """How the columns that Spark sends become those; None takes them as they come."""
    reads: tuple[str, ...] = ()
    """The columns that Spark sends, in order; by default the stored ones and those that say where a row goes."""
    transform: Transform | None = None
    transformed: pa.Schema | None = None
    """What the transform gives, if that is known beforehand."""
    asked: Mapping[str, str | None] | None = None
    nulls: str | Mapping[str, Any] = "reject"
    """With `asked`: how a task plans the columns that a transform gives."""
    uploads: UploadOptions = field(default_factory=lambda: UploadOptions(hash_rows=True))
    is_loose: bool = False
    """Whether nothing is published: each task's shards are to be a folder of their own right below the root."""
    disk: Disk | None = None
    """The disk that the driver sees: a task that sees the same leaves it to the driver to sync its shards."""

    def needed(self) -> tuple[str, ...]:
        """The columns that Spark sends, in order."""
        stored = self.schema.names if self.schema is not None else ()
        return self.reads or reads_of(tuple(stored), self.partition_by, self.bad_images)

    def prefix(self, split: str | None, attempt: Attempt) -> str:
        """The folder of an attempt's shards."""
        name = f"{self.write_id}-{attempt.name}" if self.is_loose else f"{self.write_id}/{attempt.name}"
        return name if split is None else f"{split}/{name}"


def reads_of(stored: tuple[str, ...], partition_by: str | None, bad_images: str | None) -> tuple[str, ...]:
    """Columns that tasks read: those stored, and those that decide where a row goes."""
    extra = [partition_by] if partition_by else []
    if bad_images:
        extra += [ERROR, PATH]
    return tuple(dict.fromkeys([*stored, *extra]))


@dataclass(frozen=True)
class Part:
    """The shards that one task wrote of one split; at least one."""

    split: str | None
    task: int
    count: int
    """How many there are."""
    tail: ShardInfo
    """The last: it ends because the rows did, and may be small."""
    packed: str
    """All that the task wrote, as it answered; a hundredth of the memory that the entries take."""
    is_synced: bool = True
    """Whether that is on disk already; if not, `sync` of the store sees to it."""

    def shards(self) -> Sequence[ShardInfo]:
        """All of them, in order."""
        return _of_split(unpack_shards(self.packed, where=f"answer of task {self.task}"), self.split)


def _of_split(table: ShardTable, split: str | None) -> Sequence[ShardInfo]:
    return table if split is None else table.of_partition(split)


def write_shards(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    """What each task does: its rows as shards in the store, and the entries of these shards as its answer.

    Nothing is left in the store that the answer does not name, unless the process is killed.
    """
    with TaskWriter(plan, attempt) as writer:
        for batch in _rows(plan, batches, attempt):
            for split, part in by_split(batch, plan.partition_by):
                writer.write_batch(split, part)
        return writer.finish()


def _rows(plan: WritePlan, batches: Iterator[pa.RecordBatch], attempt: Attempt) -> Iterator[pa.RecordBatch]:
    given = usable_rows(plan, batches)
    if plan.transform is None:
        return given
    return TransformRun(plan.transform, f"Spark partition {attempt.task}", plan.transformed).batches(given)


def usable_rows(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark sends, under the columns' own names and without bad images."""
    names = list(plan.needed())
    for batch in batches:
        named = pa.RecordBatch.from_arrays(batch.columns, names)
        good = without_bad_images(named, plan.bad_images)
        yield good.drop_columns([ERROR]) if plan.bad_images and plan.transform is not None else good


class TaskWriter:
    """Rows of one attempt into the shards of their splits; used by one thread, in a `with` block.

    When the block raises, what was stored is deleted, and an error of a value says which partition it is in.
    """

    def __init__(self, plan: WritePlan, attempt: Attempt) -> None:
        """Store nothing yet."""
        self._plan = plan
        self._attempt = attempt
        self._columns = plan.columns
        self._schema = plan.schema
        self._uploaders: dict[str | None, ShardUploader] = {}
        is_left = plan.disk is not None and plan.store.disk() == plan.disk
        self._uploads = replace(plan.uploads, is_synced=False) if is_left else plan.uploads
        self._rows = 0

    def write_batch(self, split: str | None, batch: pa.RecordBatch) -> None:
        """Take every row in.

        Raises:
            SchemaError: a value cannot be stored, or the split has no name for a folder.
        """
        if batch.num_rows == 0:
            return
        if self._schema is None:
            self._columns = plan_arrow(batch.schema, self._plan.asked, self._plan.nulls)
            self._schema = Schema.from_columns(self._columns.encodings)
        if self._columns is not None:
            prepared = self._columns.prepare(batch, first_row=self._rows)
        else:
            prepared = batch.select(list(self._schema.names))
        self._uploader(split, self._schema).write_batch(prepared)
        self._rows += batch.num_rows

    def write(self, sample: Mapping[str, Any]) -> None:
        """Take one sample in, of Python's values.

        Raises:
            SchemaError: it does not fit the columns.
        """
        if self._schema is None:
            raise SchemaError("single samples need `columns`")
        self._uploader(None, self._schema).write(sample)
        self._rows += 1

    def finish(self) -> dict[str, Any]:
        """The answer: every shard is in the store, for good unless it says `is_synced: false`."""
        shards: list[ShardInfo] = []
        row_hash = 0
        for split in sorted(self._uploaders, key=str):
            uploader = self._uploaders[split]
            shards += uploader.finish()
            row_hash += uploader.row_hash or 0
        stored = sum(shard.samples for shard in shards)
        if stored != self._rows:
            raise SchemaError(
                f"task {self._attempt.task} read {self._rows} rows and stored {stored}; nothing was published"
            )
        answer: dict[str, Any] = {"shards": pack_shards(shards), "row_hash": row_hash_text(row_hash)}
        if not self._uploads.is_synced:
            answer["is_synced"] = False
        if self._plan.schema is None and self._columns is not None:
            answer |= {"encodings": self._columns.encodings, "logical": self._columns.logical}
        return answer

    def __enter__(self) -> "TaskWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        for uploader in self._uploaders.values():
            uploader.abort()
        where = f"Spark partition {self._attempt.task}"
        if isinstance(error, SchemaError) and not error.message.startswith(where):
            # Its sample numbers count from the start of the partition.
            raise SchemaError(f"{where}: {error.message}", **error.facts) from error

    def _uploader(self, split: str | None, schema: Schema) -> ShardUploader:
        found = self._uploaders.get(split)
        if found is None:
            plan = self._plan
            check_split(plan.partition_by, split, len(self._uploaders))
            builder = ShardBuilder(schema, plan.options, spare=_SPARE)
            prefix = plan.prefix(split, self._attempt)
            found = ShardUploader(plan.store, prefix, builder, partition=split, uploads=self._uploads)
            self._uploaders[split] = found
        return found


def plan_arrow(schema: pa.Schema, asked: Mapping[str, str | None] | None, nulls: str | Mapping[str, Any]) -> ColumnPlan:
    """What becomes of the columns that a transform gives.

    Raises:
        SchemaError: one is missing, or cannot be stored as asked.
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
    columns = plan_table(found, asked, nulls)
    for name in columns.casts:
        raise SchemaError(
            f"`transform` gave column {name!r} as {schema.field(name).type}, which Spark alone can turn into what is "
            f"stored; give it as a number or text",
            column=name,
        )
    return columns


def collect_parts(answers: Answers) -> list[Part]:
    """What all tasks wrote, by split, then task."""
    parts = []
    for attempt, answer in answers:
        table = unpack_shards(answer["shards"], where=f"answer of task {attempt.name}")
        if len(table):
            for split in table.partitions or (None,):
                shards = _of_split(table, split)
                is_synced = bool(answer.get("is_synced", True))
                parts.append(Part(split, attempt.task, len(shards), shards[-1], answer["shards"], is_synced))
    return sorted(parts, key=lambda part: (part.split or "", part.task))


def collect_shards(answers: Answers) -> list[ShardInfo]:
    """The shards of all tasks, by split, then task, then number within the task."""
    return [shard for part in collect_parts(answers) for shard in part.shards()]


def collect_columns(answers: Answers) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Encodings and logical types that the tasks found in what a transform gave; None if none of them had a row.

    Raises:
        SchemaError: two tasks found different ones.
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
