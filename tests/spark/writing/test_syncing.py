"""Published shards are on disk: synced by their task, or before publishing by a driver on the same machine."""

import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from smalti.errors import StoreError
from smalti.format import Schema, ShardOptions
from smalti.spark import dataframe_to_mds
from smalti.storage.store import Disk
from smalti.writer.tables.plan import Attempt, InputRows, OutputColumns, WritePlan
from smalti.writer.tables.task import write_shards
from smalti.writer.tables.versions import Packed, collect_parts
from tests.spark.writing.logging_store import HERE, LoggingStore
from tests.stores import MemoryStore

pytestmark = pytest.mark.spark

SCHEMA = Schema.from_columns({"id": "int64"})


def logging_store(tmp_path, **options):
    return LoggingStore(tmp_path / "set", tmp_path / "log", **options)


def task(store, disk, attempt="aaaaaaaa"):
    """Run one attempt at 100 numbers of 8 bytes and 4 of offset, in shards of at most 512 bytes."""
    plan = WritePlan(store, "w", ShardOptions(None, (), 512), InputRows(("id",)), OutputColumns(SCHEMA), disk=disk)
    batch = pa.RecordBatch.from_pydict({"id": np.arange(100)})
    return Attempt(0, attempt), write_shards(plan, iter([batch]), Attempt(0, attempt))


def unsynced_keys(answer):
    """Return the objects that the driver must sync after this answer."""
    return list(Packed(collect_parts([answer]), [], []).unsynced_keys())


def names(number):
    """Return the names of the first shards of the attempt."""
    return [f"w/00000-aaaaaaaa/shard.{place:05d}.mds" for place in range(number)]


def test_a_task_on_the_drivers_disk_leaves_syncing_to_the_driver(tmp_path):
    store = logging_store(tmp_path)
    answer = task(store, HERE)
    # A shard of 512 bytes holds 28 numbers: its head takes 169 bytes.
    assert sorted(store.keys("put_unsynced")) == names(4)
    assert answer[1]["is_synced"] is False
    assert store.keys("put") == store.keys("sync") == []


@pytest.mark.parametrize(
    "disk", [None, replace(HERE, boot_id="another"), replace(HERE, device=7), replace(HERE, inode=7)]
)
def test_a_task_that_does_not_see_the_drivers_disk_syncs_its_shards(tmp_path, disk):
    """None is a driver with no known disk; the others are another machine, or another disk of this one."""
    store = logging_store(tmp_path)
    answer = task(store, disk)
    assert sorted(store.keys("put")) == names(4)
    assert store.keys("put_unsynced") == []
    assert "is_synced" not in answer[1]


def test_a_task_whose_store_is_no_disk_leaves_nothing_to_sync():
    answer = task(MemoryStore(), Disk("this kernel", 1, 2))
    assert "is_synced" not in answer[1]


def test_only_successful_attempts_are_synced_and_answers_without_a_flag_count_as_synced(tmp_path):
    store = logging_store(tmp_path)
    first, second = task(store, HERE, "aaaaaaaa"), task(store, HERE, "bbbbbbbb")
    assert unsynced_keys(second) == [name.replace("a" * 8, "b" * 8) for name in names(4)]
    assert unsynced_keys((first[0], {"shards": first[1]["shards"]})) == []


def test_a_version_is_published_after_all_its_shards_are_on_disk(spark, tmp_path):
    store = logging_store(tmp_path)
    made = dataframe_to_mds(spark.range(0, 200, 1, 2), store, compression=None, size_limit=512)
    calls = store.lines()
    (commit,) = [place for place, (_, key, _) in enumerate(calls) if key == "_versions/00000001.json"]
    before = {key for op, key, _ in calls[:commit] if op in ("put", "sync")}
    assert {shard.raw.basename for shard in made.shards} <= before
    left = store.keys("put_unsynced")
    assert len(left) == 8
    assert sorted(store.keys("sync")) == sorted(left)
    assert {pid for op, _, pid in calls if op == "sync"} == {str(os.getpid())}
    assert str(os.getpid()) not in {pid for op, _, pid in calls if op == "put_unsynced"}


def test_shards_that_were_joined_into_others_are_not_synced(spark, tmp_path):
    """Four tasks with three rows each make one shard, which the driver puts and syncs."""
    store = logging_store(tmp_path)
    made = dataframe_to_mds(spark.range(0, 12, 1, 4), store, compression=None)
    assert len(store.keys("put_unsynced")) == 4
    assert store.keys("sync") == []
    assert store.keys("put") == [shard.raw.basename for shard in made.shards]


def test_shards_of_a_killed_attempt_are_not_synced(spark, tmp_path):
    store = logging_store(tmp_path, killed=tmp_path / "killed")
    made = dataframe_to_mds(spark.range(0, 100, 1, 1), store, compression=None, size_limit=512)
    assert store.killed.exists()
    assert sorted(store.keys("sync")) == sorted(shard.raw.basename for shard in made.shards)
    assert set(store.keys("put_unsynced")) > set(store.keys("sync")), "the first attempt had put some"
    assert made.rows == 100


def test_a_failed_sync_publishes_nothing_and_leaves_no_shard(spark, tmp_path):
    store = logging_store(tmp_path, fails=True)
    with pytest.raises(StoreError, match="Input/output error"):
        dataframe_to_mds(spark.range(0, 200, 1, 2), store, compression=None, size_limit=512)
    assert len(store.keys("put_unsynced")) == 8
    (left,) = [path for path in (tmp_path / "set").rglob("*") if path.is_file()]
    assert left.parent == tmp_path / "set" / "_versions" / "writes", "that a write has begun, as after every failure"
