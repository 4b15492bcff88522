"""A purge removes every version that holds the deleted samples, and shows that no live object holds one."""

import json

import pytest

from smalti.cache import CacheOptions, inspect
from smalti.catalog import history, load_manifest, rollback, tag, tags, verify
from smalti.catalog.manifest import read_header
from smalti.catalog.opening import Tag, read_tags
from smalti.catalog.publishing import announce_removal
from smalti.catalog.retention import markers
from smalti.dataset import open_dataset
from smalti.errors import CatalogError, CommitConflict, StoreError, VersionNotFound
from smalti.storage import LocalStore
from smalti.writer import PurgeOptions, compact, delete
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.stores import MemoryStore
from tests.stores.memory import Killed
from tests.writer.user_rows import ids_of, ids_without_user, write_rows

NO_CACHE = PurgeOptions(cache=False)


@pytest.fixture
def store():
    return MemoryStore()


def holds(store, text):
    """Return the keys of all objects whose bytes contain a text."""
    return [key for key, data in store.objects.items() if text.encode() in data]


def test_no_object_of_the_store_holds_a_deleted_sample_afterwards(store):
    write_rows(store)
    write_rows(store, 10, first=40, mode="append")
    compact(store, size_limit=10_000)
    write_rows(store, 5, first=50, mode="append")
    assert len(holds(store, "row 33")) == 2
    report = delete(store, [("id", "in", [33, 52])], purge=NO_CACHE)
    assert holds(store, "row 33") == []
    assert holds(store, "row 52") == []
    assert ids_of(store) == [number for number in range(55) if number not in (33, 52)]
    purged = report.purge
    assert [(each.version, each.num_matched) for each in purged.retired] == [(1, 1), (2, 1), (3, 1), (4, 2)]
    assert purged.scan.ok
    assert (purged.scan.num_samples, purged.scan.matches) == (53, ())
    assert purged.scan.versions == (5, 6)
    assert [(info.operation, info.is_expired) for info in history(store)] == [
        ("create", True), ("append", True), ("compact", True), ("append", True), ("delete", False), ("purge", False),
    ]  # fmt: skip
    assert (purged.version, read_header(store, 6).write_id) == (6, purged.write_id)
    with pytest.raises(VersionNotFound):
        load_manifest(store, version=4)
    with pytest.raises(VersionNotFound):
        rollback(store, 3)
    assert verify(store).ok


def test_the_report_names_every_removed_object_with_its_size_and_hashes(store):
    made = write_rows(store)
    before = dict(store.objects)
    report = delete(store, [("user", "==", 5)], purge=NO_CACHE)
    removed = {each.key: each for each in report.purge.objects}
    assert removed.keys() == before.keys() - store.objects.keys()
    assert all(each.num_bytes == len(before[key]) for key, each in removed.items())
    hashed = {shard.raw.basename: dict(shard.raw.hashes) for shard in made.shards}
    assert {key: dict(removed[key].hashes) for key in removed if "/shard." in key} == hashed
    found = json.loads(json.dumps(report.to_dict()))
    assert found["ok"] is True
    assert found["purge"]["retired"][0]["digest"] == made.digest
    assert found["purge"]["num_bytes"] == sum(len(before[key]) for key in removed)
    assert found["purge"]["scan"]["matches"] == []


def test_versions_without_a_match_stay(store):
    write_rows(store, 5)
    write_rows(store, 40, first=5, mode="append")
    report = delete(store, [("id", "==", 20)], purge=NO_CACHE)
    assert [each.version for each in report.purge.retired] == [2]
    assert ids_of(store, version=1) == [0, 1, 2, 3, 4]
    assert verify(store, version=1).ok


def test_samples_that_only_older_versions_hold_are_purged_without_a_new_content(store):
    write_rows(store)
    delete(store, [("user", "==", 5)])
    digest = load_manifest(store).digest
    report = delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert (report.version, report.num_deleted) == (None, 0)
    assert [each.version for each in report.purge.retired] == [1]
    assert load_manifest(store).digest == digest
    assert report.purge.scan.ok
    again = delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert (again.purge.retired, again.purge.objects, again.purge.version) == ((), (), None)


