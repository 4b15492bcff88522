"""`df.write.format("mds")`: one version like that of `dataframe_to_mds`, published by the driver, or nothing at all."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", minversion="4.0")

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StringType, StructField, StructType

from smalti.catalog import history, load_manifest, verify
from smalti.catalog.retention.markers import MARKERS
from smalti.catalog.retention.vacuum import vacuum
from smalti.errors import ArgumentError, CatalogError, SchemaError
from smalti.spark import register
from smalti.spark.mds.options import EXPECTED, parse_options
from smalti.spark.mds.writing import ELSEWHERE, STREAM_OPTIONS, WRITE_OPTIONS, ShardSetWriter
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import open_store
from tests.spark.writing.test_convert import failing, files, read

pytestmark = pytest.mark.spark

FAILED = (PySparkException, Py4JJavaError)


@pytest.fixture(autouse=True)
def registered(spark):
    register(spark)


def save(frame, out, mode="append", **options):
    frame.write.format("mds").mode(mode).options(**options).save(str(out))


def rows_of(spark, begin=0, end=300, parts=3):
    return spark.range(begin, end, 1, parts).selectExpr("id", "cast(id % 7 as int) as label", "repeat(id, 20) as text")


def ids(out, split=None):
    return [int(sample["id"]) for sample in read(out, split)]


def shards_of(out):
    """Return the content of every shard of the newest version, in order."""
    return [(Path(out) / shard.stored.basename).read_bytes() for shard in load_manifest(open_store(out)).shards]


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {}),
        (
            {"compression": "zstd:3", "hashes": "sha1,xxh64", "size_limit": "2kb"},
            {"compression": "zstd:3", "hashes": ("sha1", "xxh64"), "size_limit": 2048},
        ),
        ({"compression": "none", "nulls": "mask"}, {"compression": None, "nulls": "mask"}),
        (
            {"columns": '{"id": "int64", "text": "str", "label": null}', "nulls": '{"label": {"default": 7}}'},
            {"columns": {"id": "int64", "text": "str", "label": None}, "nulls": {"label": {"default": 7}}},
        ),
        ({"partition_by": "split", "size_limit": "1kb"}, {"partition_by": "split", "size_limit": "1kb"}),
    ],
    ids=["defaults", "files", "nulls", "columns", "splits"],
)
def test_a_write_has_the_shards_and_the_digest_of_dataframe_to_mds(spark, tmp_path, options, same):
    frame = rows_of(spark)
    if "nulls" in options:
        frame = frame.selectExpr("id", "if(id % 5 = 0, null, label) as label", "text")
    if "partition_by" in options:
        frame = frame.selectExpr("*", "if(id % 3 = 0, 'test', 'train') as split")
    save(frame, tmp_path / "source", **options)
    made = dataframe_to_mds(frame, tmp_path / "call", **same)
    found = load_manifest(open_store(tmp_path / "source"))
    assert (found.digest, found.rows, found.logical) == (made.digest, 300, made.logical)
    assert shards_of(tmp_path / "source") == shards_of(tmp_path / "call")
    assert verify(open_store(tmp_path / "source"), deep=True).ok


def test_append_makes_a_set_and_adds_to_it_and_overwrite_replaces_it(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none")
    save(rows_of(spark, 10, 15), tmp_path, compression="none")
    assert ids(tmp_path) == list(range(15))
    save(rows_of(spark, 20, 23), tmp_path, "overwrite", compression="none")
    assert ids(tmp_path) == [20, 21, 22]
    assert [info.operation for info in history(open_store(tmp_path))] == ["append", "append", "overwrite"]
    assert list(open_store(tmp_path).list(MARKERS)) == []


def test_if_exists_error_refuses_a_place_with_a_set_before_a_row_is_read(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none", if_exists="error")
    with pytest.raises(PySparkException, match=r"DatasetExists: .* already holds a data set"):
        save(failing(spark), tmp_path, if_exists="error")
    assert ids(tmp_path) == list(range(10))


def test_a_write_that_is_published_already_stores_and_publishes_nothing(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none", write_id="monday")
    before = sorted(tmp_path.rglob("*"))
    save(rows_of(spark, 10, 20), tmp_path, compression="none", write_id="monday")
    assert ids(tmp_path) == list(range(10))
    assert sorted(tmp_path.rglob("*")) == before


REFUSED = {
    "unknown": ({"compresion": "zstd"}, "no option `compresion`: did you mean `compression`"),
    "elsewhere": ({"shuffle_rows": "true"}, "no option `shuffle_rows` here: change the rows before they are written"),
    "size": ({"size_limit": "large"}, "'large' is not a byte count"),
    "json": ({"columns": "id"}, "option `columns`: expected a JSON object"),
    "compression": ({"compression": "lz77"}, "unknown compression 'lz77'"),
    "hashes": ({"hashes": "crc0"}, "crc0"),
    "nulls": ({"nulls": "drop"}, "drop"),
    "if_exists": ({"if_exists": "ignore"}, "option `if_exists`: it takes `error`"),
    "column": ({"columns": '{"label2": null}'}, "label2"),
    "encoding": ({"columns": '{"text": "int"}'}, "column 'text'"),
    "write_id": ({"write_id": "a/b"}, "write id 'a/b' is not usable"),
}


SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_options_that_make_no_sense_are_refused_by_name(tmp_path, options, message):
    with pytest.raises((SchemaError, ArgumentError, CatalogError)) as caught:
        ShardSetWriter(SCHEMA, {"path": str(tmp_path), **options}, overwrite=False)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_options_are_refused_before_a_row_is_read(spark, tmp_path):
    with pytest.raises(PySparkException, match=r"ArgumentError: .* no option `compresion`") as caught:
        save(failing(spark), tmp_path, compresion="zstd")
    assert "a row was read" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("known", [WRITE_OPTIONS, STREAM_OPTIONS], ids=["write", "stream"])
def test_every_option_says_what_it_takes_and_no_option_is_both_here_and_elsewhere(known):
    assert set(known.values()) <= set(EXPECTED)
    assert not set(known) & set(ELSEWHERE)
    assert parse_options({"path": "/x", "storage.key": "k", "Storage.config": '{"a": 1}'}, known, ELSEWHERE) == {
        "storage_options": {"key": "k", "config": {"a": 1}}
    }


def test_a_value_that_cannot_be_stored_is_named_and_the_version_before_stays_alone(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none")
    before = files(tmp_path)
    frame = rows_of(spark, 0, 300).selectExpr("id", "if(id = 250, null, label) as label", "text")
    with pytest.raises(FAILED, match="Spark partition 2: column 'label'"):
        save(frame, tmp_path, "overwrite", compression="none", size_limit="1kb")
    assert ids(tmp_path) == list(range(10))
    assert files(tmp_path) == before
    vacuum(tmp_path, older_than=0, dry_run=False, unsafe_ttl=True)
    assert list(open_store(tmp_path).list(MARKERS)) == []
    assert ids(tmp_path) == list(range(10))


def test_columns_of_the_set_are_checked_before_a_row_is_read(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path)
    with pytest.raises(PySparkException, match="cannot append to version 1") as caught:
        save(failing(spark), tmp_path)
    assert "a row was read" not in str(caught.value)


def test_no_rows_are_refused_where_they_would_replace_a_set(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none")
    with pytest.raises(FAILED, match="no rows"):
        save(rows_of(spark).where("id < 0"), tmp_path, "overwrite")
    assert ids(tmp_path) == list(range(10))


def test_a_task_that_is_tried_again_counts_once(spark, tmp_path):
    mark = tmp_path / "failed"

    def fail_once(batches):
        yield from batches
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails behind its rows")

    save(rows_of(spark).mapInArrow(fail_once, rows_of(spark).schema), tmp_path / "out", compression="none")
    assert mark.exists()
    assert ids(tmp_path / "out") == list(range(300))


def test_a_type_that_spark_does_not_send_to_python_sources_is_refused_with_the_cast_that_works(spark, tmp_path):
    frame = rows_of(spark).selectExpr("id", "interval '1' month as months")
    with pytest.raises(PySparkException, match=r"'months'.* cast it to interval month, then to int"):
        save(frame, tmp_path)
    cast = frame.selectExpr("id", "CAST(CAST(months AS INTERVAL MONTH) AS INT) as months")
    save(cast, tmp_path, compression="none")
    assert {int(sample["months"]) for sample in read(tmp_path)} == {1}


def test_a_frame_with_odd_column_names_keeps_them(spark, tmp_path):
    frame = spark.range(3).selectExpr("id as `a.b`", "id as `with ``ticks`", "id as `ünï`")
    save(frame, tmp_path, compression="none")
    assert list(read(tmp_path)[0]) == ["a.b", "with `ticks", "ünï"]


def test_sql_appends_to_a_view_and_overwrites_it(spark, tmp_path):
    save(rows_of(spark, 0, 10), tmp_path, compression="none")
    spark.sql(f"CREATE TEMPORARY VIEW numbers USING mds OPTIONS (path '{tmp_path}')")
    spark.sql("INSERT INTO numbers SELECT 10L, 3, 'ten'")
    assert ids(tmp_path) == list(range(11))
    spark.sql("INSERT OVERWRITE numbers SELECT 11L, 4, 'eleven'")
    assert ids(tmp_path) == [11]
