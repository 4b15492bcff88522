"""Reading the rows of prepared images: on Spark's executors, or the first few in this process."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from smalti.spark.prepare import for_spark, prepared_schema
from smalti.spark.prepared.parts import read_part
from smalti.spark.prepared.table import FILES, PreparedTable, load_prepared
from smalti.spark.tasks import make_frame, map_in_arrow
from smalti.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAX_PARTITIONS = 4096
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

    Columns are those of `prepare_images` except `error`. There is a partition for each Parquet file, and rows have the
    same order everywhere. Files are read through Smalti's stores, so that Spark needs no connector.

    Raises:
        StoreNotFound: Nothing was prepared there. When evaluated: a vacuum has removed a file of the version.
        Otherwise: As for `load_prepared`.
    """
    return read_rows(spark, load_prepared(path, version=version, tag=tag, storage_options=storage_options))


def read_rows(spark: "SparkSession", table: PreparedTable, *, only: Collection[str] | None = None) -> "DataFrame":
    """Return the rows of a version, or only of the files with these paths; lazy. Columns as of `read_prepared`."""
    from pyspark.sql.types import StructType

    files = table.good
    if only is not None:
        files = files.filter(pc.is_in(files.column("path"), pa.array(sorted(only), pa.string())))
    order = pa.array([part.raw.basename for part in table.parts], pa.string())
    places = pc.index_in(files.column("part"), order).cast(pa.int64())
    inventory = files.select(["part", "path", *_FROM_FILES]).add_column(0, "place", places)
    count = max(1, min(len(pc.unique(places)), _MAX_PARTITIONS))
    schema = StructType([field for field in prepared_schema("fail").fields if field.name != "error"])
    columns = "place long, part string, path string, label int, class_name string, split string"
    frame = make_frame(spark, for_spark(spark, inventory), columns)
    frame = frame.repartitionByRange(count, "place").sortWithinPartitions("place")
    return map_in_arrow(frame, _reader(table.store), schema)


def first_rows(table: PreparedTable, count: int) -> list[dict[str, Any]]:
    """Return at most `count` rows, mixed over classes; they are read in this process, without Spark.

    Raises:
        StoreNotFound: A part is gone.
    """
    batches = (batch for part in table.parts for batch in read_labelled(table.store, part.raw.basename, table.good))
    return list(islice((row for batch in batches for row in batch.to_pylist()), count))


def read_images(table: PreparedTable, paths: Collection[str]) -> dict[str, bytes]:
    """Return the images of a few files by path; each part that has some is read as a whole, in this process.

    Raises:
        StoreNotFound: A part is gone.
    """
    wanted = table.good.filter(pc.is_in(table.good.column("path"), pa.array(list(paths), pa.string())))
    found: dict[str, bytes] = {}
    for part in pc.unique(wanted.column("part")).to_pylist():
        names = wanted.filter(pc.equal(wanted.column("part"), part)).column("path").to_pylist()
        for batch in read_part(table.store, part, names):
            found |= zip(batch.column("path").to_pylist(), batch.column("image").to_pylist(), strict=True)
    return found


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
