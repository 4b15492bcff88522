"""Files that one process puts without waiting for the disk, and another one syncs."""

from pathlib import Path

import pytest

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import LocalStore
from smalti.storage.local import disk_of, sync_file_system
from smalti.testing import MemoryStore
from tests.storage.test_process import in_fork


def test_what_is_put_unsynced_is_whole_under_its_name_at_once(tmp_path):
    store = LocalStore(tmp_path)
    store.put_unsynced("a/b", b"old and longer")
    store.put_unsynced("a/b", memoryview(b"new"))
    assert store.get("a/b") == b"new"
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b"], "no temporary"


@pytest.mark.process
def test_what_another_process_put_can_be_synced(tmp_path):
    assert in_fork(lambda: LocalStore(tmp_path).put_unsynced("a/b", b"1")) == "None"
    LocalStore(tmp_path).sync(["a/b"])


def test_a_file_that_is_not_there_cannot_be_synced(tmp_path):
    LocalStore(tmp_path).sync([])
    with pytest.raises(StoreNotFound, match="a/b does not exist"):
        LocalStore(tmp_path).sync(["a/b"])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs a file that fsync refuses")
def test_a_file_that_cannot_be_synced_is_named_and_the_others_do_not_hide_it(tmp_path):
    """fsync of a file of /proc is an error of the kernel's own."""
    store = LocalStore(tmp_path)
    for number in range(20):
        store.put_unsynced(f"k{number}", b"1")
    (tmp_path / "bad").symlink_to("/proc/self/status")
    with pytest.raises(StoreError, match=r"cannot sync .*/bad"):
        store.sync(["bad", *(f"k{number}" for number in range(20))])


def test_a_disk_is_the_same_for_all_who_see_the_folder_and_no_other(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "a")
    seen = LocalStore(tmp_path / "a").disk()
    if seen is None:
        pytest.skip("the temporary folder is on no disk of this machine")
    assert LocalStore(tmp_path / "alias").disk() == seen
    assert LocalStore(tmp_path / "b").disk() != seen


def test_where_there_is_no_disk_to_be_told_there_is_none(tmp_path):
    """No folder yet; and a file system that lies on no block device, as NFS, FUSE and this one."""
    assert LocalStore(tmp_path / "absent").disk() is None
    assert disk_of(tmp_path / "absent") is None
    assert LocalStore("/proc").disk() is None
    assert MemoryStore().disk() is None


def test_stores_that_keep_every_put_at_once_have_nothing_to_sync():
    store = MemoryStore()
    store.put_unsynced("a", b"1")
    store.sync(["a"])
    assert store.get("a") == b"1"
    assert [call.op for call in store.calls] == ["put", "get"]


def test_a_watch_syncs_what_is_put_while_it_lasts_and_names_what_is_not_there(tmp_path):
    store = LocalStore(tmp_path)
    with store.watched() as watch:
        assert watch.disk == store.disk()
        store.put_unsynced("a/b", b"1")
        watch.sync(["a/b"])
        with pytest.raises(StoreNotFound, match="a/c does not exist"):
            watch.sync(["a/c"])


def test_a_watch_of_no_disk_leaves_nothing_to_be_synced():
    with MemoryStore().watched() as watch:
        assert watch.disk is None


def test_a_file_system_that_was_not_synced_is_an_error(tmp_path):
    if disk_of(tmp_path) is None:
        pytest.skip("the temporary folder is on no disk of this machine")
    with tmp_path.joinpath("a").open("wb") as file:
        sync_file_system(file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file_system(-1)
