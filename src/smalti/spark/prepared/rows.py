"""Reading the rows of prepared images: on Spark's executors, or the first few in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.spark.prepare import for_spark, prepared_schema
from smalti.spark.prepared.parts import read_part
from smalti.spark.prepared.table import FILES, PreparedTable, load_prepared
from smalti.spark.tasks import LocalFrame, make_frame, map_in_arrow
from smalti.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MAX_PARTITIONS = 4096
_PARTITION_BYTES = 16 << 20  # of Parquet files: a task for each file of half a megabyte would cost more than its rows
_MAX_LOCAL_ROWS, _MAX_LOCAL_BYTES = 1024, 128 << 20  # rows, and bytes of their Parquet files
_FROM_FILES = ("label", "class_name", "split")
_COLUMNS = ("image", "label", "class_name", "width", "height", "split", "path")


def read_prepared(
    spark: "SparkSession",
    path: str | Path,
    *,
    version: int | None = None,
    tag: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """Return the prepared images at a path of `update_prepared` as a DataFrame, of the newest version by default; lazy.

    Columns are those of `prepare_images` except `error`. Parquet files are read in partitions of about 16 MB, and
    rows have the same order everywhere. Files are read through Smalti's stores, so that Spark needs no connector.

    Raises:
        StoreNotFound: Nothing was prepared there. When evaluated: a vacuum has removed a file of the version.
        Otherwise: As for `load_prepared`.
    """
    return read_rows(spark, load_prepared(path, version=version, tag=tag, storage_options=storage_options))


def read_rows(spark: "SparkSession", table: PreparedTable, *, only: Collection[str] | None = None) -> "DataFrame":
    """Return the rows of a version, or only of the files with these paths; lazy. Columns as of `read_prepared`."""
    files = table.good if only is None else _chosen(table, only)
    order = pa.array([part.raw.basename for part in table.parts], pa.string())
    places = pc.index_in(files.column("part"), order).cast(pa.int64())
    groups, count = _grouped([part.raw.num_bytes for part in table.parts], places)
    inventory = files.select(["part", "path", *_FROM_FILES]).add_column(0, "place", places)
    inventory = inventory.add_column(0, "task", groups)
    columns = "task long, place long, part string, path string, label int, class_name string, split string"
    frame = make_frame(spark, for_spark(spark, inventory), columns)
    frame = frame.repartitionByRange(count, "task").sortWithinPartitions("place")
    return map_in_arrow(frame, _reader(table.store), _schema())


def few_rows(table: PreparedTable, paths: Collection[str]) -> LocalFrame | None:
    """Return the rows of these files as this process reads them; None if that takes longer than starting Spark."""
    files = _chosen(table, paths)
    names = set(files.column("part").to_pylist())
    parts = [part for part in table.parts if part.raw.basename in names]
    if files.num_rows > _MAX_LOCAL_ROWS or sum(part.raw.num_bytes for part in parts) > _MAX_LOCAL_BYTES:
        return None
    return LocalFrame(
        _schema(), (rows for part in parts for rows in read_labelled(table.store, part.raw.basename, files))
    )


def _chosen(table: PreparedTable, paths: Collection[str]) -> pa.Table:
    return table.good.filter(pc.is_in(table.good.column("path"), pa.array(sorted(paths), pa.string())))


def _schema() -> "StructType":
    from pyspark.sql.types import StructType

    return StructType([field for field in prepared_schema("fail").fields if field.name != "error"])


def _grouped(sizes: Sequence[int], places: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """Return which task reads each row, by the place of its part among all parts, and the number of tasks."""
    used = sorted(place for place in pc.unique(places).to_pylist() if place is not None)
    limit = max(_PARTITION_BYTES, -(-sum(sizes[place] for place in used) // _MAX_PARTITIONS))
    before, tasks = 0, dict[int, int]()
    for place in used:
        tasks[place] = before // limit
        before += sizes[place]
    number = {task: position for position, task in enumerate(sorted(set(tasks.values())))}
    by_place = pa.array([number.get(tasks.get(place, 0), 0) for place in range(len(sizes))], pa.int64())
    return pc.take(by_place, places), max(1, len(number))


def first_rows(table: PreparedTable, count: int) -> list[dict[str, Any]]:
    """Return at most `count` rows, mixed over classes; they are read in this process, without Spark.

    Raises:
        StoreNotFound: A part is gone.
    """
    batches = (batch for part in table.parts for batch in read_labelled(table.store, part.raw.basename, table.good))
    return list(islice((row for batch in batches for row in batch.to_pylist()), count))


def read_labelled(store: Store, part: str, files: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part that are of these files, with their labels; `files` may have files of other parts."""
    labels = files.filter(pc.equal(files.column("part"), part)).select(["path", *_FROM_FILES]).combine_chunks()
    for batch in read_part(store, part, labels.column("path").to_pylist()):
        found = labels.take(pc.index_in(batch.column("path"), labels.column("path").combine_chunks()))
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns |= {name: found.column(name).combine_chunks() for name in _FROM_FILES}
        yield pa.RecordBatch.from_arrays([columns[name] for name in _COLUMNS], names=list(_COLUMNS))


def _reader(store: Store) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a task runs: it yields the rows that its input names."""
    schema = pa.schema([FILES.field(name) for name in ("part", "path", *_FROM_FILES)])

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for part, files in groupby(rows, key=lambda row: row["part"]):
            yield from read_labelled(store, part, pa.Table.from_pylist(list(files), schema))

    return task
