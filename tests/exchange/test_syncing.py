"""Mirrors: the versions, numbers and tags of a source, and nothing that is there already."""

import pytest

from smalti.catalog import history, load_manifest, next_version, publish, rollback, tag, tags, vacuum, verify
from smalti.catalog.opening import read_tags
from smalti.errors import DatasetExists, VersionNotFound
from smalti.exchange import sync
from tests.catalog.retention.test_vacuum import AgingStore, publish_all
from tests.stores import MemoryStore


@pytest.fixture
def source(make_draft):
    store = AgingStore()
    publish_all(store, make_draft, "aaaa", "bbbb", mode="append")
    publish(store, make_draft(store, 7, write_id="cccc"), mode="overwrite")
    return store


@pytest.fixture
def target():
    return MemoryStore("memory-store://mirror")


def numbers(store):
    return [(info.version, info.write_id, info.is_expired) for info in history(store)]


def test_without_history_the_mirror_gets_the_newest_version_alone(source, target, make_draft):
    assert sync(source, target).num_objects == len(load_manifest(source).shards)
    assert numbers(target) == [(1, "cccc", False)]
    publish(source, make_draft(source, 5, write_id="dddd"), mode="append")
    report = sync(source, target)
    assert numbers(target) == [(1, "cccc", False), (2, "dddd", False)]
    assert report.num_present == len(load_manifest(source, version=3).shards), "only new shards are copied"
    assert sync(source, target).is_in_sync


def test_with_history_numbers_digests_and_write_ids_are_those_of_the_source(source, target):
    assert not sync(source, target, history=True, dry_run=True).is_in_sync
    assert target.objects == {}
    sync(source, target, history=True)
    assert [(each.version, each.write_id, each.digest) for each in history(target)] == [
        (each.version, each.write_id, each.digest) for each in history(source)
    ]
    assert all(verify(target, version=number).ok for number in (1, 2, 3))
    assert sync(source, target, history=True, dry_run=True).is_in_sync


def test_versions_that_the_source_vacuumed_keep_their_numbers_and_stay_expired(source, target, make_draft):
    source.pass_days(100)
    publish(source, make_draft(source, 3, write_id="dddd"), mode="append")
    vacuum(source, older_than="7d", dry_run=False)
    report = sync(source, target, history=True)
    assert [each.is_placeholder for each in report.versions] == [True, True, False, False, False]
    assert numbers(target) == numbers(source)
    assert verify(target).ok
    with pytest.raises(VersionNotFound, match="vacuumed"):
        rollback(target, 1)
    assert sync(source, target, history=True).is_in_sync


def test_a_reader_can_open_the_newest_version_of_the_mirror_after_every_write(source, target, make_draft):
    source.pass_days(100)
    publish(source, make_draft(source, 3, write_id="dddd"), mode="append")
    vacuum(source, older_than="7d", dry_run=False)
    opened = []

    class Watched(MemoryStore):
        def put_if_absent(self, key, data):
            super().put_if_absent(key, data)
            if key.startswith("_versions/0"):
                opened.append(verify(self).ok)

    sync(source, Watched("memory-store://watched"), history=True)
    assert opened == [True] * 5


def test_a_vacuum_at_the_mirror_shifts_its_numbers_and_syncing_goes_on(source, target, make_draft):
    target = AgingStore()
    target.url = "memory-store://mirror"
    sync(source, target, history=True)
    target.pass_days(100)
    vacuum(target, older_than="7d", dry_run=False)
    publish(source, make_draft(source, 3, write_id="dddd"), mode="append")
    (copied,) = [each for each in sync(source, target, history=True).versions if not each.was_present]
    assert (copied.source, copied.target) == (4, 5)
    assert load_manifest(target).digest == load_manifest(source).digest
    assert verify(target).ok


def test_tags_come_with_their_metadata_and_versions_and_are_moved(source, target):
    tag(source, "best", 1, metadata={"loss": 0.5})
    tag(source, "last", 3)
    report = sync(source, target, tags=True)
    assert (tags(target), report.tags) == ({"best": 1, "last": 2}, {"best": 1, "last": 3})
    assert read_tags(target)["best"].metadata == {"loss": 0.5}
    assert load_manifest(target, version=1).digest == load_manifest(source, version=1).digest
    tag(source, "best", 3, move=True)
    assert sync(source, target, tags=True, dry_run=True).tags == {"best": 3}
    assert sync(source, target, tags=True).tags == {"best": 3}
    assert tags(target) == {"best": 2, "last": 2}
    assert sync(source, target, tags=True).is_in_sync


def test_a_write_id_that_was_forgotten_and_published_again_stands_for_each_of_its_versions(
    target, make_draft, monkeypatch
):
    monkeypatch.setattr(next_version, "MAX_REMEMBERED_WRITES", 1)
    source = AgingStore()
    again = make_draft(source, 4, write_id="aaaa")
    for draft in (again, make_draft(source, 5, write_id="bbbb"), again):
        publish(source, draft, mode="overwrite")
    tag(source, "first", 1)
    report = sync(source, target, history=True, tags=True)
    assert [(each.source, each.target) for each in report.versions] == [(1, 1), (2, 2), (3, 3)]
    assert tags(target) == {"first": 1}


def test_an_older_version_than_the_mirror_has_cannot_be_added_and_is_reported(source, target):
    sync(source, target)
    tag(source, "best", 1)
    report = sync(source, target, tags=True)
    assert [each.source for each in report.skipped] == [1]
    assert "older than version 3" in report.skipped[0].why
    assert tags(target) == {}


def test_a_place_that_others_publish_to_is_no_mirror(source, target, make_draft):
    sync(source, target)
    publish(target, make_draft(target, 2, write_id="mine"), mode="append")
    with pytest.raises(DatasetExists, match=r"version 2 .append, write id mine. is not one of the source's"):
        sync(source, target)
    assert load_manifest(target).write_id == "mine"
