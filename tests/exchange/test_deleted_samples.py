"""Copies and deletions together: a deletion at either side holds at the target."""

import hashlib

import pytest

from smalti.catalog import load_manifest, rollback, vacuum, verify
from smalti.catalog.opening import find_newest
from smalti.catalog.publishing import replace_content
from smalti.catalog.sidecars import erased_keys
from smalti.errors import CatalogError, DatasetExists
from smalti.exchange import copy_version, sync
from smalti.writer import PurgeOptions, delete
from tests.stores import MemoryStore
from tests.writer.user_rows import ids_of, ids_without_user, write_rows

PURGE = PurgeOptions(cache=False)


@pytest.fixture
def source():
    store = MemoryStore("memory-store://source")
    write_rows(store)
    return store


@pytest.fixture
def target():
    return MemoryStore("memory-store://mirror")


def records(store):
    return [(entry["version"], entry["purged"]) for entry in find_newest(store).header.erased]


def test_a_copy_records_the_deletions_of_its_source_under_its_own_number(source, target):
    write_rows(source, 10, first=40, mode="append")
    delete(source, [("user", "==", 5)])
    copy_version(source, target)
    (one,), (two,) = find_newest(source).header.erased, find_newest(target).header.erased
    assert (one["version"], two["version"]) == (3, 1)
    assert {**one, "version": 1} == two
    write_rows(source, 5, first=50, mode="append")
    sync(source, target)
    assert find_newest(target).header.erased == (two,), "once"


@pytest.mark.parametrize("split", [None, "a"])
def test_the_files_of_deleted_samples_are_copied_with_their_record_and_survive_a_vacuum(target, split):
    source = MemoryStore("memory-store://source")
    write_rows(source, split="a")
    write_id = find_newest(source).header.write_id
    key = f"{write_id}/erased.arrow"
    source.put(key, b"hashes")
    entry = {"by": "ids", "samples": 1, "purged": True, "key": key, "sha256": hashlib.sha256(b"hashes").hexdigest()}
    manifest = load_manifest(source)
    replace_content(source, manifest.redraft("gone"), based_on=1, operation="delete", erased=(entry,))
    copy_version(source, target, split=split)
    assert erased_keys(find_newest(target).header) == [key]
    vacuum(target, older_than=0, unsafe_ttl=True, dry_run=False)
    assert target.get(key) == b"hashes"
    assert verify(target).ok


def test_samples_purged_at_the_target_do_not_come_back_unless_that_is_said(source, target):
    copy_version(source, target)
    delete(target, [("user", "==", 5)], purge=PURGE)
    before = dict(target.objects)
    for dry_run in (True, False):
        with pytest.raises(CatalogError, match=r"deleted at the target .versions 2. that version 1 of the source"):
            copy_version(source, target, mode="overwrite", dry_run=dry_run)
        with pytest.raises(DatasetExists, match="no mirror"):
            sync(source, target, dry_run=dry_run)
    assert target.objects == before


def test_a_copy_that_restores_deleted_samples_on_request_keeps_their_record(source, target):
    copy_version(source, target)
    delete(target, [("user", "==", 5)])
    report = copy_version(source, target, version=1, mode="overwrite", restore_erased=True)
    assert report.is_in_sync, "version 1 is there"
    other = MemoryStore("memory-store://other")
    write_rows(other, 3)
    delete(other, [("id", "==", 1)])
    copy_version(source, other, mode="overwrite", restore_erased=True)
    assert records(other) == [(2, False)]
    assert ids_of(other) == list(range(40))


@pytest.mark.parametrize("history", [False, True])
def test_a_sync_names_older_versions_that_may_hold_deleted_samples_until_they_are_purged_and_goes_on(
    source, target, history
):
    sync(source, target, history=history)
    delete(source, [("user", "==", 5)], purge=PURGE)
    assert sync(source, target, history=history, dry_run=True).may_hold_deleted == (1,)
    assert sync(source, target, history=history).may_hold_deleted == (1,)
    assert sync(source, target, history=history).may_hold_deleted == (1,), "as long as it is there"
    assert delete(target, [("user", "==", 5)], purge=PURGE).purge.scan.ok
    assert b"row 5" not in b"".join(target.objects.values())
    write_rows(source, 5, first=40, mode="append")
    report = sync(source, target, history=history)
    assert report.may_hold_deleted == ()
    assert ids_of(target) == ids_of(source) == ids_without_user(5, range(40)) + list(range(40, 45))
    assert sync(source, target, history=history).is_in_sync


def test_a_mirror_with_history_gets_no_purged_sample(source, target):
    delete(source, [("user", "==", 5)], purge=PURGE)
    report = sync(source, target, history=True)
    assert [each.is_placeholder for each in report.versions] == [True, False, False]
    assert report.may_hold_deleted == ()
    assert b"row 5" not in b"".join(target.objects.values())
    assert verify(target).ok


@pytest.mark.parametrize("history", [False, True])
def test_a_rollback_at_the_source_reaches_the_mirror(source, target, history):
    sync(source, target, history=history)
    write_rows(source, 5, mode="overwrite")
    sync(source, target, history=history)
    rollback(source, 1)
    report = sync(source, target, history=history)
    assert (ids_of(target), report.num_objects) == (list(range(40)), 0)
    assert sync(source, target, history=history).is_in_sync


def test_a_deletion_that_was_rolled_back_at_the_source_is_undone_at_the_mirror_unless_it_was_purged_there(source):
    for is_purged in (False, True):
        target = MemoryStore(f"memory-store://mirror-{is_purged}")
        sync(source, target)
        delete(source, [("user", "==", 5)])
        sync(source, target)
        if is_purged:
            delete(target, [("user", "==", 5)], purge=PURGE)
        rollback(source, 1)
        if is_purged:
            with pytest.raises(CatalogError, match="may hold"):
                sync(source, target)
            assert ids_of(target) == ids_without_user(5, range(40))
        else:
            sync(source, target)
            assert ids_of(target) == list(range(40))
        source = MemoryStore("memory-store://second")
        write_rows(source)


def test_a_purge_in_a_second_call_makes_the_record_permanent():
    store = MemoryStore()
    write_rows(store, 4)
    write_rows(store, 40, first=4, mode="append")
    delete(store, [("id", "==", 20)])
    delete(store, [("id", "==", 20)], purge=PURGE)
    assert records(store) == [(3, True)]
    rollback(store, 1)
    assert records(store) == [(3, True)], "version 1 never held it, and its file must still not be converted again"
