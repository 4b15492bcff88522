"""The work of one task of a write: one part of the rows as shards in the store.

A task answers with the entries of its shards after the store has acknowledged all of them, or raises.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog.manifest import row_hash_text
from smalti.catalog.table.arrow import pack_shards
from smalti.errors import SchemaError
from smalti.format import Schema, ShardInfo
from smalti.format.writing.sealing import SpareMemory
from smalti.writer.tables.plan import ORIGIN, Attempt, WritePlan
from smalti.writer.uploader import ShardUploader

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}", re.ASCII)
_MAX_SPLITS = 64  # a split costs every task an open shard in memory; more values hint at a mistaken column
_SPARE = SpareMemory()
"""Buffers for reuse by the tasks of this process, which run one after the other."""


def write_shards(
    plan: WritePlan,
    batches: Iterator[pa.RecordBatch],
    attempt: Attempt,
    on_rows: Callable[[str | None, pa.RecordBatch], None] | None = None,
) -> dict[str, Any]:
    """Write the rows of a part as shards, and return the entries of these shards.

    Nothing is left in the store that the answer does not name, unless the process is killed.

    Args:
        plan: The plan.
        batches: Rows as they arrive.
        attempt: The attempt at the task.
        on_rows: Called with the rows to store, in order, and their split.

    Raises:
        SchemaError: A value cannot be stored; the message names part, column and row.
        StoreError: The store failed for longer than its retries.
        Otherwise: As for `InputRows.to_store`.
    """
    rows = plan.input.to_store(batches, plan.input.where(attempt), plan.output.transform_schema)
    with TaskWriter(plan, attempt) as writer:
        for batch in rows:
            for split, part in by_split(batch, plan.input.partition_by):
                if on_rows is not None:
                    on_rows(split, part)
                writer.write_batch(split, part)
        return writer.finish()


class TaskWriter:
    """A writer of one attempt's rows into the shards of their splits; used by one thread, in a `with` block.

    If the block raises, the shards are deleted, and the message of a `SchemaError` names the part.
    """

    def __init__(self, plan: WritePlan, attempt: Attempt) -> None:
        """Create the writer; nothing is stored yet."""
        self._plan = plan
        self._attempt = attempt
        self._table, self._schema = plan.output.table, plan.output.schema
        self._uploaders: dict[str | None, ShardUploader] = {}
        self._open = ExitStack()
        driver_syncs = plan.disk is not None and plan.store.disk() == plan.disk
        self._uploads = replace(plan.uploads, is_synced=False) if driver_syncs else plan.uploads
        self._rows = 0
        self._split_rows: dict[str | None, int] = {}

    def write_batch(self, split: str | None, batch: pa.RecordBatch) -> None:
        """Write all rows of a batch to a split.

        Raises:
            SchemaError: A value cannot be stored, or the split cannot name a folder.
        """
        if batch.num_rows == 0:
            return
        if self._schema is None:
            self._table = self._plan.output.table_of(batch.schema)
            self._schema = Schema.from_columns(self._table.encodings)
        uploader = self._uploader(split, self._schema)
        with _naming_origin(batch, first_row=self._rows):
            if self._table is not None:
                prepared = self._table.prepare(batch, first_row=self._rows)
            else:
                prepared = batch.select(list(self._schema.names))
        with _naming_origin(batch, first_row=self._split_rows.get(split, 0)):
            uploader.write_batch(prepared)
        self._rows += batch.num_rows
        self._split_rows[split] = self._split_rows.get(split, 0) + batch.num_rows

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample, a mapping of Python values."""
        if self._schema is None:
            raise SchemaError("single samples need `columns`")
        self._uploader(None, self._schema).write(sample)
        self._rows += 1

    def finish(self) -> dict[str, Any]:
        """Return the task's answer (JSON), once every shard is in the store; durable unless `is_synced` is false.

        Raises:
            SchemaError: Rows were lost on the way.
            StoreError: A shard cannot be stored.
        """
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
        if self._plan.output.schema is None and self._table is not None:
            answer |= {"encodings": self._table.encodings, "logical": self._table.logical}
        return answer

    def __enter__(self) -> "TaskWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)
        where = self._plan.input.where(self._attempt)
        if isinstance(error, SchemaError) and not error.message.startswith(where):
            # The sample numbers of its message count from the start of the part.
            raise SchemaError(f"{where}: {error.message}", **error.facts) from error

    def _uploader(self, split: str | None, schema: Schema) -> ShardUploader:
        uploader = self._uploaders.get(split)
        if uploader is None:
            plan, column = self._plan, self._plan.input.partition_by
            # As soon as an unusable split is seen; publishing would refuse it too late.
            if split is not None and not _SPLIT_NAME.fullmatch(split):
                raise SchemaError(
                    f"`partition_by` column {column!r} holds {split[:80]!r}, which cannot be the folder of a split: "
                    "expected 1 to 128 letters, digits and . _ = -, beginning with a letter or digit",
                    column=column,
                )
            if split is not None and len(self._uploaders) >= _MAX_SPLITS:
                raise SchemaError(
                    f"`partition_by` column {column!r} has more than {_MAX_SPLITS} values in one task; it is meant for "
                    "splits such as train and validation",
                    column=column,
                )
            uploader = self._open.enter_context(
                plan.uploader(schema, split, self._attempt.name, uploads=self._uploads, spare=_SPARE)
            )
            self._uploaders[split] = uploader
        return uploader


@contextmanager
def _naming_origin(batch: pa.RecordBatch, *, first_row: int) -> Iterator[None]:
    """Add to errors of a row the name of the file that it comes from, if the batch has these names.

    Args:
        batch: the rows.
        first_row: number that errors of the block give to the first row.
    """
    try:
        yield
    except SchemaError as error:
        place = error.facts.get("row", -1) - first_row if ORIGIN in batch.schema.names else -1
        if not 0 <= place < batch.num_rows:
            raise
        path = batch.column(ORIGIN)[place].as_py()
        raise SchemaError(f"{path}: {error.message}", **{**error.facts, "path": path}) from error


def by_split(batch: pa.RecordBatch, column: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of each split, by the values of the partition column, in order of first appearance.

    Raises:
        SchemaError: There is no such column of texts, or it has a null.
    """
    if column is None or batch.num_rows == 0:
        yield None, batch
        return
    if column not in batch.schema.names:
        raise SchemaError(
            f"`partition_by` names {column!r}, `transform` gave {', '.join(batch.schema.names)}", column=column
        )
    values = batch.column(column)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise SchemaError(f"`partition_by` column {column!r} must hold text, found {values.type}", column=column)
    if values.null_count:
        raise SchemaError(
            f"`partition_by` column {column!r} has a null, so the row belongs to no split: fill it first", column=column
        )
    distinct = pc.unique(values).to_pylist()
    for value in distinct:
        yield value, batch if len(distinct) == 1 else batch.filter(pc.equal(values, value))
