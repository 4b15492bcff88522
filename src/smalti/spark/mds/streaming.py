"""`df.writeStream.format("mds")`: each micro-batch as one appended version, exactly once.

The write id of a micro-batch is that of the query, which its checkpoint keeps, with the number of the batch. When Spark
repeats a batch after a crash, the version with its id is found, and nothing is published a second time.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage

from smalti.attributes import whole_number
from smalti.catalog.opening import find_newest
from smalti.catalog.retention import markers
from smalti.errors import ArgumentError, CommitConflict, MissingDependency, SmaltiError
from smalti.spark.mds.options import Parse, parse_options, place_of
from smalti.spark.mds.writing import (
    ELSEWHERE,
    SET_OPTIONS,
    SetWrite,
    ShardsWritten,
    answers_of,
    keys_of,
    write_partition,
)
from smalti.storage import Store
from smalti.writer.compact import compact
from smalti.writer.tables.packing import collect_parts, delete_all
from smalti.writer.tables.plan import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

STREAM_OPTIONS: Mapping[str, Parse] = {**SET_OPTIONS, "compact_every": int}
_ELSEWHERE = {
    **ELSEWHERE,
    "if_exists": "a stream appends",
    "lineage": "versions say which query and which micro-batch they are of",
    "write_id": "each micro-batch has one of its own",
}
_PREFIX = "stream-"
_ARROW_WRITER = "DataSourceStreamArrowWriter"
_LOG = logging.getLogger(__name__)


_Base: Any = getattr(datasource, _ARROW_WRITER, object)  # PySpark 4.0 has none, and reads and writes all the same


class ShardSetStreamWriter(_Base):  # type: ignore[misc]  # PySpark is Any here
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
        values = parse_options(given, STREAM_OPTIONS, _ELSEWHERE)
        self._compact_every = whole_number("compact_every", values.pop("compact_every", 0), 0)
        self._job = SetWrite.of(schema, place_of(given), WriteOptions(**values, mode="append"))
        self._columns = schema.fieldNames()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one partition of a micro-batch, in its task."""
        plan = self._job.plan(_write_id(self._job.store))
        return write_partition(plan, self._columns, _marked(plan.store, plan.write_id, iterator))

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
            job = replace(self._job, options=replace(self._job.options, write_id=write_id, lineage=lineage))
            write = job.identify()
            if write.published is None:
                job.publish(write, answers)
        if self._compact_every and (batchId + 1) % self._compact_every == 0:
            _compact(self._job.store)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Remove what the tasks of the micro-batch have stored, unless all were done: see `ShardSetWriter.abort`."""
        if None in messages:
            delete_all(self._job.store, keys_of(collect_parts(answers_of(messages))))


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


def _marked(store: Store, write_id: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; the write is marked as begun before the first one."""
    for number, batch in enumerate(batches):
        if number == 0:
            markers.begin(store, write_id)
        yield batch


def _compact(store: Store) -> None:
    """Merge small shards into larger ones, as a version of its own; not if another writer published meanwhile."""
    if find_newest(store).header is None:  # all micro-batches were empty
        return
    try:
        compact(store)
    except CommitConflict as error:
        _LOG.warning("small shards were not merged this time: %s", error)
