"""Versions whose shard table is in segments: published, appended to, rolled back, compared, vacuumed, copied, damaged.

The limits are small here: a version of more than eight shards is in segments of four.
"""

import json
from dataclasses import replace
from hashlib import sha256

import pytest

from smalti.catalog import (
    Draft,
    diff,
    history,
    load_manifest,
    new_write_id,
    publish,
    rollback,
    vacuum,
    verify,
    write_index,
)
from smalti.catalog import index as index_files
from smalti.catalog.digest import digest_of
from smalti.catalog.manifest import header_key, parse_header, read_header, segment_keys
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention.vacuum import retire
from smalti.catalog.table import segments as tables
from smalti.catalog.table.segments import emit_list
from smalti.catalog.table.shard_table import TableFile, TableFiles, segments_in, sizes_of
from smalti.catalog.tags import tag
from smalti.errors import CatalogError, FormatError, IndexFileError, VersionNotFound
from smalti.exchange import copy_version
from smalti.format import parse_index
from smalti.storage import LocalStore
from tests.catalog.publishing.interfering_store import InterferingStore
from tests.catalog.retention.test_vacuum import AgingStore
from tests.stores import MemoryStore

PER_SHARD = 12
"""Samples of a shard of `make_draft`, about."""


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 8)
    monkeypatch.setattr(tables, "SEGMENT_SHARDS", 4)
    monkeypatch.setattr(index_files, "MAX_LISTED_SHARDS", 10)


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.nightly)])  # test_contract.py has its puts
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


@pytest.fixture
def make_shards(make_draft):
    """Return a function that writes shards and returns a draft of exactly so many."""

    def make(store, count, **options):
        found = make_draft(store, count * PER_SHARD, **options)
        assert len(found.shards) >= count
        return Draft(**{**vars(found), "shards": found.shards[:count]})

    return make


def tables_of(store):
    return {info.key for info in store.list("_versions") if info.key.endswith((".arrow", ".segments.json"))}


def published(store, make_shards, first=9, *more, **options):
    versions = [publish(store, make_shards(store, first, **options))]
    return versions + [publish(store, make_shards(store, count), mode="append") for count in more]


# ---------------------------------------------------------------------- publishing and reading


@pytest.mark.parametrize("count", [8, 9, 12, 13])
def test_a_version_is_in_segments_above_the_limit_and_opens_with_its_shards(store, make_shards, count):
    draft = make_shards(store, count)
    made = publish(store, draft)
    header = read_header(store, 1)
    opened = load_manifest(store)
    assert list(opened.shards) == list(made.shards) == list(draft.shards)
    assert (opened.rows, opened.num_bytes, opened.digest) == (made.rows, made.num_bytes, header.digest)
    form = json.loads(store.get(header_key(1)))["smalti"]
    assert (form, header.digest_scheme) == (3, "content-segments-4" if count > 8 else "content")
    assert verify(store).ok


def test_an_older_reader_says_that_smalti_must_be_updated(make_shards):
    store = MemoryStore()
    published(store, make_shards)
    newer = store.get(header_key(1)).replace(b'"smalti": 3', b'"smalti": 4')
    with pytest.raises(IndexFileError, match="update smalti"):
        parse_header(newer, where="header")
    for changed in (b'"smalti": 1', b'"smalti": 2', b'"smalti": true'):
        with pytest.raises(IndexFileError, match="update smalti"):
            parse_header(store.get(header_key(1)).replace(b'"smalti": 3', changed), where="header")


def test_an_append_puts_the_last_segment_and_the_list_alone(store, make_shards):
    draft = make_shards(store, 9)
    publish(store, draft)
    before = tables_of(store)
    added = make_shards(store, 2)
    made = publish(store, added, mode="append")
    assert list(load_manifest(store).shards) == list(made.shards) == [*draft.shards, *added.shards]
    assert len(tables_of(store) - before) == 2
    old, new = (list(segment_keys(store, read_header(store, version)).values()) for version in (1, 2))
    assert old[:2] == new[:2]
    assert old[2] != new[2]


class CountingStore(MemoryStore):
    """A store that records which objects are read."""

    def __init__(self):
        super().__init__()
        self.reads = set()

    def get_range(self, key, begin, end):
        self.reads.add(key)
        return super().get_range(key, begin, end)

    def get(self, key):
        self.reads.add(key)
        return super().get(key)


