"""The options of `dataframe_to_mds`: packing, shuffles, transforms, repeated writes, progress."""

import re
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it

from smalti.catalog import load_manifest, verify
from smalti.catalog.retention.markers import MARKERS
from smalti.errors import DatasetExists, SchemaError, SmaltiError, StoreNotFound
from smalti.format import Shard
from smalti.spark.added_columns import add_columns
from smalti.spark.writing import dataframe
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import open_store
from smalti.writer.tables.plan import WriteOptions

pytestmark = pytest.mark.spark


def read(out: Path, name: str, split: str | None = None) -> list:
    """Return one column of every sample, in order, of an uncompressed set."""
    values = []
    for info in load_manifest(open_store(out)).select(split):
        shard = Shard.open(out / info.raw.basename, info)
        values += [shard[i][name] for i in range(len(shard))]
        shard.close()
    return values


def numbers(out: Path, name: str = "id", split: str | None = None) -> list[int]:
    return [int(value) for value in read(out, name, split)]


def failing(spark):
    """Return a frame whose evaluation fails, which proves that no row was read."""

    def fail(batches):
        raise RuntimeError("a row was read")
        yield

    return spark.range(10).mapInArrow(fail, "id long")


# ---------------------------------------------------------------- packing


def test_partitions_of_few_rows_make_one_shard_and_nothing_is_left_over(spark, tmp_path):
    frame = spark.range(0, 40, 1, 8).where("id in (3, 20, 39)")
    manifest = dataframe_to_mds(frame, tmp_path, compression=None)
    assert numbers(tmp_path) == [3, 20, 39]
    assert len(manifest.shards) == 1
    store = open_store(tmp_path)
    assert [item.key for item in store.list() if item.key.endswith(".mds")] == [manifest.shards[0].raw.basename]
    assert list(store.list(MARKERS)) == []
    report = verify(store, deep=True)
    assert report.problems == ()


def test_large_tails_are_joined_by_a_second_pass_of_tasks(spark, tmp_path, monkeypatch):
    monkeypatch.setattr("smalti.writer.tables.versions._MAX_DRIVER_BYTES", 0)
    manifest = dataframe_to_mds(spark.range(0, 50, 1, 5), tmp_path, compression=None, size_limit=512, hashes=())
    assert numbers(tmp_path) == list(range(50))
    assert [shard.samples for shard in manifest.shards] == [20, 20, 10]  # 343 bytes for samples of 12 bytes each
    assert verify(open_store(tmp_path), deep=True).problems == ()


# ---------------------------------------------------------------- order


