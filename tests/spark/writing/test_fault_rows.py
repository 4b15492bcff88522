"""Rows of section A that need a real driver: killed around its commit, an executor lost, a source that changes."""

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smalti.catalog import history, load_manifest, new_write_id, verify
from smalti.catalog.manifest import row_hash_text
from smalti.catalog.retention.vacuum import vacuum
from smalti.errors import StoreNotFound
from smalti.format.hashing import hash_rows
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import open_store
from tests.spark.writing.test_convert import failing, files, read

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]


def run(master, out, write_id, when):
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.writing.killed_driver", master, str(out), write_id, when],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )


@pytest.mark.nightly  # test_faults.py of publishing
def test_a6_after_a_driver_that_was_killed_before_its_commit_nothing_is_visible_and_a_rerun_is_whole(spark, tmp_path):
    """The rerun writes again; leftovers of the first run are below the same write id, where vacuum finds them."""
    out, write_id = tmp_path / "out", new_write_id()
    assert run("local[2]", out, write_id, "before").returncode == -9
    left = files(out)
    assert left, "its tasks were done"
    with pytest.raises(StoreNotFound):
        load_manifest(open_store(out))
    made = dataframe_to_mds(spark.range(0, 300, 1, 2), out, write_id=write_id, compression=None, size_limit=1024)
    assert [int(sample["id"]) for sample in read(out)] == list(range(300))
    named = {shard.stored.basename for shard in made.shards}
    assert not named & set(left)
    doomed = {each.key for each in vacuum(out, older_than=0, unsafe_ttl=True).removed}
    assert set(left) <= doomed
    assert not named & doomed


def test_a7_after_a_driver_that_was_killed_right_after_its_commit_a_rerun_returns_that_version(spark, tmp_path):
    """A scheduler that does not know of the commit runs the job again: no row is read, nothing is written."""
    out, write_id = tmp_path / "out", new_write_id()
    assert run("local[2]", out, write_id, "after").returncode == -9
    there = files(out)
    made = dataframe_to_mds(failing(spark), out, write_id=write_id)
    assert (made.version, made.rows, made.write_id) == (1, 300, write_id)
    assert [int(sample["id"]) for sample in read(out)] == list(range(300))
    assert files(out) == there
    assert len(history(open_store(out))) == 1


@pytest.mark.nightly  # beside mds/test_kills.py, where workers are killed
def test_a15_a_lost_executor_loses_no_row(tmp_path):
    """An executor's JVM is killed during a task; shards that other tasks had stored stay, and count once."""
    out = tmp_path / "out"
    done = run("local-cluster[2,1,1024]", out, new_write_id(), "executor")
    assert done.stdout.splitlines()[-1:] == ["2000 rows"], done.stderr[-2000:]
    killed, had_stored = Path(f"{out}.killed").read_text().split()
    assert not Path(f"/proc/{killed}").exists()
    assert had_stored == "True", "the other task was done, and this one had stored shards"
    assert [int(sample["id"]) for sample in read(out)] == list(range(2000))
    assert verify(open_store(out)).ok


def test_a12_rows_that_differ_at_every_attempt_are_those_of_one_attempt(spark, tmp_path):
    """The task of the second partition dies once, and draws other numbers at the second attempt."""
    out, mark = tmp_path / "out", tmp_path / "killed"

    def draw(batches):
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            drawn = pa.array([os.urandom(8) for _ in range(batch.num_rows)])
            yield pa.RecordBatch.from_arrays([batch.column(0), drawn], names=["id", "drawn"])
            if TaskContext.get().partitionId() == 1 and number == 3 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = spark.range(0, 1000, 1, 2).mapInArrow(draw, "id long, drawn binary")
        made = dataframe_to_mds(frame, out, compression=None, size_limit=1024)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1024")
    assert mark.exists()
    samples = read(out)
    assert [int(sample["id"]) for sample in samples] == list(range(1000))
    assert len({bytes(sample["drawn"]) for sample in samples}) == 1000
    assert len({name.split("/")[1] for name in (shard.stored.basename for shard in made.shards)}) == 2
    stored = list(map(_stored, samples))
    expected = hash_rows(memoryview(b"".join(stored)), [0, *accumulate(map(len, stored))])
    assert made.row_hash == row_hash_text(expected), "tasks sent the hash of what is stored"


