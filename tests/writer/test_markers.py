"""A writer has a marker while it runs, by which leftovers of a killed one differ from foreign objects."""

import os
import signal

import pytest

from smalti.catalog import vacuum
from smalti.catalog.retention import markers
from smalti.catalog.retention.markers import marker_key, write_id_of
from smalti.errors import CatalogError, DatasetExists, StoreError
from smalti.storage import LocalStore
from smalti.writer import MDSWriter
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore


def marker_keys(root):
    return [info.key for info in LocalStore(root).list("_versions/writes")]


def make_writer(root, **options):
    return MDSWriter(out=root, columns={"x": "bytes"}, size_limit=1000, **options)


def test_a_marker_exists_from_the_start_to_the_end_of_a_write(tmp_path):
    with make_writer(tmp_path) as writer:
        assert marker_keys(tmp_path) == [marker_key(writer.write_id)]
        writer.write({"x": bytes(400)})
    assert marker_keys(tmp_path) == []


def test_a_writer_that_fails_removes_its_marker_with_its_shards(tmp_path):
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
    assert marker_keys(tmp_path) == []


def test_both_places_of_a_writer_are_marked(tmp_path):
    with make_writer((tmp_path / "here", tmp_path / "there"), keep_local=True) as writer:
        writer.write({"x": b""})
        assert marker_keys(tmp_path / "here") == marker_keys(tmp_path / "there") == [marker_key(writer.write_id)]
    assert marker_keys(tmp_path / "here") == marker_keys(tmp_path / "there") == []


def test_leftovers_of_a_killed_writer_are_removed_by_a_vacuum_in_time(tmp_path):
    make_writer(tmp_path).finish()
    killed = make_writer(tmp_path, exist_ok=True)
    for _ in range(10):
        killed.write({"x": bytes(400)})
    killed._uploader.finish()  # all shards are stored, then it is killed
    assert vacuum(tmp_path).removed == ()
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    removed = {each.key for each in vacuum(tmp_path, dry_run=False).removed}
    assert removed == {f"{killed.write_id}/0/shard.{number:05}.mds" for number in range(5)} | {
        marker_key(killed.write_id)
    }


def test_a_vacuum_of_a_place_without_versions_says_what_to_do(tmp_path):
    make_writer(tmp_path)
    make_writer(tmp_path)
    with pytest.raises(CatalogError, match=r"no version yet.* 2 unfinished writers .*or remove the folder"):
        vacuum(tmp_path)


class KilledAtItsSecondShard(LocalStore):
    """A store that kills the process when the second shard is written under its temporary name."""

    def _rename(self, temp, path):
        if path.name == "shard.00001.mds":
            os.kill(os.getpid(), signal.SIGKILL)
        super()._rename(temp, path)


@pytest.mark.process
def test_a_temporary_file_of_a_killed_writer_is_removed_by_a_vacuum_in_time(tmp_path):
    make_writer(tmp_path).finish()

    def write():
        with make_writer(KilledAtItsSecondShard(tmp_path), exist_ok=True, max_workers=1) as writer:
            for _ in range(10):
                writer.write({"x": bytes(400)})

    in_fork(write)
    [size] = [path.stat().st_size for path in tmp_path.rglob("*.smalti-tmp")]
    assert size > 800, "two samples of 400 bytes"
    young = vacuum(tmp_path, dry_run=False)
    assert (young.removed, young.uploads) == ((), ())
    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    [marker] = marker_keys(tmp_path)
    write_id = write_id_of(marker)
    expected = {marker, f"{write_id}/0/shard.00000.mds"}
    told = vacuum(tmp_path)
    assert {each.key for each in told.removed} == expected
    [temporary] = told.uploads
    assert (temporary.key, temporary.num_bytes) == (f"{write_id}/0/shard.00001.mds", size)
    assert told.num_bytes == sum(each.num_bytes for each in told.removed) + size
    assert told.summary().startswith("2 objects, 1 unfinished uploads, ")
    assert len(list(tmp_path.rglob("*.smalti-tmp"))) == 1, "a dry run removes nothing"
    assert {each.key for each in vacuum(tmp_path, dry_run=False).removed} == expected
    assert list(tmp_path.rglob("*.smalti-tmp")) == []


def test_old_temporary_files_of_any_object_are_removed_and_recent_ones_are_left(tmp_path):
    """The write id need not be known any more, and tables, tags and index files have temporary files too."""
    make_writer(tmp_path).finish()
    left = [
        "dead/0/.shard.00000.mds.0123456789abcdef.smalti-tmp",
        ".index.json.0123456789abcdef.smalti-tmp",
        "_versions/.00000002.json.0123456789abcdef.smalti-tmp",
        "_versions/tags/.best.json.0123456789abcdef.smalti-tmp",
    ]
    (tmp_path / "dead/0").mkdir(parents=True)
    (tmp_path / "_versions/tags").mkdir()
    for name in left:
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (1e9, 1e9))
    (tmp_path / ".index.json.fedcba9876543210.smalti-tmp").write_bytes(b"of a writer at work")
    report = vacuum(tmp_path, dry_run=False)
    assert [each.num_bytes for each in report.uploads] == [4, 4, 4, 4]
    assert [path.name for path in tmp_path.rglob("*.smalti-tmp")] == [".index.json.fedcba9876543210.smalti-tmp"]


def test_a_marker_that_cannot_be_removed_does_not_fail_the_write():
    store = MemoryStore()
    markers.begin(store, "abcd")
    store.plant("delete", error=StoreError("503"))
    markers.end(store, "abcd")
    assert list(store.objects) == ["_versions/writes/abcd.json"]


def test_a_write_fails_if_its_marker_cannot_be_put():
    store = MemoryStore()
    store.plant("put", error=StoreError("503"))
    with pytest.raises(StoreError, match="503"):
        markers.begin(store, "abcd")


@pytest.mark.parametrize("key", ["_versions/writes/a/b.json", "_versions/writes/abcd", "writes/abcd.json", "abcd.json"])
def test_only_keys_of_markers_have_a_write_id(key):
    assert write_id_of(marker_key("abcd")) == "abcd"
    assert write_id_of(key) is None


def test_a_forked_process_that_fails_leaves_its_parents_marker(tmp_path):
    writer = make_writer(tmp_path)

    def fail():
        try:
            with writer:
                raise RuntimeError("in the fork")
        except RuntimeError:
            return len(marker_keys(tmp_path))

    assert in_fork(fail) == "1"
    assert marker_keys(tmp_path) == [marker_key(writer.write_id)]
    writer.finish()
    assert marker_keys(tmp_path) == []