def test_a_dry_run_reports_all_versions_that_hold_them_and_removes_nothing(store):
    write_rows(store)
    write_rows(store, 10, first=40, mode="append")
    tag(store, "best", 1)
    before = dict(store.objects)
    report = delete(store, [("user", "==", 5)], purge=NO_CACHE, dry_run=True)
    assert [(each.version, each.num_matched) for each in report.purge.retired] == [(1, 5), (2, 7)]
    assert report.purge.tags == {"best": "in the way, unless it is removed or moved"}
    assert report.purge.scan is None
    assert {key for key in store.objects if "probe" not in key} == set(before)


# ---------------------------------------------------------------------- tags


def test_a_tag_in_the_way_is_named_and_nothing_is_deleted(store):
    write_rows(store)
    tag(store, "best", 1)
    before = dict(store.objects)
    with pytest.raises(CatalogError, match="have tags: 'best' of version 1; nothing was deleted"):
        delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert store.objects == before


def test_tags_in_the_way_are_removed_or_moved_on_request(store):
    write_rows(store)
    tag(store, "best", 1, metadata={"model": "m"})
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(tags="move", cache=False))
    assert report.purge.tags == {"best": "moved to version 2"}
    assert read_tags(store)["best"] == Tag("best", 2, {"model": "m"})
    report = delete(store, [("user", "==", 4)], purge=PurgeOptions(tags="remove", cache=False))
    assert report.purge.tags == {"best": "removed"}
    assert tags(store) == {}
    assert ids_of(store) == [number for number in range(40) if number % 7 not in (4, 5)]


def test_a_tag_that_is_set_during_the_purge_stops_it_before_anything_is_removed():
    class Tagging(InterferingStore):
        before = b'"operation": "purge"'

    store = Tagging()
    write_rows(store)
    store.interfere = lambda: tag(store, "best", 1)
    with pytest.raises(CommitConflict, match="'best'"):
        delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert verify(store, version=1).ok
    delete(store, [("user", "==", 5)], purge=PurgeOptions(tags="remove", cache=False))
    assert holds(store, "row 33") == []
    assert read_tags(store) == {}


def test_a_tag_that_held_a_version_back_from_a_vacuum_does_not_hold_it_back_from_a_purge(store):
    write_rows(store)
    delete(store, [("user", "==", 5)])
    store.put("_versions/tags/late.json", b'{"smalti": 1, "tag": "late", "version": 1}')
    key = next(key for key in store.objects if key.endswith("shard.00001.mds"))
    newest = read_header(store, 2)
    announce_removal(store, newest, "vacuum-1", expired=(1,))
    del store.objects[key]
    with pytest.raises(CatalogError, match="have tags: 'late' of version 1"):
        delete(store, [("user", "==", 5)], purge=NO_CACHE)
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(tags="remove", cache=False))
    assert [(each.version, each.num_matched) for each in report.purge.retired] == [(1, None)]
    assert holds(store, "row 33") == []


# ---------------------------------------------------------------------- what cannot be searched


def test_a_version_without_the_column_is_refused_or_retired_unseen(store):
    write_rows(store, columns={"id": "int", "text": "str"})
    write_rows(store, mode="overwrite")
    with pytest.raises(CatalogError, match="the versions 1 lack a column"):
        delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert load_manifest(store).version == 2
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(all_versions=True, cache=False))
    assert [(each.version, each.num_matched) for each in report.purge.retired] == [(1, None), (2, 5)]
    assert holds(store, "row 33") == []


def test_positions_are_purged_by_the_bytes_of_their_samples(store):
    write_rows(store)
    compact(store, size_limit=10_000)
    store.plant("delete")
    with pytest.raises(StoreError, match="planted"):
        delete(store, ids=[33], version=2, purge=NO_CACHE)
    store.heal()
    assert holds(store, "row 33") != []
    report = delete(store, ids=[33], version=2, purge=NO_CACHE)
    assert [(each.version, each.num_matched) for each in report.purge.retired] == [(1, 1), (2, 1)]
    assert holds(store, "row 33") == []
    write_rows(store, 1, first=7, mode="append")
    with pytest.raises(CatalogError, match="the samples 7 of version 5 are equal to chosen ones") as error:
        delete(store, ids=[39], purge=NO_CACHE)
    assert error.value.positions == [7]


# ---------------------------------------------------------------------- others, kills, faults


