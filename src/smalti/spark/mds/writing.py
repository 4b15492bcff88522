"""`df.write.format("mds")`: the rows of a query as one new version of a set, which the driver publishes in `commit`.

Columns, plan, tasks and publishing are those of `dataframe_to_mds`. Spark creates the writer in a process on the
driver's machine, sends it to the tasks, and then to another process on the driver's machine that commits or aborts.

`df.writeStream.format("mds")` appends each micro-batch as one version, exactly once: the write id of a micro-batch is
that of the query, which its checkpoint keeps, with the number of the batch. When Spark repeats a batch after a crash,
the version with its id is found, and nothing is published a second time.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from smalti.attributes import whole_number
from smalti.catalog.opening import find_newest
from smalti.catalog.publishing import Mode
from smalti.catalog.retention import markers
from smalti.catalog.table.shard_table import written_keys
from smalti.errors import ArgumentError, CommitConflict, CommitUnknown, MissingDependency, SchemaError, SmaltiError
from smalti.spark.mds.options import Parse, mapping, names, optional, parse_options, place_of, policy
from smalti.spark.writing.dataframe import plan_frame
from smalti.storage import Store, open_store
from smalti.writer.compact import compact
from smalti.writer.tables.plan import (
    UPLOADS,
    Answers,
    Attempt,
    WriteOptions,
    WritePlan,
    check_append,
    one_answer_each,
)
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.versions import (
    TaskShards,
    Write,
    begun,
    collect_parts,
    delete_all,
    identify,
    publish_shards,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SET_OPTIONS: Mapping[str, Parse] = {
    "columns": mapping,
    "compression": optional,
    "hashes": names,
    "metadata": mapping,
    "nulls": policy,
    "partition_by": str,
    "size_limit": optional,
}
"""Options of `dataframe_to_mds` that any write has, a stream too."""
STREAM_OPTIONS: Mapping[str, Parse] = {**SET_OPTIONS, "compact_every": int}
WRITE_OPTIONS: Mapping[str, Parse] = {**SET_OPTIONS, "if_exists": str, "lineage": mapping, "write_id": str}
_BEFORE = "change the rows before they are written, or call `smalti.spark.dataframe_to_mds`, which has it"
ELSEWHERE = {
    "mode": 'use `.mode("append")` or `.mode("overwrite")`; `.option("if_exists", "error")` refuses a place with a set',
    "out": "name the place in `save(url)` or `start(url)`",
    "progress": "Spark's own progress bar and UI show the tasks",
    "shuffle_rows": _BEFORE,
    "storage_options": "give each as an option of its own, such as `storage.endpoint_url`",
    "target_shards": "`df.repartition(n)` decides how many partitions write; `size_limit` decides the size of shards",
    "transform": _BEFORE,
}
_ELSEWHERE_OF_STREAMS = {
    **ELSEWHERE,
    "if_exists": "a stream appends",
    "lineage": "versions say which query and which micro-batch they are of",
    "write_id": "each micro-batch has one of its own",
}
_PREFIX = "stream-"
_ARROW_WRITER = "DataSourceStreamArrowWriter"
_LOG = logging.getLogger(__name__)


class _SetWriter:
    """The common part of the writers: a write of rows to a set, planned by their schema; picklable."""

    def __init__(self, schema: "StructType", place: str, options: WriteOptions) -> None:
        """Plan the write; nothing is stored, and no row is read.

        Raises:
            SchemaError: A column cannot be stored as requested, or not from a Python data source.
            ArgumentError: An option does not fit the columns.
        """
        self._rows, self._output = plan_frame(schema, options)
        for name, kinds in self._rows.casts.items():
            raise SchemaError(
                f"Spark sends no columns such as {name!r}, {schema[name].dataType.simpleString()}, to data sources in "
                f"Python: cast it to {', then to '.join(kinds)}, or call `smalti.spark.dataframe_to_mds`",
                column=name,
            )
        self._store, self._options = open_store(place, options.storage_options), options
        self._columns = schema.fieldNames()

    def _identify(self, options: WriteOptions) -> Write:
        """Return which write this is; one that was published already needs no rows.

        Raises:
            DatasetExists: There is a set, and the mode is `create`; or no set can be written there.
            SchemaError: The rows cannot be appended, because their columns are others.
        """
        write = identify(self._store, options, dict(options.lineage or {}), None)
        if write.published is None:
            check_append(write.parent, self._output.schema, self._output.logical)
        return write

    def _plan(self, write_id: str) -> WritePlan:
        """Return the plan that the tasks of the write with this id carry out; tasks sync their shards themselves."""
        return WritePlan(self._store, write_id, self._options.shard_options, self._rows, self._output, UPLOADS)

    def _write_rows(self, write_id: str, batches: Iterator[pa.RecordBatch]) -> "ShardsWritten":
        """Write the rows of one Spark partition, in its task, and return what is stored of them.

        Raises:
            SchemaError: A value cannot be stored; the message names partition, column and row.
        """
        from pyspark import TaskContext

        context, names = TaskContext.get(), list(self._rows.names)
        attempt = Attempt.new(0 if context is None else context.partitionId())
        columns = [self._columns.index(name) for name in names]
        chosen = (pa.RecordBatch.from_arrays([batch.column(at) for at in columns], names) for batch in batches)
        return ShardsWritten(write_id, attempt, write_shards(self._plan(write_id), chosen, attempt))

    def _publish(self, write: Write, options: WriteOptions, answers: Answers) -> None:
        """Publish what the tasks wrote as a version; blocks until that is done.

        Raises:
            SchemaError: There are no rows.
            CommitConflict: Another writer published first; nothing is left of this write.
            CommitUnknown: The store no longer answers; the version may be published.
        """
        parts = collect_parts(answers)  # publishing empties the answers
        try:
            with begun(self._store, write) as watch:  # this process has no session to start tasks with that join shards
                publish_shards(self._plan(write.write_id), write, options, answers, None, watch)
        except CommitUnknown:
            raise
        except SmaltiError:
            self._delete(parts)
            raise

    def _delete(self, parts: Sequence[TaskShards]) -> None:
        """Delete the objects that tasks have stored."""
        delete_all(self._store, [name for part in parts for name in written_keys(part.shards())])


@dataclass
class ShardsWritten(WriterCommitMessage):  # type: ignore[misc]  # PySpark is Any here
    """The answer of one task: the shards that it has stored."""

    write_id: str
    attempt: Attempt
    answer: dict[str, Any]


def answers_of(messages: Sequence[WriterCommitMessage | None]) -> Answers:
    """Return the answers of tasks that wrote something, one for each, in order."""
    found = [message for message in messages if isinstance(message, ShardsWritten)]
    return one_answer_each([(message.attempt, message.answer) for message in found])


class ShardSetWriter(_SetWriter, DataSourceArrowWriter):  # type: ignore[misc]  # PySpark is Any here
    """The writer of one query's rows: one new version of a set."""

    def __init__(self, schema: "StructType", given: Mapping[str, str], *, overwrite: bool) -> None:
        """Plan the write, and mark it as begun; no row is read.

        Args:
            schema: Columns of the rows.
            given: Options of the caller, `WRITE_OPTIONS`.
            overwrite: True if the version shows these rows alone.

        Raises:
            DatasetExists: `if_exists` is `error`, and there is a set; or no set can be written there.
            SchemaError: A column cannot be stored as requested.
            ArgumentError: An option is unknown, or has an unusable value.
            StoreError: The store cannot be written to.
        """
        values = parse_options(given, WRITE_OPTIONS, ELSEWHERE)
        guard = values.pop("if_exists", None)
        if guard is not None and (guard != "error" or overwrite):
            raise ArgumentError(
                'format("mds"), option `if_exists`: it takes `error`, with `.mode("append")`, and refuses a place that '
                f'has a set; found {guard!r} with `.mode("{"overwrite" if overwrite else "append"}")`'
            )
        mode: Mode = "overwrite" if overwrite else "create" if guard else "append"
        super().__init__(schema, place_of(given), WriteOptions(**values, mode=mode))
        self._write = self._identify(self._options)
        if self._write.published is None:
            markers.begin(self._store, self._write.write_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one partition, in its task; rows of a write that is published are not read."""
        if self._write.published is not None:
            return WriterCommitMessage()
        return self._write_rows(self._write.write_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the version, on the driver's machine; as `_publish` says."""
        if self._write.published is None:
            self._publish(self._write, self._options, answers_of(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have stored, on the driver's machine.

        Without a missing message all tasks were done, and it was `commit` that failed: it has removed what no version
        can show, and whether one does may be unknown. The write's marker stays, by which a vacuum finds what a task
        stores that is still running.
        """
        if self._write.published is None and None in messages:
            self._delete(collect_parts(answers_of(messages)))


_Base: Any = getattr(datasource, _ARROW_WRITER, object)  # PySpark 4.0 has none, and reads and writes all the same


class ShardSetStreamWriter(_SetWriter, _Base):  # type: ignore[misc]  # PySpark is Any here
    """The writer of a query's micro-batches; Spark creates one for the tasks and one for each commit."""

    def __init__(self, schema: "StructType", given: Mapping[str, str], *, overwrite: bool) -> None:
        """Plan the writes; nothing is stored, and no row is read.

        Args:
            schema: Columns of the rows.
            given: Options of the caller, `STREAM_OPTIONS`.
            overwrite: True if each micro-batch is to replace the rows before, which is refused.

        Raises:
            SchemaError: A column cannot be stored as requested.
            ArgumentError: An option is unknown, or has an unusable value; or the output mode is `complete`.
            MissingDependency: PySpark is 4.0, which sends no Arrow batches to streams in Python.
        """
        if not hasattr(datasource, _ARROW_WRITER):
            raise MissingDependency(
                f'streams into format("mds") need PySpark 4.1 or later, found {pyspark.__version__}: update it, or '
                "call `smalti.spark.dataframe_to_mds` for each batch, as docs/spark.md shows",
                package="pyspark",
                extra="spark",
            )
        if overwrite:
            raise ArgumentError(
                'format("mds") appends the rows of each micro-batch, and the output mode is "complete": use '
                '`.outputMode("append")`, or call `dataframe_to_mds(..., mode="overwrite")` for each batch'
            )
        values = parse_options(given, STREAM_OPTIONS, _ELSEWHERE_OF_STREAMS)
        self._compact_every = whole_number("compact_every", values.pop("compact_every", 0), 0)
        super().__init__(schema, place_of(given), WriteOptions(**values, mode="append"))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one partition of a micro-batch, in its task."""
        write_id = _write_id(self._store)
        for batch in iterator:
            markers.begin(self._store, write_id)  # before the first one
            return self._write_rows(write_id, itertools.chain([batch], iterator))
        return self._write_rows(write_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- of PySpark
        """Publish the micro-batch as a version, on the driver's machine, unless it is published; none if it is empty.

        Raises:
            SchemaError: The set has other columns.
            CommitUnknown: The store no longer answers; the query fails, and settles it when it is started again.
            StoreError: The store failed for longer than its retries.
        """
        answers = answers_of(messages)
        if collect_parts(answers):
            write_id = next(message.write_id for message in messages if isinstance(message, ShardsWritten))
            lineage = {"source": "stream", "query": write_id.removeprefix(_PREFIX).rpartition("-")[0], "batch": batchId}
            options = replace(self._options, write_id=write_id, lineage=lineage)
            write = self._identify(options)
            if write.published is None:
                self._publish(write, options, answers)
        store, is_due = self._store, self._compact_every and (batchId + 1) % self._compact_every == 0
        if is_due and find_newest(store).header is not None:  # None if all micro-batches were empty
            try:
                compact(store)
            except CommitConflict as error:  # another writer published meanwhile
                _LOG.warning("small shards were not merged this time: %s", error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what the tasks of the micro-batch have stored, unless all were done: see `ShardSetWriter.abort`."""
        if None in messages:
            self._delete(collect_parts(answers_of(messages)))


def _write_id(store: Store) -> str:
    """Return the write id of the micro-batch that this task is of.

    A vacuum that takes a batch for abandoned, because the query did not run for days, fences its id. The batch has the
    next number then, which is the same one whenever Spark repeats it.

    Raises:
        SmaltiError: This is no task of a streaming query.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise SmaltiError("Spark did not say which micro-batch this task is of, so that it could not be written once")
    write_id = first = f"{_PREFIX}{query}-{batch}"
    header = find_newest(store).header
    for number in itertools.count(2):
        if header is None or write_id in header.writes or write_id not in header.fenced:
            break
        write_id = f"{first}.{number}"
    return write_id
