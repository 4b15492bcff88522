"""Reading rows of a `PreparedTable`: on Spark's executors, or the first few of them here."""

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

Wanted = Mapping[str, tuple[int, str]]
"""Path to label and split."""


def read_rows(
    spark: "SparkSession",
    table: PreparedTable,
    *,
    only: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> "DataFrame":
    """The rows of the table, or of the files with these paths alone; the columns of `prepare_images` but `error`.

    Raises, when it is evaluated:
        StoreNotFound: a part is gone, because two newer tables were made since or somebody deleted it.
    """
    from pyspark.sql.types import StructType

    files = table.good
    if only is not None:
        files = files.filter(pc.is_in(files.column("path"), pa.array(sorted(only), pa.string())))
    places = pc.rank(files.column("part"), sort_keys="ascending", tiebreaker="dense")
    wanted = files.select(["part", "path", "label", "split"]).add_column(0, "place", places.cast(pa.int64()))
    count = max(1, min(len(pc.unique(places)), _MAX_PARTITIONS))
    schema = StructType([field for field in prepared_schema("fail").fields if field.name != "error"])
    frame = make_frame(spark, for_spark(spark, wanted), "place long, part string, path string, label int, split string")
    frame = frame.repartitionByRange(count, "place").sortWithinPartitions("place")
    return map_in_arrow(frame, _reader(open_store(table.url, storage_options)), schema)


def first_rows(
    table: PreparedTable, count: int, *, storage_options: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """At most `count` rows of the table, mixed over classes; read here, without Spark.

    Raises:
        StoreNotFound: as for `read_rows`.
    """
    store = open_store(table.url, storage_options)
    batches = (batch for part in sorted(table.parts) for batch in read_part(store, part, wanted_in(table, part)))
    return list(islice((row for batch in batches for row in batch.to_pylist()), count))


def wanted_in(table: PreparedTable, part: str) -> Wanted:
    """What the table takes from a part."""
    files = table.good.filter(pc.equal(table.good.column("part"), part))
    columns = [files.column(name).to_pylist() for name in ("path", "label", "split")]
    return {path: (label, split) for path, label, split in zip(*columns, strict=True)}


def _reader(store: Store) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task does: the rows that its own rows name."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in batch.to_pylist())
        for part, wanted in _by_part(rows):
            yield from read_part(store, part, wanted)

    return task


def _by_part(rows: Iterator[dict[str, Any]]) -> Iterator[tuple[str, Wanted]]:
    for part, files in groupby(rows, key=lambda row: row["part"]):
        yield str(part), {row["path"]: (row["label"], row["split"]) for row in files}


def read_part(store: Store, part: str, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of these paths in one Parquet file, with the labels and splits given here.

    Raises:
        StoreNotFound: it is gone.
    """
    paths = pa.array(list(wanted), pa.string())
    with tempfile.TemporaryDirectory(prefix="smalti-prepared-") as folder:
        for batch in pq.ParquetFile(local_part(store, part, Path(folder))).iter_batches(batch_size=_READ_ROWS):
            found = batch.filter(pc.is_in(batch.column("path"), paths))
            if found.num_rows:
                yield _relabelled(found, wanted)


def _relabelled(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    labels, splits = zip(*(wanted[path] for path in batch.column("path").to_pylist()), strict=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns |= {"label": pa.array(labels, pa.int32()), "split": pa.array(splits, pa.string())}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
