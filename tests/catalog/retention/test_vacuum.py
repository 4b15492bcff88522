"""A vacuum removes exactly the objects that no version needs, also with concurrent publishers and faults."""

import pickle

import pytest

from smalti.catalog import history, load_manifest, publish, rollback, verify
from smalti.catalog.manifest import read_header
from smalti.catalog.retention import markers
from smalti.catalog.retention.vacuum import LEAST_SECONDS, parse_age, vacuum
from smalti.catalog.tags import tag, tags, untag
from smalti.errors import (
    CatalogError,
    CommitConflict,
    IndexFileError,
    StoreAuthError,
    StoreError,
    StoreNotFound,
    VersionNotFound,
)
from smalti.format import emit_index
from smalti.storage import LocalStore, ObjectInfo
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.stores import MemoryStore
from tests.stores.memory import Killed

DAY = 86400.0


class AgingStore(MemoryStore):
    """A store whose clock the test sets; it is far from this machine's."""

    def __init__(self):
        self.now = 1000 * DAY
        super().__init__(clock=lambda: self.now)

    def pass_days(self, days):
        self.now += days * DAY

    def below(self, folder):
        return sorted(key for key in self.objects if key.startswith(folder))


@pytest.fixture
def store():
    return AgingStore()


def publish_all(store, make_draft, *names, mode="overwrite"):
    """Publish a version for each name, which is its write id, a day apart."""
    for number, name in enumerate(names):
        publish(store, make_draft(store, 4 + number, write_id=name), mode=mode)
        store.pass_days(1)


def is_whole(store, version):
    return verify(store, version=version).ok


