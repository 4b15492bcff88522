"""While a writer is at work its marker says so, and what a killed one leaves can be told from a stranger's."""

import pytest

from smalti.catalog import in_progress, vacuum
from smalti.catalog.in_progress import marker_key, write_id_of
from smalti.errors import DatasetExists, StoreError
from smalti.storage import LocalStore
from smalti.testing import MemoryStore
from smalti.writer import MDSWriter


def markers(root):
    return [info.key for info in LocalStore(root).list("_versions/writes")]


def make_writer(root, **options):
    return MDSWriter(out=root, columns={"x": "bytes"}, size_limit=1000, **options)


def test_a_marker_is_there_from_the_first_to_the_last(tmp_path):
    with make_writer(tmp_path) as writer:
        assert markers(tmp_path) == [marker_key(writer.write_id)]
        writer.write({"x": bytes(400)})
    assert markers(tmp_path) == []


def test_a_writer_that_fails_takes_its_marker_away_with_its_shards(tmp_path):
    def fail():
        with make_writer(tmp_path) as writer:
            for _ in range(10):
                writer.write({"x": bytes(400)})
            raise RuntimeError("of the user")

    with pytest.raises(RuntimeError, match="of the user"):
        fail()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_writer_that_is_refused_leaves_no_marker(tmp_path):
    make_writer(tmp_path).finish()
    with pytest.raises(DatasetExists):
        make_writer(tmp_path)
    assert markers(tmp_path) == []


def test_both_places_of_a_writer_are_marked(tmp_path):
    with make_writer((tmp_path / "here", tmp_path / "there"), keep_local=True) as writer:
        writer.write({"x": b""})
        assert markers(tmp_path / "here") == markers(tmp_path / "there") == [marker_key(writer.write_id)]
    assert markers(tmp_path / "here") == markers(tmp_path / "there") == []


def test_what_a_killed_writer_left_is_removed_by_a_vacuum_in_time(tmp_path):
    import os

    make_writer(tmp_path).finish()
    killed = make_writer(tmp_path, exist_ok=True)
    for _ in range(10):
        killed.write({"x": bytes(400)})
    killed._uploader.finish()  # all shards are there, and then it dies
    assert vacuum(tmp_path).removed == ()
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    removed = {each.key for each in vacuum(tmp_path, dry_run=False).removed}
    assert removed == {f"{killed.write_id}/0/shard.{number:05}.mds" for number in range(5)} | {
        marker_key(killed.write_id)
    }


def test_a_marker_that_cannot_be_removed_is_no_fault_of_the_write():
    store = MemoryStore()
    in_progress.begin(store, "abcd")
    store.plant("delete", error=StoreError("503"))
    in_progress.end(store, "abcd")
    assert list(store.objects) == ["_versions/writes/abcd.json"]


def test_a_store_that_takes_no_marker_takes_no_write():
    store = MemoryStore()
    store.plant("put", error=StoreError("503"))
    with pytest.raises(StoreError, match="503"):
        in_progress.begin(store, "abcd")


@pytest.mark.parametrize("key", ["_versions/writes/a/b.json", "_versions/writes/abcd", "writes/abcd.json", "abcd.json"])
def test_only_a_marker_is_a_marker(key):
    assert write_id_of(marker_key("abcd")) == "abcd"
    assert write_id_of(key) is None


def test_a_fork_that_fails_leaves_its_parents_marker(tmp_path):
    from tests.storage.test_process import in_fork

    writer = make_writer(tmp_path)

    def fail():
        try:
            with writer:
                raise RuntimeError("in the fork")
        except RuntimeError:
            return len(markers(tmp_path))

    assert in_fork(fail) == "1"
    assert markers(tmp_path) == [marker_key(writer.write_id)]
    writer.finish()
    assert markers(tmp_path) == []