def _stored(sample):
    """Return a sample as MDS stores it: the sizes of columns without a fixed size, then the columns."""
    return (8).to_bytes(4, "little") + bytes(sample["drawn"]) + int(sample["id"]).to_bytes(8, "little")


def test_a13_files_added_while_the_job_runs_are_not_in_the_version_and_its_lineage_lists_the_others(spark, tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for number in range(2):
        pq.write_table(pa.table({"id": list(range(100 * number, 100 * number + 100))}), source / f"{number}.parquet")

    def add(batches):
        for batch in batches:
            late = source / f"late-{os.getpid()}.parquet"
            if not late.exists():
                pq.write_table(pa.table({"id": list(range(1000, 1100))}), late)
            yield batch

    frame = spark.read.parquet(str(source))
    made = dataframe_to_mds(frame.mapInArrow(add, frame.schema), out, compression=None)
    assert len(list(source.glob("late-*.parquet"))) > 0
    assert sorted(int(sample["id"]) for sample in read(out)) == list(range(200))
    [recorded] = made.lineage["sources"]
    assert recorded["files"] == 2
    again = dataframe_to_mds(spark.read.parquet(str(source)), out, compression=None, mode="overwrite")
    assert again.rows > 200
    assert again.lineage["sources"] != made.lineage["sources"]


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a13_files_that_change_while_the_job_runs_fail_it_and_the_version_before_stays(spark, tmp_path, change):
    """The first task changes every file but its own; at least two others are not open yet."""
    source, out, mark = tmp_path / "source", tmp_path / "out", tmp_path / "changed"
    source.mkdir()
    for number in range(6):
        put_ids(source / f"{number}.parquet", 100 * number)
    kept = dataframe_to_mds(spark.range(7), out, compression=None)

    def spoil(batches):
        for batch in batches:
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                yield batch
                continue
            own = batch.column(0)[0].as_py() // 100
            for number in set(range(6)) - {own}:
                path = source / f"{number}.parquet"
                path.unlink()
                if change == "replaced":
                    put_ids(path, 1000 + 100 * number)
            yield batch

    spark.conf.set("spark.sql.files.openCostInBytes", "128m")  # a partition for each file
    try:
        frame = spark.read.parquet(str(source))
        assert frame.rdd.getNumPartitions() == 6
        with pytest.raises(Exception, match=r"\.parquet"):
            dataframe_to_mds(frame.mapInArrow(spoil, frame.schema), out, compression=None, mode="overwrite")
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")
    assert mark.exists()
    assert load_manifest(open_store(out)).digest == kept.digest
    assert [int(sample["id"]) for sample in read(out)] == list(range(7))
    assert verify(open_store(out)).ok


def put_ids(path, first):
    """Write a hundred ids; all files are equally long, so that Spark cannot distinguish them by their length."""
    table = pa.table({"id": list(range(first, first + 100))})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_statistics=False)


@pytest.mark.parametrize("drawn", [False, True], ids=["same", "drawn"])
def test_a12_a_shuffle_that_is_computed_again_loses_no_row_and_duplicates_none(spark, tmp_path, drawn):
    """Shuffle files are lost after a task has read them. If rows would then move, Spark fails the job."""
    out, mark = tmp_path / "out", tmp_path / "lost"

    def to_keys(batches):
        for batch in batches:
            ids = batch.column(0).to_pylist()
            keys = [int.from_bytes(os.urandom(4), "little") if drawn else number * 7919 % 1009 for number in ids]
            yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(keys, pa.int64())], names=["id", "key"])

    def lose(batches):
        yield from batches
        if not mark.exists():
            mark.touch()
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
                for path in Path(folder).glob("*/shuffle_*"):
                    path.unlink()

    kinds = "id long, key long"
    frame = spark.range(0, 600, 1, 3).mapInArrow(to_keys, kinds).repartition(6, "key").mapInArrow(lose, kinds)
    if drawn:
        with pytest.raises(Exception, match=r"indeterminate|mismatch"):
            dataframe_to_mds(frame, out, compression=None)
        with pytest.raises(StoreNotFound):
            load_manifest(open_store(out))
        return
    made = dataframe_to_mds(frame, out, compression=None)
    assert mark.exists()
    assert made.rows == 600
    assert sorted(int(sample["id"]) for sample in read(out)) == list(range(600))
