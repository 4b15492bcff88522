"""Tags name versions, and are moved only on request."""

import pytest

from smalti.catalog import diff, publish, verify
from smalti.catalog.opening import find_newest, read_tag, read_tags
from smalti.catalog.publishing import announce_removal
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
from smalti.storage import LocalStore
from tests.stores import MemoryStore
from tests.stores.memory import Call


@pytest.fixture(params=["memory", "local"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "set")


@pytest.fixture
def three_versions(store, make_draft):
    """Return a set of three versions."""
    for number in range(3):
        publish(store, make_draft(store, 3 + number), mode="overwrite")
    return store


def test_a_tag_names_the_newest_version_or_the_one_given(three_versions):
    assert tag(three_versions, "newest") == 3
    assert tag(three_versions, "best", 2) == 2
    assert tags(three_versions) == {"best": 2, "newest": 3}
    assert read_tag(three_versions, "best").version == 2


def test_the_same_tag_again_does_nothing_and_another_version_is_refused(three_versions):
    tag(three_versions, "best", 2)
    assert tag(three_versions, "best", 2) == 2
    with pytest.raises(CatalogError, match="tag 'best' is that of version 2; say `move` to give it to version 1"):
        tag(three_versions, "best", 1)
    assert tags(three_versions) == {"best": 2}
    assert tag(three_versions, "best", 1, move=True) == 1
    assert tags(three_versions) == {"best": 1}


def test_an_untagged_name_is_free_again(three_versions):
    tag(three_versions, "best", 2)
    untag(three_versions, "best")
    assert tags(three_versions) == {}
    with pytest.raises(VersionNotFound, match="has no tag 'best'"):
        untag(three_versions, "best")
    assert tag(three_versions, "best", 3) == 3


@pytest.mark.parametrize("name", ["", "3", "2026", "a/b", "../x", "-x", "a b", "x" * 129, "ä"])
def test_a_name_that_cannot_be_a_key_or_reads_like_a_version_is_refused(three_versions, name):
    with pytest.raises(CatalogError, match="is not usable"):
        tag(three_versions, name)
    assert tags(three_versions) == {}


@pytest.mark.parametrize("version", [0, -1, 4])
def test_only_an_existing_version_gets_a_tag(three_versions, version):
    with pytest.raises(VersionNotFound, match="versions 1 to 3"):
        tag(three_versions, "best", version)
    assert tags(three_versions) == {}


def test_a_place_without_versions_has_nothing_to_tag(store):
    store.put("index.json", b'{"shards": [], "version": 2}')  # like an empty set of another writer
    with pytest.raises(VersionNotFound, match="no versions"):
        tag(store, "best")


NOTHING_THERE = "holds no shard set: neither index.json nor _versions/00000001.json is there; check the address"


def test_at_a_wrong_address_the_set_is_missing_and_not_the_tag(store):
    store.put("beside/index.txt", b"something else")
    for ask in (
        lambda: read_tag(store, "best").version,
        lambda: verify(store, tag="best"),
        lambda: diff(store, "best"),
        lambda: tag(store, "best"),
        lambda: untag(store, "best"),
    ):
        with pytest.raises(StoreNotFound, match=NOTHING_THERE):
            ask()


def test_for_a_missing_tag_the_existing_tags_are_named(three_versions):
    with pytest.raises(VersionNotFound, match=r"(?m)has no tag 'best'; its tags: none$"):
        read_tag(three_versions, "best")
    tag(three_versions, "second", 2)
    tag(three_versions, "first", 1)
    with pytest.raises(VersionNotFound, match=r"(?m)has no tag 'best'; its tags: 'first', 'second'$"):
        read_tag(three_versions, "best")


def test_a_set_whose_index_file_is_not_yet_written_can_be_tagged(three_versions):
    three_versions.delete("index.json")
    with pytest.raises(VersionNotFound, match="has no tag 'best'; its tags: none"):
        read_tag(three_versions, "best")


def test_without_the_right_to_list_a_missing_tag_is_reported(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    store.plant("list", error=StoreAuthError("403"))
    with pytest.raises(VersionNotFound, match=r"(?m)has no tag 'best'$"):
        read_tag(store, "best")


def test_reading_an_existing_tag_takes_one_request(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    tag(store, "best")
    before = len(store.calls)
    assert read_tag(store, "best").version == 1
    assert store.calls[before:] == [Call("get_range", "_versions/tags/best.json")]


def test_a_version_that_a_vacuum_removes_gets_no_tag(three_versions):
    assert announce_removal(three_versions, find_newest(three_versions).header, "vacuum-1", expired=(1,)) is not None
    with pytest.raises(VersionNotFound, match="version 1 was removed by a vacuum"):
        tag(three_versions, "best", 1)
    assert tags(three_versions) == {}


class VacuumingStore(MemoryStore):
    """A store in which a vacuum expires version 1 just when a tag is put."""

    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        if "/tags/" in key:
            assert announce_removal(self, find_newest(self).header, "vacuum-1", expired=(1,)) is not None


def test_a_tag_that_a_vacuum_overtakes_is_removed_again(make_draft):
    store = VacuumingStore()
    publish(store, make_draft(store, 3))
    publish(store, make_draft(store, 4), mode="overwrite")
    with pytest.raises(VersionNotFound, match="version 1 was removed"):
        tag(store, "best", 1)
    assert tags(store) == {}


def test_a_tag_whose_reply_is_lost_is_read_back(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    store.plant("put_if_absent", key="*/tags/*", times=1, lost_ack=True)
    assert tag(store, "best", 1) == 1
    store.plant("put_if_absent", key="*/tags/*")
    with pytest.raises(StoreError, match="planted"):
        tag(store, "second", 1)
    assert tags(store) == {"best": 1}


def test_a_move_whose_put_was_doubled_is_no_conflict_but_another_mover_is(make_draft):
    class Doubling(MemoryStore):
        def put_if_match(self, key, data, etag):
            super().put_if_match(key, data, etag)
            return super().put_if_match(key, data, etag)

    store = Doubling()
    for _ in range(3):
        publish(store, make_draft(store, 3), mode="overwrite")
    tag(store, "best", 1)
    assert tag(store, "best", 2, move=True) == 2

    class Racing(MemoryStore):
        def put_if_match(self, key, data, etag):
            self.put(key, data.replace(b"3", b"2"))
            return super().put_if_match(key, data, etag)

    store = Racing()
    for _ in range(3):
        publish(store, make_draft(store, 3), mode="overwrite")
    tag(store, "best", 1)
    with pytest.raises(CommitConflict, match="another process moved this tag"):
        tag(store, "best", 3, move=True)
    assert tags(store) == {"best": 2}


def test_a_damaged_tag_is_refused(three_versions):
    tag(three_versions, "best", 1)
    three_versions.put("_versions/tags/best.json", b'{"version": "1"}')
    with pytest.raises(IndexFileError, match="expected a version from 1 on"):
        read_tag(three_versions, "best")


class InterferingStore(MemoryStore):
    """A store that calls `interfere` right before the next tag is created."""

    interfere = None

    def put_if_absent(self, key, data):
        interfere, self.interfere = self.interfere, None if "/tags/" in key else self.interfere
        if interfere is not None and "/tags/" in key:
            interfere()
        super().put_if_absent(key, data)


def test_an_existing_tag_is_not_removed_by_a_later_call_that_fails(make_draft):
    """The vacuum sees the tag and keeps the version, so a second call that fails must not remove the tag."""
    store = InterferingStore()
    for number in range(2):
        publish(store, make_draft(store, 3 + number), mode="overwrite")
    assert tag(store, "best", 1) == 1
    store.interfere = lambda: announce_removal(store, find_newest(store).header, "vacuum-1", expired=(1,))
    with pytest.raises(VersionNotFound, match="removed by a vacuum"):
        tag(store, "best", 1)
    assert tags(store) == {"best": 1}


def test_a_new_tag_is_removed_if_its_version_expires(make_draft):
    store = InterferingStore()
    for number in range(2):
        publish(store, make_draft(store, 3 + number), mode="overwrite")
    store.interfere = lambda: announce_removal(store, find_newest(store).header, "vacuum-1", expired=(1,))
    with pytest.raises(VersionNotFound, match="removed by a vacuum"):
        tag(store, "best", 1)
    assert tags(store) == {}


def test_metadata_moves_with_its_tag_and_a_tag_that_was_read_is_moved_only_if_it_is_still_the_same(three_versions):
    store = three_versions
    tag(store, "best", 1, metadata={"model": "a"})
    read = read_tags(store)["best"]
    assert (read.version, read.metadata) == (1, {"model": "a"})
    tag(store, "best", 1)  # says nothing about metadata
    assert read_tags(store)["best"] == read
    with pytest.raises(CatalogError, match="say `move`"):
        tag(store, "best", 1, metadata={"model": "b"})
    tag(store, "best", 2, move=read, metadata={"model": "b"})
    with pytest.raises(CommitConflict):
        tag(store, "best", 3, move=read)
    assert tags(store) == {"best": 2}
    with pytest.raises(CatalogError, match="at most 65536 fit"):
        tag(store, "large", 1, metadata={"model": "x" * 70_000})


def test_a_tag_that_was_copied_to_another_name_is_refused(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3))
    tag(store, "best", 1)
    store.put("_versions/tags/second.json", store.get("_versions/tags/best.json"))
    with pytest.raises(IndexFileError, match="is the tag 'best' under another name"):
        read_tag(store, "second")
    assert read_tag(store, "best").version == 1