def test_what_a_running_writer_has_put_stays_and_is_reported(store):
    write_rows(store)
    store.put("bbbb/00000/shard.00000.mds", b"row 33")
    markers.begin(store, "bbbb")
    upload = store.begin_upload("bbbb/00000/shard.00001.mds")
    report = delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert [(each.write_id, each.num_objects) for each in report.purge.pending] == [("bbbb", 2)]
    assert holds(store, "row 33") == ["bbbb/00000/shard.00000.mds"]
    assert list(store.unfinished_uploads()) == [upload]
    report = delete(store, [("user", "==", 5)], purge=PurgeOptions(unsafe_ttl=True, cache=False))
    assert (report.purge.pending, holds(store, "row 33")) == ((), [])
    assert list(store.unfinished_uploads()) == []


def test_objects_of_others_stay(store):
    write_rows(store)
    store.put("notes.txt", b"mine")
    store.put("other/shard.00000.mds", b"mine")
    delete(store, [("user", "==", 5)], purge=PurgeOptions(unsafe_ttl=True, cache=False))
    assert holds(store, "mine") == ["notes.txt", "other/shard.00000.mds"]


def test_samples_that_are_appended_during_the_purge_are_found_by_the_scan():
    class Appending(InterferingStore):
        before = b'"operation": "purge"'

    store = Appending()
    write_rows(store)
    store.interfere = lambda: write_rows(store, 14, first=40, mode="append")
    report = delete(store, [("user", "==", 5)], purge=NO_CACHE)
    assert not report.ok
    assert sum(each.num_samples for each in report.purge.scan.matches if each.version == 3) == 2
    assert delete(store, [("user", "==", 5)], purge=NO_CACHE).ok
    assert ids_of(store) == ids_without_user(5, range(54))


def test_killed_at_any_write_a_whole_version_is_there_and_the_next_call_finishes():
    whole = MemoryStore()
    write_rows(whole, 14)
    write_rows(whole, 4, first=14, mode="append")
    start, finished = dict(whole.objects), False
    for writes in range(60):
        store = MemoryStore()
        store.objects.update(start)
        store.die_after_writes(writes)
        try:
            delete(store, [("user", "==", 5)], purge=NO_CACHE)
            finished = True
        except Killed:
            pass
        store.heal()
        assert verify(store).ok
        assert ids_of(store) in ([*range(18)], ids_without_user(5, range(18)))
        report = delete(store, [("user", "==", 5)], purge=PurgeOptions(unsafe_ttl=True, cache=False))
        assert report.ok
        assert holds(store, "row 12") == []
        assert ids_of(store) == ids_without_user(5, range(18))
        if finished:
            return
    raise AssertionError("60 writes were not enough")


def test_a_removal_that_fails_is_repeated_by_the_next_call(store):
    write_rows(store)
    store.plant("delete", key="*/shard.00002.mds")
    with pytest.raises(StoreError, match="planted"):
        delete(store, [("user", "==", 5)], purge=NO_CACHE)
    store.heal()
    assert holds(store, "row 26") != []
    assert delete(store, [("user", "==", 5)], purge=NO_CACHE).purge.scan.ok
    assert holds(store, "row 26") == []


def test_a_reader_of_a_retired_version_gets_an_error_and_never_wrong_data(tmp_path):
    write_rows(LocalStore(tmp_path / "set"))
    reader = open_dataset(str(tmp_path / "set"), cache=CacheOptions(local=str(tmp_path / "cache")))
    assert reader[0]["text"] == "row 0"
    delete(tmp_path / "set", [("user", "==", 5)], purge=NO_CACHE)
    with pytest.raises(OSError, match="shard"):
        _ = [reader[row] for row in range(40)]


def test_copies_in_the_cache_of_this_machine_are_removed(tmp_path):
    place, cache = "file-set", tmp_path / "cache"
    made = write_rows(LocalStore(tmp_path / place))
    folder = cache / made.digest / "copies"
    folder.mkdir(parents=True)
    (folder / "shard.00000.mds").write_bytes(b"row 0")
    assert inspect.list_copies(cache)[0].shards == 1
    report = delete(tmp_path / place, [("user", "==", 5)], purge=PurgeOptions(cache=cache))
    assert (report.purge.cache_files, report.purge.cache_digests) == (1, (made.digest,))
    assert not (folder / "shard.00000.mds").exists()
