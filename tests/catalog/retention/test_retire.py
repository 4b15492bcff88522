"""A retirement removes chosen versions at once and nothing that another one needs, also with concurrent publishers."""

import pytest

from smalti.catalog import load_manifest, publish, rollback, verify
from smalti.catalog.manifest import read_header
from smalti.catalog.retention.vacuum import retire, vacuum
from smalti.catalog.tags import tag
from smalti.errors import CatalogError, CommitConflict, VersionNotFound
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.catalog.retention.test_vacuum import AgingStore, is_whole, publish_all


@pytest.fixture
def store():
    return AgingStore()


def test_only_the_chosen_versions_go_however_young_they_are(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb", "cccc")
    done = retire(store, [2])
    assert (done.retired, done.version) == ((2,), 4)
    assert store.below("bbbb/") == []
    assert [is_whole(store, version) for version in (1, 3, 4)] == [True, True, True]
    assert read_header(store, 4).operation == "purge"
    with pytest.raises(VersionNotFound, match="version 2 was removed"):
        load_manifest(store, version=2)
    with pytest.raises(VersionNotFound):
        rollback(store, 2)


def test_shards_that_another_version_shares_stay(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb", mode="append")
    done = retire(store, [1])
    assert [each.key for each in done.removed if "/shard." in each.key] == []
    assert is_whole(store, 2)


def test_a_dry_run_removes_nothing_and_says_what_would_go(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    before = dict(store.objects)
    done = retire(store, [1], dry_run=True)
    assert (done.version, done.retired) == (None, (1,))
    assert {each.key for each in done.removed if "/shard." in each.key} == set(store.below("aaaa/"))
    assert store.objects == before


def test_the_newest_and_a_tagged_version_are_refused(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    tag(store, "best", 1)
    before = dict(store.objects)
    with pytest.raises(CatalogError, match="version 2 is the newest"):
        retire(store, [2])
    with pytest.raises(CommitConflict, match=r"'best' \(version 1\)"):
        retire(store, [1])
    assert {key for key in store.objects if "probe" not in key} == set(before)


class BeforePurge(InterferingStore):
    """Another process comes before the commit of a purge."""

    before = b'"operation": "purge"'


def test_a_rollback_that_comes_first_keeps_the_shards_it_needs(make_draft):
    store = BeforePurge()
    publish(store, make_draft(store, 4, write_id="aaaa"))
    publish(store, make_draft(store, 5, write_id="bbbb"), mode="overwrite")
    store.interfere = lambda: rollback(store, 1)
    done = retire(store, [1])
    assert (done.version, done.retired) == (4, (1,))
    assert verify(store).ok
    assert load_manifest(store).digest == load_manifest(store, version=3).digest


def test_an_append_that_comes_first_is_kept(make_draft):
    store = BeforePurge()
    publish(store, make_draft(store, 4, write_id="aaaa"))
    publish(store, make_draft(store, 5, write_id="bbbb"), mode="overwrite")
    store.interfere = lambda: publish(store, make_draft(store, 3, first=50, write_id="cccc"), mode="append")
    assert retire(store, [1]).version == 4
    assert load_manifest(store).rows == 8
    assert verify(store).ok


def test_a_publisher_that_slept_through_a_purge_cannot_publish_what_is_gone(store, make_draft):
    draft = make_draft(store, 4, write_id="aaaa")
    publish(store, draft)
    publish_all(store, make_draft, "bbbb")
    retire(store, [1])
    with pytest.raises(VersionNotFound, match="was published as version 1"):
        publish(store, draft, mode="overwrite")


def test_leftovers_of_unpublished_writes_stay_for_a_week(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    make_draft(store, 4, write_id="cccc")
    store.put("_versions/writes/cccc.json", b"{}")
    sizes = [len(store.objects[key]) for key in store.below("cccc/")]
    pending = retire(store, [1]).pending
    assert [(each.write_id, each.num_objects) for each in pending] == [("cccc", len(sizes) + 1)]  # and the marker
    assert [each.num_bytes for each in pending] == [sum(sizes) + len(b"{}")]
    assert store.below("cccc/") != []
    store.pass_days(8)
    assert retire(store, []).pending == ()
    assert store.below("cccc/") == []


def test_a_vacuum_after_a_purge_finds_nothing_that_the_purge_left(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    retire(store, [1], unsafe_ttl=True)
    store.pass_days(20)
    assert [each.key for each in vacuum(store).removed if "/shard." in each.key] == []
