"""The Parquet parts that tasks write: the part and digest of each image, and the joining of small parts."""

import base64
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.catalog.sidecars import ipc_file
from smalti.spark.prepared.rows import labels_in, read_part
from smalti.spark.prepared.store import part_writer, write_part
from smalti.spark.prepared.table import FILES, PreparedPart, PreparedTable
from smalti.spark.tasks import Answers, Attempt, TaskFunction
from smalti.storage import Store

ROW = pa.schema([FILES.field(name) for name in ("path", "digest", "part", "reason")])
"""The result for one file: digest and part of its image, or the reason why it has none."""
_SMALL_ROWS = 32  # a part with fewer rows in use, a quarter of a full one, is small
_MAX_SMALL_PARTS = 8  # more small parts than this are copied into one


def recording_writer(store: Store) -> TaskFunction:
    """Return the work of a task: that of `part_writer`, with the digests of the images in its answer."""
    inner = part_writer(store)

    def work(batches: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
        digests: list[dict[str, str]] = []

        def recorded() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                digests.extend(digests_of(batch))
                yield batch

        answer = inner(recorded(), attempt)
        table = pa.Table.from_pylist(digests, pa.schema(list(ROW)[:2]))
        return {**answer, "digests": base64.b64encode(ipc_file(table)).decode()}

    return work


def digests_of(batch: pa.RecordBatch) -> Iterator[dict[str, str]]:
    """Yield path and sha256 of the image, of each row that has an image."""
    for path, image in zip(batch.column("path").to_pylist(), batch.column("image"), strict=True):
        if image.is_valid:
            yield {"path": path, "digest": hashlib.sha256(image.as_buffer()).hexdigest()}


def rows_written(answers: Answers, folder: str) -> tuple[pa.Table, dict[str, PreparedPart]]:
    """Return the results for all files, as rows of `ROW`, and the parts in `folder` by key."""
    parts: dict[str, PreparedPart] = {}
    refused = [{"path": path, "reason": reason} for _, answer in answers for path, reason in answer["bad"]]
    tables = [pa.Table.from_pylist(refused, ROW)]
    for _, answer in answers:
        if (part := answer["part"]) is not None:
            key = f"{folder}/{part['name']}"
            parts[key] = PreparedPart(part["rows"], part["num_bytes"])
            digests = pa.ipc.open_file(pa.py_buffer(base64.b64decode(answer["digests"]))).read_all()
            same = pa.array([key] * digests.num_rows, pa.string())
            none = pa.nulls(digests.num_rows, pa.string())
            tables.append(digests.append_column("part", same).append_column("reason", none))
    return pa.concat_tables(tables), parts


def join_small(store: Store, table: PreparedTable, folder: str) -> PreparedTable:
    """Return the table with its small parts copied into one, if they are many; every update adds parts."""
    counted = table.good.column("part").value_counts().to_pylist()
    small = sorted(row["values"] for row in counted if row["counts"] < _SMALL_ROWS)
    if len(small) <= _MAX_SMALL_PARTS:
        return table
    key = f"{folder}/part-joined.parquet"
    batches = (batch for part in small for batch in read_part(store, part, labels_in(table, part)))
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as scratch:
        file = Path(scratch) / "part.parquet"
        joined = PreparedPart(write_part(file, batches), file.stat().st_size)
        store.put_file(key, file)
    parts = table.files.column("part")
    moved = pc.if_else(pc.is_in(parts, pa.array(small)), pa.scalar(key), parts)
    files = table.files.set_column(FILES.get_field_index("part"), FILES.field("part"), moved)
    kept = {part: facts for part, facts in table.parts.items() if part not in small}
    return replace(table, files=files, parts={**kept, key: joined})