def test_append_tag_history_diff_and_rollback_read_no_full_segment_that_stays(make_shards):
    store = CountingStore()
    published(store, make_shards, 13)
    full = set(list(segment_keys(store, read_header(store, 1)).values())[1:3])  # the first gives the schema
    store.reads.clear()
    publish(store, make_shards(store, 2), mode="append")
    assert [info.rows for info in history(store)] == [read_header(store, version).rows for version in (1, 2)]
    assert diff(store, 1, 2).num_kept == 13
    tag(store, "best", 1)
    rollback(store, 1)
    assert len(full) == 2
    assert not full & store.reads


def test_many_appends_are_the_version_that_is_published_at_once(make_shards):
    store, other = MemoryStore(), MemoryStore()
    made = published(store, make_shards, 3, 4, 1, 3, 2, 6)
    draft = Draft(new_write_id(), made[-1].schema, tuple(made[-1].shards))
    for key in (shard.raw.basename for shard in draft.shards):
        other.put(key, store.get(key))
    at_once = publish(other, draft)
    assert at_once.digest == made[-1].digest
    assert [each.digest_scheme for each in made] == [*["content"] * 3, *["content-segments-4"] * 3]


def test_splits_of_a_version_in_segments_are_opened_alone(store, make_draft):
    draft = make_draft(store, 80, splits=("train", "val"))
    publish(store, draft)
    opened = load_manifest(store)
    assert opened.partitions == ("train", "val")
    for split in ("train", "val"):
        assert list(opened.select(split)) == [shard for shard in draft.shards if shard.partition == split]


def test_a_set_of_one_table_that_grows_is_put_into_segments_and_goes_back(store, make_shards, monkeypatch):
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 100)
    first = publish(store, make_shards(store, 20))
    assert first.digest_scheme == "content"
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 8)
    assert load_manifest(store).digest == first.digest
    grown = publish(store, make_shards(store, 1), mode="append")
    assert (grown.digest_scheme, len(grown.shards)) == ("content-segments-4", 21)
    assert list(grown.shards[:20]) == list(first.shards)
    back = rollback(store, 1)
    assert (back.digest, back.digest_scheme, list(back.shards)) == (first.digest, "content", list(first.shards))
    assert diff(store, 1, 2).num_kept == 20
    assert verify(store, version=2).ok


def test_a_rollback_below_the_limit_and_appends_after_it_work(store, make_shards):
    small, large = published(store, make_shards, 3, 9)
    back = rollback(store, 1)
    assert (back.digest, back.digest_scheme) == (small.digest, "content")
    assert rollback(store, 2).digest == large.digest
    rollback(store, 1)
    again = publish(store, make_shards(store, 2), mode="append")
    assert (len(again.shards), again.digest_scheme) == (5, "content")


def test_versions_of_both_schemes_with_the_same_shards_are_equal(make_shards, monkeypatch):
    store = MemoryStore()
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 100)
    first = publish(store, make_shards(store, 20))
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 8)
    replace_content(store, first.redraft(new_write_id()), based_on=1)
    found = diff(store, 1, 2)
    assert load_manifest(store).digest != first.digest
    assert (found.is_equal, found.num_kept, found.added, found.removed) == (True, 20, (), ())


def test_a_shard_that_a_segment_lists_already_cannot_be_appended(make_shards):
    store = MemoryStore()
    first = published(store, make_shards, 13)[0]
    again = Draft(new_write_id(), first.schema, (first.shards[2],))
    with pytest.raises(CatalogError, match="is listed 2 times"):
        publish(store, again, mode="append")
    assert load_manifest(store).version == 1


def test_a_rollback_looks_up_the_shards_that_the_newest_version_lacks(make_shards):
    store = MemoryStore()
    first, _ = publish(store, make_shards(store, 9)), publish(store, make_shards(store, 10), mode="overwrite")
    store.delete(first.shards[8].stored.basename)
    with pytest.raises(CatalogError, match="is not in the store"):
        rollback(store, 1)
    assert load_manifest(store).version == 2


# ---------------------------------------------------------------------- faults


def damaged_segment(store, change):
    """Publish twelve shards and change the second segment's bytes."""
    key = list(segment_keys(store, read_header(store, 1)).values())[1]
    store.put(key, change(store.get(key)))


