"""Index files when publishers overtake each other: the newest version stays, also if one is late or killed."""

import json

import pytest

from smalti.catalog import load_manifest, publish, rollback
from smalti.catalog.index import replace_index
from smalti.errors import CatalogError, CommitUnknown, StoreConflict, StoreError, StoreTimeout
from smalti.storage import LocalStore
from tests.stores import Killed, MemoryStore

WRITES = ("put", "put_if_absent", "put_if_match")


class InterruptedStore(MemoryStore):
    """A store that runs a function before its next write of one key, and can raise after that write."""

    def __init__(self, key, meanwhile, *, dies=True):
        super().__init__()
        self.key, self.meanwhile, self.dies = key, meanwhile, dies
        self.shown = []

    def put(self, key, data):
        self._around(key, lambda: super(InterruptedStore, self).put(key, data))

    def put_if_absent(self, key, data):
        self._around(key, lambda: super(InterruptedStore, self).put_if_absent(key, data))

    def put_if_match(self, key, data, etag):
        return self._around(key, lambda: super(InterruptedStore, self).put_if_match(key, data, etag))

    def _around(self, key, write):
        is_here = key == self.key and self.meanwhile is not None
        if is_here:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile(self)
        try:
            return write()
        finally:
            if key == "index.json":
                self.shown.append(version_in(self, key))
            if is_here and self.dies:
                raise Killed("right after its own write of the index")


def version_in(store, key="index.json"):
    return json.loads(store.objects[key])["smalti"]["version"]


@pytest.mark.parametrize("splits", [(None,), ("train", "test")])
@pytest.mark.parametrize("has_older", [False, True])
def test_a_slow_publisher_that_dies_leaves_the_index_of_the_newer_version(make_draft, splits, has_older):
    """Without the condition its own put would come last, and no publisher would look at the index file after it."""

    def overtake(store):
        publish(store, make_draft(store, 4, first=20, splits=splits), mode="append")

    key = f"{splits[0]}/index.json" if splits[0] else "index.json"
    store = InterruptedStore(key, None)
    if has_older:
        publish(store, make_draft(store, 2, splits=splits))
    store.meanwhile = overtake
    with pytest.raises(Killed):
        publish(store, make_draft(store, 3, first=10, splits=splits), mode="append")
    newest = 3 if has_older else 2
    assert load_manifest(store).version == newest
    for each in ("index.json", *(f"{split}/index.json" for split in splits if split)):
        assert version_in(store, each) == newest, each


def test_two_interleaved_publishers_never_show_an_older_version_after_a_newer_one(make_draft):
    store = InterruptedStore("index.json", None, dies=False)
    publish(store, make_draft(store, 2))
    store.meanwhile = lambda store: publish(store, make_draft(store, 4, first=20), mode="overwrite")
    made = publish(store, make_draft(store, 3, first=10), mode="append")
    assert made.version == 2, "to lose the index is no error"
    assert version_in(store) == 3
    assert store.shown == sorted(store.shown)


def test_the_index_of_a_split_that_a_newer_version_has_again_is_not_removed(make_draft):
    """The slow publisher drops the split, and finds the stale index only after the next version has written it."""
    store = InterruptedStore("train/index.json", None, dies=False)
    publish(store, make_draft(store, 2, splits=("train", "test")))
    store.meanwhile = lambda store: rollback(store, 1)
    deleted = []
    store.delete = lambda key: (deleted.append(key), MemoryStore.delete(store, key))
    publish(store, make_draft(store, 3, first=10, splits=("train",)), mode="overwrite")
    assert version_in(store, "test/index.json") == 3
    assert "test/index.json" not in deleted


def test_the_index_of_a_split_that_only_the_overtaken_version_has_is_removed(make_draft):
    """The newer publisher saw no index file yet, and so no split; the older one has just written its own."""
    store = InterruptedStore("index.json", None, dies=False)
    store.meanwhile = lambda store: publish(store, make_draft(store, 4, first=20), mode="overwrite")
    publish(store, make_draft(store, 2, splits=("train",)))
    assert version_in(store) == 2
    assert not store.exists("train/index.json")


@pytest.mark.parametrize("fault", [StoreTimeout("no reply"), StoreError("503")])
def test_a_lost_reply_to_the_put_of_an_index_is_settled_by_reading_it_back(make_draft, fault):
    store = MemoryStore()
    publish(store, make_draft(store, 2))
    store.plant("put_if_match", key="index.json", lost_ack=True, times=1, error=fault)
    assert publish(store, make_draft(store, 3, first=10), mode="append").version == 2
    assert version_in(store) == 2


def test_an_index_that_cannot_be_put_is_settled_by_calling_again(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 2))
    store.plant("put_if_match", key="index.json", times=1, error=StoreError("503"))
    draft = make_draft(store, 3, first=10)
    with pytest.raises(CommitUnknown):
        publish(store, draft, mode="append")
    assert publish(store, draft, mode="append").version == 2
    assert version_in(store) == 2


def test_an_index_that_is_there_already_is_not_put_again(make_draft):
    store = MemoryStore()
    draft = make_draft(store, 2)
    publish(store, draft)
    before = len(store.calls)
    publish(store, draft)
    assert [call for call in store.calls[before:] if call.op in WRITES] == []


class RefusingStore(MemoryStore):
    """A store that refuses every condition, as Ceph 16 does for its own ETags, or does not support them."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def put_if_match(self, key, data, etag):
        raise self.error


@pytest.mark.parametrize(
    "error", [StoreConflict("412"), StoreError("no locks", is_unsupported=True)], ids=["refuses", "cannot"]
)
def test_where_conditions_cannot_be_used_the_index_is_replaced_unconditionally(make_draft, error):
    store = RefusingStore(error)
    publish(store, make_draft(store, 2))
    assert publish(store, make_draft(store, 3, first=10), mode="append").version == 2
    assert version_in(store) == 2


def test_a_failure_of_the_store_does_not_make_the_put_unconditional(make_draft):
    store = RefusingStore(StoreError("503"))
    publish(store, make_draft(store, 2))
    with pytest.raises(CommitUnknown, match="503"):
        publish(store, make_draft(store, 3, first=10), mode="append")
    assert version_in(store) == 1


def test_a_store_that_keeps_nothing_of_an_index_is_reported(tmp_path):
    class LosingStore(MemoryStore):
        def put_if_absent(self, key, data):
            super().put_if_absent(key, b"")

        def put_if_match(self, key, data, etag):
            return super().put_if_match(key, b"", etag)

    with pytest.raises(CatalogError, match="the store has 0"):
        replace_index(LosingStore(), "index.json", b"{}", 1)


@pytest.mark.parametrize("junk", [b"", b"[]", b"{", b'{"smalti": 3}', b'{"smalti": {"version": true}}'])
def test_a_file_that_is_no_index_of_a_version_is_replaced(tmp_path, junk):
    store = LocalStore(tmp_path)
    store.put("index.json", junk)
    replace_index(store, "index.json", b'{"smalti": {"version": 1}}', 1)
    assert store.get("index.json") == b'{"smalti": {"version": 1}}'


@pytest.mark.parametrize(("version", "stays"), [(6, True), (7, False), (8, False)])
def test_only_an_older_index_is_replaced(tmp_path, version, stays):
    store = LocalStore(tmp_path)
    there, ours = b'{"smalti": {"version": 7}}', b'{"smalti": {"version": %d}, "x": 1}' % version
    store.put("index.json", there)
    replace_index(store, "index.json", ours, version)
    assert store.get("index.json") == (there if stays else ours)
