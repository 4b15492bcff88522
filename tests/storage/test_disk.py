"""Unsynced puts of one process, and their sync by another one."""

from pathlib import Path

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import LocalStore
from smalti.storage.local import disk_of, sync_file_system
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore


def test_an_unsynced_put_is_visible_and_whole_at_once(tmp_path):
    store = LocalStore(tmp_path)
    store.put_unsynced("a/b", b"old and longer")
    store.put_unsynced("a/b", memoryview(b"new"))
    assert store.get("a/b") == b"new"
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"], "no temporary file"


@pytest.mark.process
def test_objects_that_another_process_put_can_be_synced(tmp_path):
    assert in_fork(lambda: LocalStore(tmp_path).put_unsynced("a/b", b"1")) == "None"
    LocalStore(tmp_path).sync(["a/b"])


def test_a_missing_file_cannot_be_synced(tmp_path):
    LocalStore(tmp_path).sync([])
    with pytest.raises(StoreNotFound, match="a/b does not exist"):
        LocalStore(tmp_path).sync(["a/b"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file that fsync refuses")
def test_a_file_that_cannot_be_synced_is_named_among_others(tmp_path):
    """The kernel refuses to sync a file of /proc."""
    store = LocalStore(tmp_path)
    for number in range(20):
        store.put_unsynced(f"k{number}", b"1")
    (tmp_path / "bad").symlink_to("/proc/self/status")
    with pytest.raises(StoreError, match=r"cannot sync .*/bad"):
        store.sync(["bad", *(f"k{number}" for number in range(20))])


def test_disks_are_equal_for_processes_that_see_the_same_folder_only(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "a")
    seen = LocalStore(tmp_path / "a").disk()
    if seen is None:
        pytest.skip("the temporary folder is on no disk of this machine")
    assert LocalStore(tmp_path / "alias").disk() == seen
    assert LocalStore(tmp_path / "b").disk() != seen


def test_without_a_folder_or_block_device_there_is_no_disk(tmp_path):
    """A folder that does not exist, and a file system without a block device, as NFS and FUSE."""
    assert LocalStore(tmp_path / "absent").disk() is None
    assert disk_of(tmp_path / "absent") is None
    assert LocalStore("/proc").disk() is None
    assert MemoryStore().disk() is None


def test_stores_with_durable_puts_have_nothing_to_sync():
    store = MemoryStore()
    store.put_unsynced("a", b"1")
    store.sync(["a"])
    assert store.get("a") == b"1"
    assert [call.op for call in store.calls] == ["put", "get"]


def test_a_watch_syncs_puts_and_names_missing_objects(tmp_path):
    store = LocalStore(tmp_path)
    with store.watched() as watch:
        assert watch.disk == store.disk()
        store.put_unsynced("a/b", b"1")
        watch.sync(["a/b"])
        with pytest.raises(StoreNotFound, match="a/c does not exist"):
            watch.sync(["a/c"])


def test_without_a_disk_other_processes_sync_themselves():
    with MemoryStore().watched() as watch:
        assert watch.disk is None


def test_a_failed_sync_of_the_file_system_raises(tmp_path):
    if disk_of(tmp_path) is None:
        pytest.skip("the temporary folder is on no disk of this machine")
    with tmp_path.joinpath("a").open("wb") as file:
        sync_file_system(file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file_system(-1)
