"""Kills at every step of a write and of a stream: the old version or the new one is read, and each row once."""

import contextlib
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", minversion="4.0")

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from smalti.catalog import history, load_manifest, verify
from smalti.catalog.retention.vacuum import vacuum
from smalti.spark.writing.dataframe import dataframe_to_mds
from smalti.storage import open_store
from tests.combinations import nightly
from tests.spark.mds.killing import ROWS_PER_FILE, STEPS, KillingSource, stream, write
from tests.spark.writing.test_convert import read

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

BEFORE = list(range(1000, 1010))
WRITTEN = list(range(3 * ROWS_PER_FILE))
NUM_FILES = 3
FAILED = (PySparkException, Py4JJavaError)  # the second one if a process of the driver was killed
IN_TASKS = ("task-begins", "shard-stored", "task-ends")


def some(*chosen):
    """Return the steps as parameters, of which `make test` runs the chosen ones."""
    return [*chosen, *nightly([step for step in STEPS if step not in chosen])]


@pytest.fixture
def killing(spark):
    """Return the session, which knows the source that kills."""
    spark.dataSource.register(KillingSource)
    return spark


@pytest.fixture
def out(tmp_path, spark):
    """Return the place of a set with a version of ten rows."""
    rows = spark.range(BEFORE[0], BEFORE[-1] + 1, 1, 1).selectExpr("id", "repeat(id, 60) as text")
    dataframe_to_mds(rows, tmp_path / "out", compression=None)
    return tmp_path / "out"


@pytest.fixture
def source(tmp_path):
    """Return a folder of three files of forty rows."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(NUM_FILES):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        pq.write_table(pa.table({"id": ids, "text": [str(i) * 60 for i in ids]}), folder / f"{number}.parquet")
    return folder


def ids_in(out):
    return sorted(int(sample["id"]) for sample in read(out))


def beside(out, ending):
    return out.with_name(f"{out.name}.{ending}")


def run_apart(master, *arguments):
    """Run the program in a process of its own, which the kill of its JVM ends."""
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.mds.killing", master, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )


def check_whole(out, num_appends):
    """Check that the set has each row once, and a version for each append."""
    assert ids_in(out) == WRITTEN + BEFORE
    assert [info.operation for info in history(open_store(out))].count("append") == num_appends
    assert verify(open_store(out)).ok


@pytest.mark.parametrize("step", some("task-ends"))
def test_a_write_whose_worker_is_killed_shows_the_old_version_or_the_new_one_and_can_be_repeated(killing, out, step):
    beside(out, "kill").write_text(f"{step} worker")
    with contextlib.nullcontext() if step in IN_TASKS else pytest.raises(FAILED):
        write(killing, out)
    assert beside(out, "killed").exists()
    assert ids_in(out) in (BEFORE, WRITTEN + BEFORE)
    write(killing, out)
    check_whole(out, num_appends=1)


@pytest.mark.parametrize("step", nightly(STEPS))  # beside test_a7 of writing/test_fault_rows.py
def test_a_write_whose_driver_is_killed_shows_the_old_version_or_the_new_one_and_can_be_repeated(killing, out, step):
    beside(out, "kill").write_text(f"{step} jvm")
    assert run_apart("local[2]", "write", out).returncode != 0
    assert beside(out, "killed").exists()
    assert ids_in(out) in (BEFORE, WRITTEN + BEFORE)
    write(killing, out)
    check_whole(out, num_appends=1)


@pytest.mark.parametrize("step", nightly(IN_TASKS))
def test_a_write_whose_executor_is_killed_counts_each_row_once(out, step):
    beside(out, "kill").write_text(f"{step} jvm")
    done = run_apart("local-cluster[2,1,1024]", "write", out)
    assert done.returncode == 0, done.stderr[-2000:]
    assert beside(out, "killed").exists()
    check_whole(out, num_appends=1)


@pytest.mark.parametrize("step", some("commit-ends"))
def test_a_stream_whose_worker_is_killed_counts_each_row_once_after_its_restart(killing, out, source, step):
    beside(out, "kill").write_text(f"{step} worker")
    with contextlib.nullcontext() if step in IN_TASKS else pytest.raises(FAILED):
        stream(killing, out, source)
    assert beside(out, "killed").exists()
    assert set(BEFORE) <= set(ids_in(out))
    stream(killing, out, source)
    check_whole(out, num_appends=NUM_FILES)


@pytest.mark.parametrize("step", nightly(STEPS))  # beside a stream whose worker is killed
def test_a_stream_whose_driver_is_killed_counts_each_row_once_after_its_restart(killing, out, source, step):
    beside(out, "kill").write_text(f"{step} jvm")
    assert run_apart("local[2]", "stream", out, source).returncode != 0
    assert beside(out, "killed").exists()
    assert set(BEFORE) <= set(ids_in(out))
    stream(killing, out, source)
    check_whole(out, num_appends=NUM_FILES)


@pytest.mark.parametrize("step", nightly(IN_TASKS))
def test_a_stream_whose_executor_is_killed_counts_each_row_once(out, source, step):
    beside(out, "kill").write_text(f"{step} jvm")
    done = run_apart("local-cluster[2,1,1024]", "stream", out, source)
    assert done.returncode == 0, done.stderr[-2000:]
    assert beside(out, "killed").exists()
    check_whole(out, num_appends=NUM_FILES)


def test_a_micro_batch_that_a_vacuum_took_for_abandoned_is_published_once_when_the_query_goes_on(killing, out, source):
    beside(out, "kill").write_text("commit-begins worker")
    with pytest.raises(FAILED):
        stream(killing, out, source)
    vacuum(out, older_than=0, dry_run=False, unsafe_ttl=True)
    assert load_manifest(open_store(out)).rows == len(BEFORE)
    beside(out, "kill").write_text("commit-ends worker")
    with pytest.raises(FAILED):
        stream(killing, out, source)
    stream(killing, out, source)
    check_whole(out, num_appends=NUM_FILES)