@pytest.mark.parametrize("place", [0, 200, 900, -40])
def test_a_flipped_bit_in_a_segment_is_an_error_when_it_is_read(make_shards, place):
    store = MemoryStore()
    published(store, make_shards, 12)

    def flip(data):
        found = bytearray(data)
        found[place] ^= 1
        return bytes(found)

    damaged_segment(store, flip)
    opened = load_manifest(store)
    assert len(list(opened.shards[:4])) == 4
    with pytest.raises(IndexFileError, match="the object was changed or cut"):
        opened.shards[4]
    with pytest.raises(IndexFileError, match="the object was changed or cut"):
        _ = sizes_of(opened.shards)
    with pytest.raises(IndexFileError):
        verify(store)


def test_a_truncated_segment_and_a_missing_one_are_errors(make_shards):
    store = MemoryStore()
    published(store, make_shards, 12)
    damaged_segment(store, lambda data: data[:-9])
    with pytest.raises(IndexFileError, match="the object was changed or cut"):
        list(load_manifest(store).shards)
    store.delete(list(segment_keys(store, read_header(store, 1)).values())[1])
    with pytest.raises(IndexFileError, match="is gone"):
        list(load_manifest(store).shards)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data.replace(b'"rows": ', b'"rows":  ', 1)], ids=["cut", "other"]
)
def test_a_list_of_segments_that_was_changed_is_an_error(make_shards, change):
    store = MemoryStore()
    published(store, make_shards, 12)
    key = read_header(store, 1).table_key
    store.put(key, change(store.get(key)))
    with pytest.raises(IndexFileError, match="the object was changed or cut"):
        load_manifest(store)
    store.delete(key)
    with pytest.raises(IndexFileError, match="is gone"):
        load_manifest(store)


def test_a_version_with_a_damaged_list_can_be_replaced(make_shards):
    store = MemoryStore()
    published(store, make_shards, 12)
    store.put(read_header(store, 1).table_key, b"{}")
    made = publish(store, make_shards(store, 9), mode="overwrite")
    assert (made.version, len(load_manifest(store).shards)) == (2, 9)


def with_segments(store, facts):
    """Replace the list of version 1, and its SHA-256 in the header, as a faulty writer might."""
    header, data = read_header(store, 1), emit_list(TableFiles(tuple(map(TableFile, facts)), 4))
    store.put(header.table_key, data)
    store.put(header_key(1), replace(header, table_sha256=sha256(data).hexdigest()).emit())


def facts_in(store, version):
    return segments_in(load_manifest(store, version=version).shards).facts


def test_segments_of_two_versions_mixed_are_an_error(make_shards):
    store = MemoryStore()
    publish(store, make_shards(store, 12, first=1000))
    publish(store, make_shards(store, 12, first=2000), mode="overwrite")
    one, two = facts_in(store, 1), facts_in(store, 2)
    with_segments(store, [one[0], two[1], one[2]])
    with pytest.raises(IndexFileError, match="its table has"):
        load_manifest(store, version=1)
    mixed = replace(two[1], digest=one[1].digest)  # the digests of the list fit, those of the shards do not
    with_segments(store, [one[0], mixed, one[2]])
    with pytest.raises(IndexFileError, match="has the digest"):
        verify(store, version=1)
    named = replace(one[1], key=two[1].key)
    with_segments(store, [one[0], named, one[2]])
    with pytest.raises(IndexFileError, match="expected sha256"):
        list(load_manifest(store, version=1).shards)


@pytest.mark.parametrize("field", ["rows", "num_bytes", "splits"])
def test_a_segment_that_contradicts_its_facts_is_an_error(make_shards, field):
    store = MemoryStore()
    published(store, make_shards, 12)
    one, two, three = facts_in(store, 1)
    (facts,) = two.splits.values()
    if field == "splits":
        odd, other = replace(two, splits={"train": facts}), three
    elif field == "rows":
        odd = replace(two, rows=two.rows + 1, splits={"": facts._replace(rows=two.rows + 1)})
        (last,) = three.splits.values()
        other = replace(three, rows=three.rows - 1, splits={"": last._replace(rows=three.rows - 1)})
    else:
        odd, other = replace(two, num_bytes=two.num_bytes + 1), three
    with_segments(store, [one, odd, other])
    with pytest.raises(IndexFileError, match="the list of segments says"):
        list(load_manifest(store).shards)


# ---------------------------------------------------------------------- vacuum