def test_a_dry_run_reports_what_would_be_removed_and_changes_nothing(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    before, shards = dict(store.objects), store.below("aaaa/")
    report = vacuum(store)
    assert report.dry_run
    assert report.expired == (1,)
    assert {each.key for each in report.removed if "/shard." in each.key} == set(shards)
    assert report.num_bytes == sum(len(before[each.key]) for each in report.removed)
    assert store.objects == before
    assert "would be removed; versions that go: 1" in report.summary()


def test_a_report_can_be_pickled(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    report = vacuum(store)
    assert [each.key for each in report.removed] == [read_header(store, 1).table_key, *store.below("aaaa/")]
    assert pickle.loads(pickle.dumps(report)) == report


def test_an_old_version_is_removed_and_the_newest_stays_complete(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    seen = []
    report = vacuum(store, dry_run=False, on_remove=lambda done, total: seen.append((done, total)))
    assert (report.dry_run, report.version, report.expired) == (False, 3, (1,))
    assert seen[-1] == (len(report.removed), len(report.removed))
    assert store.below("aaaa/") == []
    assert store.below("bbbb/") != []
    assert is_whole(store, 2)
    assert is_whole(store, 3)
    assert load_manifest(store).digest == load_manifest(store, version=2).digest
    with pytest.raises(VersionNotFound, match="version 1 was removed by a vacuum; the newest is 3"):
        load_manifest(store, version=1)
    assert [(info.version, info.operation, info.is_expired) for info in history(store)] == [
        (1, "overwrite", True),
        (2, "overwrite", False),
        (3, "vacuum", False),
    ]
    with pytest.raises(VersionNotFound):
        rollback(store, 1)


def test_a_version_is_young_until_it_was_superseded_long_ago(store, make_draft):
    publish(store, make_draft(store, 4, write_id="aaaa"))
    store.pass_days(100)
    publish(store, make_draft(store, 5, write_id="bbbb"), mode="overwrite")
    store.pass_days(6.9)
    assert vacuum(store, dry_run=False).removed == ()
    assert is_whole(store, 1)
    store.pass_days(0.2)
    assert vacuum(store, dry_run=False).expired == (1,)


def test_shards_that_an_append_took_over_stay(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb", "cccc", mode="append")
    store.pass_days(20)
    report = vacuum(store, dry_run=False)
    assert report.expired == (1, 2)
    assert [each.key for each in report.removed if "/shard." in each.key] == []
    assert is_whole(store, 3)


def test_a_version_that_was_rolled_back_to_stays(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    rollback(store, 1)
    store.pass_days(20)
    report = vacuum(store, dry_run=False)
    assert report.expired == (1, 2)
    assert store.below("bbbb/") == []
    assert is_whole(store, 3)


def test_a_tag_keeps_its_version_until_the_tag_is_removed(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb", "cccc")
    tag(store, "best", 1)
    store.pass_days(20)
    assert vacuum(store, dry_run=False).expired == (2,)
    assert is_whole(store, 1)
    untag(store, "best")
    assert 1 in vacuum(store, dry_run=False).expired
    assert store.below("aaaa/") == []


# ---------------------------------------------------------------------- dead writers and foreign objects


def test_every_header_is_read_before_the_tags_are(store, make_draft):
    """A tag that is made while headers are read must be seen."""
    publish_all(store, make_draft, "aaaa", "bbbb", "cccc")
    tag(store, "best", 1)
    before = len(store.calls)
    vacuum(store)
    keys = [call.key for call in store.calls[before:]]
    headers = [place for place, key in enumerate(keys) if key in {"_versions/00000001.json", "_versions/00000002.json"}]
    assert len(headers) == 2
    assert max(headers) < keys.index("_versions/tags") < keys.index("_versions/tags/best.json")


def put_orphan(store, make_draft, name, *, marked=True):
    if marked:
        markers.begin(store, name)
    return make_draft(store, 4, write_id=name)


def test_leftovers_of_a_dead_writer_are_removed_with_its_marker(store, make_draft):
    publish_all(store, make_draft, "aaaa")
    draft = put_orphan(store, make_draft, "dead")
    store.pass_days(20)
    report = vacuum(store, dry_run=False)
    assert store.below("dead/") == []
    assert store.below("_versions/writes/") == []
    assert report.removed[-1].key == "_versions/writes/dead.json", "the marker last: it says whose the rest is"
    assert is_whole(store, None)
    with pytest.raises(CatalogError, match="write dead was considered abandoned"):
        publish(store, draft, mode="append")
    assert is_whole(store, None)


def test_a_writer_that_may_still_be_running_loses_nothing(store, make_draft):
    publish_all(store, make_draft, "aaaa")
    draft = put_orphan(store, make_draft, "slow")
    store.pass_days(20)
    store.put("slow/00001/shard.00000.mds", b"put just now")
    fresh = put_orphan(store, make_draft, "fresh")
    report = vacuum(store, dry_run=False)
    assert report.removed == ()
    assert report.kept["of a write that may still go on"] == len(draft.shards) + 1
    assert publish(store, draft, mode="append").version == 2
    assert publish(store, fresh, mode="append").version == 3


def test_a_marker_that_is_renewed_keeps_an_old_write_alive(store, make_draft):
    publish_all(store, make_draft, "aaaa")
    draft = put_orphan(store, make_draft, "slow")
    store.pass_days(20)
    markers.begin(store, "slow")
    assert vacuum(store, dry_run=False).removed == ()
    assert is_whole(store, publish(store, draft, mode="append").version)


def test_nothing_is_removed_that_smalti_did_not_write(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    strangers = [
        "notes.txt",
        "aaaa/notes.txt",
        "aaaa/00000/shard.txt",
        "unknown/00000/shard.00000.mds",
        "deep/down/aaaa/00000/shard.00000.mds",
        "other/index.json",
        "_versions/readme.md",
        "_versions/0000/x.arrow",
        "_versions/writes/sub/dead.json",
    ]
    for key in strangers:
        store.put(key, b"a stranger's")
    draft = put_orphan(store, make_draft, "unmarked", marked=False)
    store.pass_days(400)
    vacuum(store, dry_run=False)
    assert [key for key in strangers if key not in store.objects] == []
    assert [shard.raw.basename for shard in draft.shards if shard.raw.basename not in store.objects] == []
    assert store.below("aaaa/") == ["aaaa/00000/shard.txt", "aaaa/notes.txt"]


def test_shards_of_losing_attempts_and_tables_without_a_version_are_removed(store, make_draft):
    publish_all(store, make_draft, "aaaa")
    leftovers = ["aaaa/00000-0badcafe/shard.00000.mds.zstd", f"_versions/{'ab' * 32}.arrow"]
    for key in (*leftovers, "_versions/probe-0123456789abcdef"):
        store.put(key, b"left")
    store.pass_days(20)
    report = vacuum(store, dry_run=False)
    assert {each.key for each in report.removed} == {*leftovers, "_versions/probe-0123456789abcdef"}
    assert is_whole(store, None)


def test_splits_are_swept_like_the_rest(store, make_draft):
    publish(store, make_draft(store, 4, write_id="aaaa", splits=("train", "test")))
    publish(store, make_draft(store, 4, write_id="bbbb", splits=("train",)), mode="overwrite")
    store.pass_days(20)
    vacuum(store, dry_run=False)
    assert store.below("train/aaaa") == []
    assert store.below("test/") == []
    assert is_whole(store, None)


def test_uploads_that_dead_writers_never_ended_are_aborted_in_time(store, make_draft):
    publish_all(store, make_draft, "aaaa")
    markers.begin(store, "dead")
    store.begin_upload("dead/00000/shard.00000.mds")
    store.begin_upload("aaaa/00001/shard.00000.mds.zstd")
    stranger = store.begin_upload("somebody/elses.bin")
    store.pass_days(20)
    young = store.begin_upload("dead/00000/shard.00001.mds")
    expected = ["dead/00000/shard.00000.mds", "aaaa/00001/shard.00000.mds.zstd"]
    assert [each.key for each in vacuum(store).uploads] == expected
    assert len(list(store.unfinished_uploads())) == 4, "a dry run aborts none"
    assert [each.key for each in vacuum(store, dry_run=False).uploads] == expected
    assert list(store.unfinished_uploads()) == [stranger, young]


def test_a_marker_stays_while_its_write_has_a_young_upload(store, make_draft):
    """Without the marker a later vacuum could not recognise the upload."""
    publish_all(store, make_draft, "aaaa")
    markers.begin(store, "dead")
    store.pass_days(5)
    upload = store.begin_upload("dead/00000/shard.00000.mds")
    store.pass_days(5)
    first = vacuum(store, dry_run=False)
    assert (first.removed, first.uploads) == ((), ())
    store.pass_days(5)
    second = vacuum(store, dry_run=False)
    assert [each.key for each in second.removed] == ["_versions/writes/dead.json"]
    assert second.uploads == (upload,)


def test_credentials_that_may_not_list_uploads_can_still_vacuum(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    store.plant("unfinished_uploads", error=StoreAuthError("403"))
    report = vacuum(store, dry_run=False)
    assert report.uploads is None
    assert report.expired == (1,)


# ---------------------------------------------------------------------- what is refused


def test_less_than_a_week_needs_unsafe_ttl(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(2)
    with pytest.raises(CatalogError, match="`older_than` is 1 days; less than 7 may remove"):
        vacuum(store, older_than="24h")
    assert vacuum(store, older_than="24h", unsafe_ttl=True).expired == (1,)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604800), ("36h", 129600), ("90 m", 5400), ("2w", 1209600), ("1.5d", 129600), (3, 3)]
)
def test_ages_are_parsed(text, seconds):
    assert parse_age(text) == seconds
    assert LEAST_SECONDS == 604800


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "1y", -1, float("nan"), float("inf"), True, None])
def test_an_invalid_age_is_refused(text):
    with pytest.raises(CatalogError, match="expected an age such as"):
        parse_age(text)


class TimelessStore(MemoryStore):
    def list(self, prefix=""):
        return (ObjectInfo(info.key, info.num_bytes, info.modified) for info in super().list(prefix))


def test_a_store_that_reports_no_times_is_refused(make_draft):
    store = TimelessStore()
    publish(store, make_draft(store))
    before = dict(store.objects)
    with pytest.raises(CatalogError, match="does not report when its objects were put"):
        vacuum(store)
    assert store.objects == before


def test_a_place_without_versions_is_refused(store, make_draft):
    with pytest.raises(StoreNotFound, match="no shard set"):
        vacuum(store)
    draft = make_draft(store)
    store.put("index.json", emit_index(draft.shards))
    with pytest.raises(CatalogError, match="a plain MDS set without versions"):
        vacuum(store)


def test_a_kept_version_that_cannot_be_read_stops_the_vacuum(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.delete(read_header(store, 2).table_key)
    store.pass_days(20)
    before = dict(store.objects)
    with pytest.raises(IndexFileError, match="is gone"):
        vacuum(store, dry_run=False)
    assert store.objects == before


# ---------------------------------------------------------------------- concurrent publishers


class BeforeVacuum(InterferingStore, AgingStore):
    """A store that interferes just before the version of the vacuum is put."""

    before = b'"vacuum"'


def test_a_rollback_that_comes_first_keeps_its_version(make_draft):
    store = BeforeVacuum()
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    store.interfere = lambda: rollback(store, 1)
    report = vacuum(store, dry_run=False)
    assert store.interfere is None
    assert report.removed == ()
    assert store.below("aaaa/") != []
    assert is_whole(store, None)


def test_an_append_that_comes_first_is_kept(make_draft):
    store = BeforeVacuum()
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    store.interfere = lambda: publish(store, make_draft(store, 4, write_id="cccc"), mode="append")
    vacuum(store, dry_run=False)
    assert load_manifest(store).rows == 9
    assert is_whole(store, None)


def test_a_tag_that_comes_first_keeps_its_version(make_draft):
    store = BeforeVacuum()
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    store.interfere = lambda: tag(store, "best", 1)
    vacuum(store, dry_run=False)
    assert tags(store) == {"best": 1}
    assert is_whole(store, 1)


def test_two_concurrent_vacuums_remove_the_same(make_draft):
    store = BeforeVacuum()
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)
    store.interfere = lambda: vacuum(store, dry_run=False)
    vacuum(store, dry_run=False)
    assert store.below("aaaa/") == []
    assert is_whole(store, None)


def test_if_others_keep_publishing_a_vacuum_fails_and_removes_nothing(make_draft):
    store = BeforeVacuum()
    publish_all(store, make_draft, "aaaa", "bbbb")
    store.pass_days(20)

    def again():
        publish(store, make_draft(store, 2), mode="append")
        store.interfere = again

    class Quick:
        def now(self):
            from datetime import datetime, timezone

            return datetime(2026, 1, 1, tzinfo=timezone.utc)

        def pause(self, seconds):
            """Do not wait."""

    store.interfere = again
    with pytest.raises(CommitConflict, match="nothing was removed"):
        vacuum(store, dry_run=False, clock=Quick())
    assert is_whole(store, 1)


# ---------------------------------------------------------------------- kills


def make_leftovers(store, make_draft):
    publish_all(store, make_draft, "aaaa", "bbbb", "cccc", "dddd")
    tag(store, "best", 3)
    put_orphan(store, make_draft, "dead")
    store.pass_days(20)


def test_killed_after_any_write_every_kept_version_is_whole_and_the_next_one_finishes(make_draft):
    expected = AgingStore()
    make_leftovers(expected, make_draft)
    vacuum(expected, dry_run=False)
    shards = sorted(key for key in expected.objects if "/shard." in key)
    deaths = 0
    for count in range(100):
        store = AgingStore()
        make_leftovers(store, make_draft)
        store.die_after_writes(count)
        try:
            vacuum(store, dry_run=False)
        except Killed:
            deaths += 1
        else:
            break
        store.heal()
        for version in (3, None):
            assert verify(store, version=version, deep=False).ok, f"killed after {count} writes"
        store.pass_days(20)
        vacuum(store, dry_run=False)
        assert sorted(key for key in store.objects if "/shard." in key) == shards
        assert store.below("_versions/writes/") == []
        assert verify(store, version=3).ok
    assert deaths >= 10


def test_a_delete_that_fails_ends_the_vacuum_and_the_next_one_continues(store, make_draft):
    make_leftovers(store, make_draft)
    store.plant("delete", key="*.mds", at=2, times=2)  # a single lost reply is settled by a second request
    with pytest.raises(StoreError):
        vacuum(store, dry_run=False)
    vacuum(store, dry_run=False)
    assert store.below("aaaa/") == store.below("bbbb/") == store.below("dead/") == []
    assert is_whole(store, 3)


def test_on_a_local_disk_the_files_are_removed(tmp_path, make_draft):
    import os

    store = LocalStore(tmp_path / "set")
    publish(store, make_draft(store, 4, write_id="aaaa"))
    publish(store, make_draft(store, 5, write_id="bbbb"), mode="overwrite")
    for path in store.root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    vacuum(store, dry_run=False)
    assert list((store.root / "aaaa").rglob("*.mds")) == []
    assert is_whole(store, 2)
