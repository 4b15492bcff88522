"""Reading the rows of a `PreparedTable`: on Spark's executors, or the first few in this process."""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from smalti.spark.prepare import for_spark, prepared_schema
from smalti.spark.prepared.store import local_part
from smalti.spark.prepared.table import PreparedTable
from smalti.spark.tasks import make_frame, map_in_arrow
from smalti.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ROWS = 256
_MAX_PARTITIONS = 4096

LabelsByPath = Mapping[str, tuple[int, str]]
"""Label and split of files, by path."""


def read_rows(
    spark: "SparkSession",
    table: PreparedTable,
    *,
    only: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """Return the rows of the table, or only of the files with these paths; lazy.

    They have the columns of `prepare_images` except `error`.

    Raises:
        StoreNotFound: When evaluated: a part is gone, because two newer tables were made since, or it was deleted.
    """
    from pyspark.sql.types import StructType

    files = table.good
    if only is not None:
        files = files.filter(pc.is_in(files.column("path"), pa.array(sorted(only), pa.string())))
    places = pc.rank(files.column("part"), sort_keys="ascending", tiebreaker="dense")
    inventory = files.select(["part", "path", "label", "split"]).add_column(0, "place", places.cast(pa.int64()))
    count = max(1, min(len(pc.unique(places)), _MAX_PARTITIONS))
    schema = StructType([field for field in prepared_schema("fail").fields if field.name != "error"])
    frame = make_frame(
        spark, for_spark(spark, inventory), "place long, part string, path string, label int, split string"
    )
    frame = frame.repartitionByRange(count, "place").sortWithinPartitions("place")
    return map_in_arrow(frame, _reader(open_store(table.url, storage_options)), schema)


def first_rows(
    table: PreparedTable, count: int, *, storage_options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return at most `count` rows of the table, mixed over classes; they are read in this process, without Spark.

    Raises:
        StoreNotFound: As for `read_rows`.
    """
    store = open_store(table.url, storage_options)
    batches = (batch for part in sorted(table.parts) for batch in read_part(store, part, labels_in(table, part)))
    return list(islice((row for batch in batches for row in batch.to_pylist()), count))


def labels_in(table: PreparedTable, part: str) -> LabelsByPath:
    """Return label and split of the files whose rows the table takes from a part."""
    files = table.good.filter(pc.equal(table.good.column("part"), part))
    columns = [files.column(name).to_pylist() for name in ("path", "label", "split")]
    return {path: (label, split) for path, label, split in zip(*columns, strict=True)}


def _reader(store: Store) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a task runs: it yields the rows that its input names."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for part, labels in _by_part(rows):
            yield from read_part(store, part, labels)

    return task


def _by_part(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[str, LabelsByPath]]:
    for part, files in groupby(rows, key=lambda row: row["part"]):
        yield str(part), {row["path"]: (row["label"], row["split"]) for row in files}


def read_part(store: Store, part: str, labels: LabelsByPath) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these paths in one Parquet file, with the labels and splits of `labels`.

    Raises:
        StoreNotFound: The file is gone.
    """
    paths = pa.array(list(labels), pa.string())
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        for batch in pq.ParquetFile(local_part(store, part, Path(folder))).iter_batches(batch_size=_READ_ROWS):
            found = batch.filter(pc.is_in(batch.column("path"), paths))
            if found.num_rows:
                yield _relabelled(found, labels)


def _relabelled(batch: pa.RecordBatch, labels: LabelsByPath) -> pa.RecordBatch:
    new_labels, splits = zip(*(labels[path] for path in batch.column("path").to_pylist()), strict=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= {"label": pa.array(new_labels, pa.int32()), "split": pa.array(splits, pa.string())}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
