"""The Parquet parts: what tasks do to write them from prepared rows or copy them from other parts, and reading them."""

import base64
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.catalog.sidecars import ipc_file
from smalti.catalog.table.arrow import pack_shards, unpack_shards
from smalti.errors import StoreError, StoreNotFound
from smalti.format import FileInfo, Schema, ShardInfo
from smalti.format.hashing import new_hash
from smalti.format.index import PARQUET
from smalti.images.duplicates import HASH_BYTES, perceptual_hash
from smalti.regular_files import open_regular
from smalti.spark.prepare import SOURCE_SIZE
from smalti.spark.tasks import run_on_rows
from smalti.storage import Store
from smalti.writer.tables.attempts import Answers, Attempt, check_owner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema.from_columns({"path": "str", "image": "jpeg", "width": "int32", "height": "int32"})
ROW = pa.schema(
    [
        *((name, pa.string()) for name in ("path", "digest", "part", "reason")),
        *((name, pa.int32()) for name in SOURCE_SIZE),
        ("perceptual_hash", pa.binary(HASH_BYTES)),
    ]
)
"""The result for one file: digest, hash and part of its image, or why it has none; and its own sides in pixels."""
FULL_ROWS = 128
"""Rows of a full part."""
_ARROW = pa.schema([("path", pa.string()), ("image", pa.binary()), ("width", pa.int32()), ("height", pa.int32())])
_HASH = "xxh3_64"
_READ_ROWS = 256
_MAX_DRIVER_BYTES = 32 << 20  # copied on the driver, which is faster than a Spark job
_DRIVER_THREADS = 8
_MAX_TASKS = 4096


def write_prepared_rows(store: Store, write_id: str, rows: Iterator[pa.RecordBatch], attempt: Attempt) -> Any:
    """Do the work of a task: write the rows of `prepare_with_sizes` to one part; return the results for its files."""
    found: list[dict[str, Any]] = []
    bad: list[dict[str, str]] = []

    def good() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            is_good = pc.is_null(batch.column("error"))
            refused = batch.filter(pc.invert(is_good))
            names, reasons = (refused.column(name).to_pylist() for name in ("path", "error"))
            bad.extend({"path": path, "reason": reason} for path, reason in zip(names, reasons, strict=True))
            usable = batch.filter(is_good)
            images = [memoryview(image.as_buffer()).cast("B") for image in usable.column("image")]
            rest = usable.select(["path", *SOURCE_SIZE]).to_pylist()
            found.extend(
                {**row, "digest": hashlib.sha256(image).hexdigest(), "perceptual_hash": perceptual_hash(image)}
                for row, image in zip(rest, images, strict=True)
            )
            yield usable.select(_ARROW.names)

    part = write_part(store, f"{write_id}/part-{attempt.name}.parquet", good())
    good_rows = [{**row, "part": part.raw.basename} for row in found] if part is not None else []
    return _answer(part, pa.Table.from_pylist([*good_rows, *bad], ROW))


@dataclass(frozen=True)
class Copy:
    """Rows of a part that are copied, because others in it are not of the new version, or because it is small."""

    part: ShardInfo
    paths: Sequence[str]