def test_a_vacuum_removes_segments_of_expired_versions_and_keeps_shared_ones(make_shards):
    store = AgingStore()
    publish(store, make_shards(store, 9))
    store.pass_days(1)
    publish(store, make_shards(store, 2), mode="append")
    old, new = (set(segment_keys(store, read_header(store, version)).values()) for version in (1, 2))
    lists = {read_header(store, version).table_key for version in (1, 2)}
    store.pass_days(20)
    report = vacuum(store, dry_run=False)
    assert {each.key for each in report.removed} >= (old - new) | {read_header(store, 1).table_key}
    assert tables_of(store) == new | {read_header(store, 2).table_key}
    assert lists - tables_of(store) == {read_header(store, 1).table_key}
    assert verify(store).ok
    assert vacuum(store, dry_run=False).removed == ()
    with pytest.raises(VersionNotFound, match="vacuum"):
        load_manifest(store, version=1)


class BeforeVacuum(InterferingStore, AgingStore):
    """A store that interferes just before the version of the vacuum is put."""

    before = b'"vacuum"'


def test_an_append_during_a_vacuum_is_whole(make_shards):
    store = BeforeVacuum()
    for count in (9, 10):
        publish(store, make_shards(store, count), mode="overwrite")
        store.pass_days(20)
    store.interfere = lambda: publish(store, make_shards(store, 3), mode="append")
    vacuum(store, dry_run=False)
    assert len(load_manifest(store).shards) == 13
    assert verify(store).ok


class BeforeAppend(InterferingStore, AgingStore):
    """A store that interferes just before the version of an append is put."""

    before = b'"append"'


@pytest.mark.parametrize("unsafe_ttl", [False, True])
def test_a_vacuum_during_an_append_leaves_the_append_whole(make_shards, unsafe_ttl):
    store = BeforeAppend()
    for count in (9, 10):
        publish(store, make_shards(store, count), mode="overwrite")
        store.pass_days(20)
    age = {"older_than": 0.0, "unsafe_ttl": True} if unsafe_ttl else {}
    draft = make_shards(store, 3)
    store.interfere = lambda: (store.pass_days(0.001), vacuum(store, dry_run=False, **age))
    made = publish(store, draft, mode="append")
    assert store.interfere is None
    assert (made.version, len(made.shards)) == (4, 13)
    assert verify(store).ok or unsafe_ttl
    assert all(key in store.objects for key in segment_keys(store, read_header(store, 4)).values())


def test_a_retired_version_loses_its_own_segments_at_once(make_shards):
    store = MemoryStore()
    publish(store, make_shards(store, 9))
    publish(store, make_shards(store, 2), mode="append")
    old, new = (set(segment_keys(store, read_header(store, version)).values()) for version in (1, 2))
    retire(store, [1])
    assert not (old - new) & tables_of(store)
    assert new <= tables_of(store)
    assert verify(store).ok


# ---------------------------------------------------------------------- index files and copies


def test_the_index_file_of_a_large_version_lists_no_shards_and_says_so(store, make_shards):
    made = published(store, make_shards, 12)[0]
    index = json.loads(store.get("index.json"))
    assert (index["shards"], index["smalti"]["version"]) == ([], 1)
    assert "`smalti write-index URL`" in index["version"]
    with pytest.raises(FormatError, match="smalti write-index"):
        parse_index(store.get("index.json"), where="index.json")
    assert load_manifest(store).digest == made.digest


def test_a_list_on_request_shows_the_newest_version_until_the_next_one(store, make_shards):
    made = published(store, make_shards, 12)[0]
    write_index(store)
    shards, _ = parse_index(store.get("index.json"), where="index.json")
    assert [shard.stored.basename for shard in shards] == [shard.stored.basename for shard in made.shards]
    assert publish(store, replace(made.redraft(made.write_id)), mode="append").version == 1
    assert len(json.loads(store.get("index.json"))["shards"]) == 12  # publishing the same write again keeps the list
    publish(store, make_shards(store, 1), mode="append")
    assert json.loads(store.get("index.json"))["shards"] == []
    rollback(store, 1)
    small = publish(store, make_shards(store, 2), mode="overwrite")
    assert len(json.loads(store.get("index.json"))["shards"]) == len(small.shards)


