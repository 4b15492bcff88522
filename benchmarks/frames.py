"""The Parquet files that every writer of DataFrames begins with, and the session that all of them run in."""

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import ROOT
from benchmarks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
_FILE_BYTES = 80_000_000  # about as much as a shard; each file is one partition
_GROUP_BYTES = 8_000_000
_STUBS = Path(__file__).parent / "stubs"


def source_folder(task: Task) -> Path:
    """Where the files lie; the same for all who write this workload."""
    return task.work / "sets" / f"frame-{task.workload}-{task.samples}"


def write_source(task: Task) -> None:
    """Uncompressed files, an even number, all of about the same size; those of an earlier run are kept."""
    folder = source_folder(task)
    if folder.exists():
        return
    pairs = max(1, round(task.data.num_bytes / _FILE_BYTES / 2))
    per_file = -(-task.samples // (2 * pairs))
    per_group = max(1, task.samples * _GROUP_BYTES // task.data.num_bytes)
    building = folder.with_suffix(".tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    rows = _rows(task)
    for number in range(2 * pairs):
        with _writer(building / f"part-{number:02d}.parquet", task.workload) as writer:
            left = per_file
            while batch := list(islice(rows, min(left, per_group))):
                writer.write_batch(_batch(batch, task.workload))
                left -= len(batch)
    building.rename(folder)


def open_session(folder: Path) -> "SparkSession":
    """A session at Spark's defaults, but quiet; its scratch lies in `folder`. Each file becomes one partition."""
    from smalti.spark import SparkOptions, build_session
    from smalti.spark.session import ARROW_BATCHES

    paths = [str(ROOT), str(_STUBS), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    conf = {"spark.local.dir": str(folder)}
    session = build_session(SparkOptions(master=MASTER, driver_memory="4g", conf=conf))
    for name in ARROW_BATCHES:  # a choice of ours, which the others have no part in
        session.conf.unset(name)
    return session


def open_frame(session: "SparkSession", task: Task) -> "DataFrame":
    """The rows of the task."""
    return session.read.parquet(str(source_folder(task)))


def is_of_files(task: Task) -> bool:
    """Whether the rows are files of a folder, not of Parquet."""
    return task.options.get("source") == "files"


def write_files(task: Task) -> None:
    """A file for each photo, in a folder for each label; those of an earlier run are kept."""
    folder = files_folder(task)
    if folder.exists():
        return
    building = folder.with_suffix(".tmp")
    shutil.rmtree(building, ignore_errors=True)
    for row in _rows(task):
        file = building / f"class-{row['label']}" / row["name"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row["image"])
    building.rename(folder)


def files_folder(task: Task) -> Path:
    """Where these files lie."""
    return task.work / "sets" / f"files-{task.workload}-{task.samples}"


def open_files(session: "SparkSession", task: Task) -> "DataFrame":
    """The files as Spark reads them: image, folder and name. Nothing is cached."""
    from pyspark.sql import functions

    files = session.read.format("binaryFile").option("recursiveFileLookup", "true").load(str(files_folder(task)))
    parts = functions.split("path", "/")
    return files.select(
        functions.col("content").alias("image"),
        functions.element_at(parts, -2).alias("class_name"),
        functions.element_at(parts, -1).alias("name"),
    )


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    return iter(task.data.rows)


def _schema(workload: str) -> "pa.Schema":
    import pyarrow as pa

    if workload == "rows":
        fields = [("id", pa.int64()), ("label", pa.int32()), ("name", pa.string()), ("data", pa.binary())]
    else:
        fields = [("image", pa.binary()), ("label", pa.int64()), ("name", pa.string())]
    return pa.schema(fields)


def _writer(path: Path, workload: str) -> "ParquetWriter":
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(path, _schema(workload), compression="none", use_dictionary=False, write_statistics=False)


def _batch(rows: list[dict[str, Any]], workload: str) -> "pa.RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(rows, _schema(workload))