def copy_parts(
    spark: "SparkSession | Callable[[], SparkSession]",
    store: Store,
    write_id: str,
    copies: Sequence[Copy],
) -> Answers:
    """Copy rows into new parts, without decoding; on executors if they are many. Small parts are joined.

    Returns:
        Answers as of `write_prepared_rows`, without digests.
    """
    if not copies:
        return []
    rows: list[dict[str, Any]] = []
    before = 0
    for copy in copies:
        rows.append({"place": before // FULL_ROWS, "part": copy.part.raw.basename, "paths": json.dumps(copy.paths)})
        before += len(copy.paths)
    num_tasks = min(rows[-1]["place"] + 1, _MAX_TASKS)
    work = functools.partial(_copy_rows, store, write_id)
    if sum(copy.part.raw.num_bytes for copy in copies) > _MAX_DRIVER_BYTES:
        columns = "place int, part string, paths string"
        return run_on_rows(spark, rows, columns, work, num_tasks=num_tasks, store=store)

    def run(task: int) -> tuple[Attempt, dict[str, Any]]:
        own = pa.RecordBatch.from_pylist([row for row in rows if row["place"] == task])
        attempt = Attempt.new(task)
        return attempt, work(iter([own]), attempt)

    with ThreadPoolExecutor(_DRIVER_THREADS, thread_name_prefix="smalti-copy") as pool:
        return list(pool.map(run, sorted({row["place"] for row in rows})))


def _copy_rows(store: Store, write_id: str, jobs: Iterator[pa.RecordBatch], attempt: Attempt) -> dict[str, Any]:
    copied: list[str] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for job in (job for batch in jobs for job in batch.to_pylist()):
            for batch in read_part(store, job["part"], json.loads(job["paths"])):
                copied.extend(batch.column("path").to_pylist())
                yield batch

    part = write_part(store, f"{write_id}/part-copy-{attempt.name}.parquet", rows())
    return _answer(part, pa.table({"path": pa.array(copied, pa.string())}))


def _answer(part: ShardInfo | None, files: pa.Table) -> dict[str, Any]:
    parts = pack_shards([part] if part is not None else [])
    return {"parts": parts, "files": base64.b64encode(ipc_file(files)).decode()}


def parts_of(answers: Answers) -> list[ShardInfo]:
    """Return the parts that tasks wrote.

    Raises:
        SmaltiError: An answer has the part of another attempt.
    """
    parts = []
    for attempt, answer in answers:
        for part in unpack_shards(answer["parts"], where="the answer of a task"):
            check_owner(part.raw.basename, f"-{attempt.name}.parquet", attempt)
            parts.append(part)
    return parts


def files_of(answers: Answers) -> pa.Table:
    """Return the results for all files."""
    texts = (base64.b64decode(answer["files"]) for _, answer in answers)
    tables = [pa.ipc.open_file(pa.py_buffer(text)).read_all() for text in texts]
    return pa.concat_tables(tables) if tables else ROW.empty_table()


def write_part(store: Store, key: str, batches: Iterable[pa.RecordBatch]) -> ShardInfo | None:
    """Store rows as one Parquet file; return None if there are none.

    Raises:
        StoreError: It cannot be stored.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        file, rows = Path(folder) / "part.parquet", 0
        with pq.ParquetWriter(file, _ARROW, compression={"path": "ZSTD", "image": "NONE"}) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.write_batch(batch)
                    rows += batch.num_rows
        if not rows:
            return None
        hasher, num_bytes = new_hash(_HASH), file.stat().st_size
        with open_regular(file) as opened:
            while piece := opened.read(1 << 20):
                hasher.update(piece)
        store.put_file(key, file)
        if (stored := store.size(key)) != num_bytes:
            raise StoreError(f"{store.locate(key)}: {num_bytes} bytes were put, {stored} are there; try again")
    info = FileInfo(key, num_bytes, {_HASH: hasher.hexdigest()})
    return ShardInfo(SCHEMA, rows, info, hash_names=(_HASH,), format=PARQUET)


def read_part(store: Store, part: str, paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these paths in one part.

    Raises:
        StoreNotFound: The part is gone.
    """
    wanted = pa.array(list(paths), pa.string())
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        file = store.local_path(part)
        if file is None:
            file = Path(folder) / "part.parquet"
            with file.open("wb") as out:
                store.fetch(part, out)
        elif not file.is_file():
            raise StoreNotFound(f"{file} is gone, or on another machine; use storage that all workers share", key=part)
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_READ_ROWS):
            found = batch.filter(pc.is_in(batch.column("path"), wanted))
            if found.num_rows:
                yield found