def test_a_list_that_took_long_to_write_does_not_replace_a_newer_index_file(store, make_shards, monkeypatch):
    first = published(store, make_shards, 12)[0]
    monkeypatch.setattr(index_files, "MANY_SHARDS", 10)
    write_parts = index_files.index_parts

    def slow_parts(*args):
        yield from write_parts(*args)
        publish(store, make_shards(store, 1), mode="append")

    with monkeypatch.context() as slow:
        slow.setattr(index_files, "index_parts", slow_parts)
        index_files.put_index(store, "index.json", first.shards, {"smalti": {"version": 1}})
    assert json.loads(store.get("index.json"))["smalti"]["version"] == 2
    write_index(store)
    monkeypatch.setattr(index_files, "MAX_REPLACED_BYTES", 100)
    index_files.replace_index(store, "index.json", b'{"shards": [], "smalti": {"version": 1}}', 1)
    assert len(json.loads(store.get("index.json"))["shards"]) == 13


def test_a_version_whose_list_of_segments_could_not_be_read_is_not_published(store, make_shards, monkeypatch):
    published(store, make_shards, 9)
    monkeypatch.setattr(tables, "MAX_LIST_BYTES", 100)
    with pytest.raises(CatalogError, match=r"the list of the 3 segments of the shard table would have \d+ bytes"):
        publish(store, make_shards(store, 9), mode="overwrite")
    monkeypatch.undo()
    assert load_manifest(store).version == 1


def test_the_folder_of_a_split_of_a_large_version_names_the_way_to_open_it(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 120, splits=("train", "val")))
    with pytest.raises(IndexFileError, match="split='train'"):
        load_manifest(store.child("train"))
    write_index(store)
    assert load_manifest(store.child("train")).rows == 120


def test_a_place_without_versions_has_no_list_to_write(store):
    with pytest.raises(VersionNotFound, match="no versions"):
        write_index(store)


@pytest.mark.parametrize("limit_of_source", [8, 100])
def test_a_copy_has_the_digest_and_the_scheme_of_its_source(make_shards, tmp_path, monkeypatch, limit_of_source):
    source, target = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "two")
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", limit_of_source)
    made = published(source, make_shards, 12, 2)
    monkeypatch.setattr(tables, "MAX_TABLE_SHARDS", 8)
    for version in (1, 2):
        copy_version(source, target, version=version, mode="create" if version == 1 else "overwrite")
    for version in made:
        copied = load_manifest(target, version=version.version)
        assert (copied.digest, copied.digest_scheme) == (version.digest, version.digest_scheme)
        assert list(copied.shards) == list(version.shards)
    assert verify(target).ok


# ---------------------------------------------------------------------- versions of earlier releases


def as_earlier(store, version=1):
    """Give a version in segments the list and the header that an earlier release wrote."""
    shards = load_manifest(store, version=version).shards
    facts = segments_in(shards).facts
    old = [replace(each, digest=digest_of(shards[4 * place : 4 * place + 4])) for place, each in enumerate(facts)]
    with_segments(store, old)
    header = read_header(store, version)
    digest = sha256(f"smalti-manifest-2 4\n{''.join(each.digest + chr(10) for each in old)}".encode()).hexdigest()
    store.put(header_key(version), replace(header, digest=digest, digest_scheme="segments-4").emit())
    return digest


def test_a_version_in_segments_of_an_earlier_release_opens_and_the_next_one_has_the_new_digest(make_shards):
    store, other = MemoryStore(), MemoryStore()
    added = published(store, make_shards, 12)[0], make_shards(store, 2)
    digest = as_earlier(store)
    assert json.loads(store.get(header_key(1)))["smalti"] == 2
    assert (load_manifest(store).digest, verify(store).ok) == (digest, True)
    before = tables_of(store)
    grown = publish(store, added[1], mode="append")
    assert len(tables_of(store) - before) == 2  # the full segments stay as they are
    for key, data in list(store.objects.items()):
        if not key.startswith(("_versions/", "index.json")):
            other.put(key, data)
    at_once = publish(other, Draft(new_write_id(), grown.schema, tuple(grown.shards)))
    assert (grown.digest_scheme, grown.digest) == ("content-segments-4", at_once.digest)
    assert verify(store).ok
    assert rollback(store, 1).digest == digest


def test_added_columns_and_copies_keep_the_digest_of_a_version_in_segments_of_an_earlier_release(make_shards):
    store, target = MemoryStore(), MemoryStore("memory-store://other")
    published(store, make_shards, 12)
    digest = as_earlier(store)
    copy_version(store, target)
    draft = load_manifest(store).redraft(new_write_id(), sidecars=({"kind": "sources", "key": "x"},))
    added = replace_content(store, draft, based_on=1)
    for version in (added, load_manifest(target)):
        assert (version.digest, version.digest_scheme) == (digest, "segments-4")