def test_a_shuffle_depends_on_the_seed_and_not_on_the_partitions(spark, tmp_path):
    """The same rows in other partitions and another order give the same shards; another seed does not."""
    frame = spark.range(0, 300, 1, 2).withColumn("m", F.expr("map('k', id)")).withColumn("x", F.lit(None).cast("int"))
    again = frame.orderBy(F.desc("id")).repartition(5)
    options = {"compression": None, "columns": {"id": None, "m": "json"}, "target_shards": 3}
    for name, rows, seed in (("one", frame, True), ("two", again, 0), ("three", frame, 7)):
        dataframe_to_mds(rows, tmp_path / name, shuffle_rows=seed, **options)
    one, two, three = (numbers(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two != three
    assert sorted(one) == sorted(three) == list(range(300))
    ups = sum(a < b for a, b in pairwise(one))
    assert 110 < ups < 190, "in an order by chance, about half of the steps go up"


def test_target_shards_makes_as_many_shards_of_about_equal_size(spark, tmp_path):
    manifest = dataframe_to_mds(spark.range(0, 2000, 1, 2), tmp_path, target_shards=4, compression=None)
    sizes = [shard.samples for shard in manifest.shards]
    assert len(sizes) == 4
    assert all(400 < size < 600 for size in sizes)


# ---------------------------------------------------------------- transform


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    twice = pa.compute.multiply(batch["id"], 2)
    return pa.RecordBatch.from_pydict({"twice": twice, "text": twice.cast(pa.string())})


def test_the_columns_of_a_transform_are_learnt_from_the_first_rows(spark, tmp_path):
    manifest = dataframe_to_mds(spark.range(0, 50, 1, 3), tmp_path, transform=doubled, compression=None)
    assert manifest.schema.columns() == {"text": "str", "twice": "int64"}
    assert numbers(tmp_path, "twice") == list(range(0, 100, 2))
    assert read(tmp_path, "text")[:3] == ["0", "2", "4"]


def test_named_encodings_need_no_trial_run_and_choose_among_the_columns(spark, tmp_path):
    calls = tmp_path / "calls"

    def split(frame: pd.DataFrame):
        with calls.open("a") as log:
            log.write(f"{len(frame)}\n")
        half = ["low" if n < 25 else "high" for n in frame["id"]]
        return pd.DataFrame({"id": frame["id"], "other": 1.5, "half": half})

    manifest = dataframe_to_mds(
        spark.range(0, 50, 1, 2),
        tmp_path / "out",
        transform=split,
        columns={"id": "uint8"},
        partition_by="half",
        compression=None,
    )
    assert calls.read_text() == "25\n25\n"
    assert manifest.schema.columns() == {"id": "uint8"}
    assert numbers(tmp_path / "out", split="low") == list(range(25))
    assert numbers(tmp_path / "out", split="high") == list(range(25, 50))


def test_a_transform_that_fails_names_partition_and_rows_and_publishes_nothing(spark, tmp_path):
    def fails_late(batch):
        if 55 in batch["id"].to_pylist():
            raise KeyError("label")
        return batch

    with pytest.raises(SmaltiError, match=r"^Spark partition 1, rows 0 to 49: `transform` failed: KeyError: 'label'"):
        dataframe_to_mds(spark.range(0, 100, 1, 2), tmp_path, transform=fails_late)
    with pytest.raises(StoreNotFound):
        load_manifest(open_store(tmp_path))


# ---------------------------------------------------------------- repeated and refused


def test_equal_calls_over_equal_files_are_one_write_and_other_options_another(spark, tmp_path):
    place, out = str(tmp_path / "table"), tmp_path / "out"
    spark.range(0, 30, 1, 2).write.parquet(place)
    first = dataframe_to_mds(spark.read.parquet(place), out)
    again = dataframe_to_mds(spark.read.parquet(place), out)
    assert (again.version, again.digest) == (first.version, first.digest) == (1, first.digest)
    assert first.lineage["sources"][0]["format"] == "parquet"
    with pytest.raises(DatasetExists):
        dataframe_to_mds(spark.read.parquet(place), out, hashes=("sha256",))
    other = dataframe_to_mds(spark.read.parquet(place), out, hashes=("sha256",), mode="overwrite")
    assert other.version == 2
    with pytest.raises(DatasetExists):
        dataframe_to_mds(spark.read.parquet(place), out)


def test_rows_that_were_replaced_in_between_are_written_again(spark, tmp_path):
    place, out = str(tmp_path / "table"), tmp_path / "out"
    spark.range(0, 30, 1, 2).write.parquet(place)
    dataframe_to_mds(spark.read.parquet(place), out, mode="overwrite")
    dataframe_to_mds(spark.range(5), out, mode="overwrite")
    third = dataframe_to_mds(spark.read.parquet(place), out, mode="overwrite")
    assert (third.version, third.rows) == (3, 30)


def test_an_append_that_would_mix_columns_is_refused_before_a_row_is_read(spark, tmp_path):
    dataframe_to_mds(spark.range(5).withColumn("day", F.expr("date'2026-01-01'")), tmp_path)
    with pytest.raises(SchemaError, match="cannot append to version 1: column 'day'"):
        dataframe_to_mds(failing(spark).withColumn("day", F.lit(1)), tmp_path, mode="append")


def test_an_append_to_a_version_with_added_columns_is_refused_before_a_row_is_read(spark, tmp_path):
    dataframe_to_mds(spark.range(5), tmp_path)
    add_columns(tmp_path, {"double": "int64"}, lambda batch: {"double": batch["id"] * 2})
    with pytest.raises(SchemaError, match="'double' were added beside the shards"):
        dataframe_to_mds(failing(spark), tmp_path, mode="append")


def test_the_row_hash_does_not_depend_on_partitions_and_order(spark, tmp_path):
    hashes = {
        dataframe_to_mds(frame, tmp_path / str(number)).row_hash
        for number, frame in enumerate((spark.range(0, 50, 1, 1), spark.range(0, 50, 1, 7).orderBy(F.desc("id"))))
    }
    assert len(hashes) == 1
    assert hashes != {dataframe_to_mds(spark.range(1, 51), tmp_path / "other").row_hash}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "replace"}, "`mode`: expected 'create' or 'overwrite' or 'append', found 'replace'"),
        ({"progress": "loud"}, "`progress`"),
        ({"shuffle_rows": "yes"}, "`shuffle_rows`: .*found 'yes'"),
        ({"shuffle_rows": 2**63}, "`shuffle_rows`"),
        ({"target_shards": 0}, "`target_shards`: expected a whole number from 1"),
        ({"target_shards": True}, "`target_shards`"),
        ({"transform": 3}, "`transform`: expected a function"),
        ({"nulls": "ignore"}, "ignore"),
        ({"nulls": {"nope": "mask"}}, "nope"),
    ],
)
def test_unusable_options_are_refused_before_a_row_is_read(spark, tmp_path, options, says):
    with pytest.raises((ValueError, TypeError), match=says):
        dataframe_to_mds(failing(spark), tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_the_function_has_the_defaults_of_its_options():
    import inspect

    parameters = inspect.signature(dataframe.dataframe_to_mds).parameters
    options = vars(WriteOptions())
    assert options.keys() - parameters.keys() == {"unlisted_hashes", "joins_shards", "allow_unsafe_types"}
    for name in options.keys() & parameters.keys():
        assert parameters[name].default == options[name], name


# ---------------------------------------------------------------- progress


def test_progress_is_shown_always_on_request_and_otherwise_on_terminals(spark, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("smalti.spark.writing.progress._SILENT_SECONDS", 0.05)
    monkeypatch.setattr("smalti.writer.progress.LOG_SECONDS", 0.05)

    def slow(batches):
        import time

        for batch in batches:
            time.sleep(0.3)
            yield batch

    frame = spark.range(0, 4, 1, 4).mapInArrow(slow, "id long")
    dataframe_to_mds(frame, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    dataframe_to_mds(frame, tmp_path / "asked", progress="always")
    lines = capsys.readouterr().err.splitlines()
    assert any(re.search(r"/asked: [0-4] of 4 tasks done, \d+ s$", line) for line in lines), lines
    assert f"{tmp_path}/asked: version 1, 4 rows in 1 shards of" in lines[-1]
