"""`df.writeStream.format("mds")`: a version for each micro-batch that has rows, exactly once."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", minversion="4.0")

from pyspark.errors import PySparkException
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from smalti.catalog import history, load_manifest
from smalti.errors import MissingDependency
from smalti.spark import dataframe_to_mds, register
from smalti.spark.mds.writing import ShardSetStreamWriter
from smalti.storage import open_store
from tests.spark.writing.test_convert import files, read

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def registered(spark):
    register(spark)


@pytest.fixture
def source(tmp_path):
    """Return a folder of three files of ten rows."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(3):
        add_file(folder, number)
    return folder


def add_file(folder, number):
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), path)
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))  # Spark reads the oldest file first


def rows_of(spark, source):
    """Return a streaming frame with a micro-batch for each file."""
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))


def stream(frame, out, **options):
    """Write all that there is, and end."""
    query = (
        frame.writeStream.format("mds")
        .options(checkpointLocation=f"{out}.checkpoint", compression="none", **options)
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def ids(out):
    return sorted(int(sample["id"]) for sample in read(out))


def operations(out):
    return [info.operation for info in history(open_store(out))]


def test_every_micro_batch_is_a_version_and_a_restarted_query_goes_on(spark, source, tmp_path):
    out = tmp_path / "out"
    stream(rows_of(spark, source), out)
    assert ids(out) == list(range(30))
    assert operations(out) == ["append"] * 3
    add_file(source, 3)
    stream(rows_of(spark, source), out)
    assert ids(out) == list(range(40))
    assert operations(out) == ["append"] * 4


def test_a_micro_batch_that_spark_repeats_is_not_published_again(spark, source, tmp_path):
    """Spark repeats a batch whose end it has not noted, as after a kill between the sink's commit and its own."""
    out = tmp_path / "out"
    stream(rows_of(spark, source), out)
    commits = Path(f"{out}.checkpoint") / "commits"
    for path in (commits / "2", commits / ".2.crc"):
        path.unlink()
    stream(rows_of(spark, source), out)
    assert (commits / "2").exists()
    assert ids(out) == list(range(30))
    assert operations(out) == ["append"] * 3


def test_a_micro_batch_without_rows_makes_no_version(spark, source, tmp_path):
    stream(rows_of(spark, source).where("id between 10 and 14"), tmp_path / "out", compact_every=1)
    assert ids(tmp_path / "out") == [10, 11, 12, 13, 14]
    assert operations(tmp_path / "out") == ["append"]


def test_small_shards_are_merged_after_every_n_batches(spark, source, tmp_path):
    add_file(source, 3)
    stream(rows_of(spark, source), tmp_path / "out", compact_every=2)
    assert ids(tmp_path / "out") == list(range(40))
    assert operations(tmp_path / "out") == ["append", "append", "compact", "append", "append", "compact"]
    assert [info.rows for info in history(open_store(tmp_path / "out"))] == [10, 20, 20, 30, 40, 40]
    assert len(load_manifest(open_store(tmp_path / "out")).shards) == 1


def test_two_queries_append_to_one_set_and_each_row_counts_once(spark, source, tmp_path):
    frame, out = rows_of(spark, source), tmp_path / "out"
    queries = [
        frame.selectExpr(f"id + {shift} as id")
        .writeStream.format("mds")
        .options(checkpointLocation=f"{out}.{shift}", compression="none")
        .trigger(availableNow=True)
        .start(str(out))
        for shift in (0, 100)
    ]
    for query in queries:
        query.awaitTermination()
    assert ids(out) == [*range(30), *range(100, 130)]


def test_rows_that_cannot_be_stored_end_the_query_and_the_versions_before_stay(spark, source, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(PySparkException, match="column 'id'"):
        stream(rows_of(spark, source).selectExpr("if(id = 15, null, id) as id"), out)
    assert ids(out) == list(range(10))
    assert all("/shard" in name for name in files(out))
    assert len(files(out)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compact_every": "often"}, "option `compact_every`: expected a whole number, found 'often'"),
        ({"compact_every": "-1"}, "compact_every"),
        ({"write_id": "monday"}, "no option `write_id` here: each micro-batch has one of its own"),
        ({"if_exists": "error"}, "no option `if_exists` here: a stream appends"),
        ({"target_shards": "4"}, "no option `target_shards` here"),
    ],
)
def test_options_that_make_no_sense_for_a_stream_are_refused_by_name(spark, source, tmp_path, options, message):
    with pytest.raises(PySparkException) as caught:
        stream(rows_of(spark, source), tmp_path / "out", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_output_mode_complete_is_refused_with_what_to_do(spark, source, tmp_path):
    counts = rows_of(spark, source).groupBy("id").count()
    query = (
        counts.writeStream.format("mds").outputMode("complete").option("checkpointLocation", tmp_path / "checkpoint")
    )
    with pytest.raises(PySparkException, match='the output mode is "complete"'):
        query.start(str(tmp_path / "out")).processAllAvailable()


def test_pyspark_without_arrow_batches_for_streams_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    with pytest.raises(MissingDependency, match=r"need PySpark 4\.1 or later, found 4\..* or call `smalti.spark"):
        ShardSetStreamWriter(StructType(), {"path": "/sets/a"}, overwrite=False)


def test_foreach_batch_with_dataframe_to_mds_counts_each_row_once_too(spark, source, tmp_path):
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def append(batch, number):
        dataframe_to_mds(batch, out, mode="append", write_id=f"photos-{number}", compression=None)

    for _ in range(2):
        query = rows_of(spark, source).writeStream.foreachBatch(append).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()
        for path in (checkpoint / "commits" / "2", checkpoint / "commits" / ".2.crc"):
            path.unlink(missing_ok=True)
    assert ids(out) == list(range(30))
    assert operations(out) == ["append"] * 3
