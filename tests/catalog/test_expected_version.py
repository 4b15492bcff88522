"""A guess of the newest version saves a round trip when it is right, and changes nothing when it is wrong."""

import json
import threading

import pytest

from smalti.catalog import load_manifest, opening, publish
from smalti.catalog.manifest import INDEX, header_key
from smalti.catalog.opening import WantedVersion, open_version
from smalti.errors import StoreAuthError, StoreNotFound, StoreTimeout
from tests.stores import MemoryStore

DEADLINE = 280.0


class WaitingStore(MemoryStore):
    """A store that answers for the index file only after the headers of two versions were requested."""

    def __init__(self, *keys):
        super().__init__()
        self.requested = {key: threading.Event() for key in keys}
        self.is_waiting = False

    def get_range(self, key, begin, end):
        if self.is_waiting and key == INDEX:
            assert all(event.wait(DEADLINE) for event in self.requested.values())
        found_event = self.requested.get(key)
        if found_event is not None:
            found_event.set()
        return super().get_range(key, begin, end)


class OvertakingStore(MemoryStore):
    """A store in which a version is published after its header was found missing, and before the index is read."""

    def __init__(self):
        super().__init__()
        self.missed, self.publish_next, self.missing = threading.Event(), None, StoreNotFound

    def get_range(self, key, begin, end):
        if self.publish_next is not None and key == INDEX:
            assert self.missed.wait(DEADLINE)
            act, self.publish_next = self.publish_next, None
            act()
        try:
            return super().get_range(key, begin, end)
        except StoreNotFound as error:
            raise self.missing(str(error)) from error
        finally:
            if key == header_key(2):
                self.missed.set()


def test_an_expected_version_opens_in_one_round_trip(make_draft):
    store = WaitingStore(header_key(2), header_key(3))
    for rows in (3, 4):
        publish(store, make_draft(store, rows), mode="overwrite")
    for event in store.requested.values():
        event.clear()
    store.is_waiting = True  # a reader that waits for the index file first would never get it
    before = len(store.calls)
    assert open_version(store, WantedVersion(expected=2)).version == 2
    assert sorted(call.key for call in store.calls[before:]) == sorted([INDEX, header_key(2), header_key(3)])


@pytest.mark.parametrize("expected", [1, 2, 3, 4, 9, 10**6])
def test_a_wrong_expectation_finds_the_newest_version_all_the_same(make_draft, expected):
    store = MemoryStore()
    for rows in (3, 4, 5):
        publish(store, make_draft(store, rows), mode="overwrite")
    found, plain = open_version(store, WantedVersion(expected=expected)), load_manifest(store)
    assert (found.version, found.digest, list(found.shards)) == (3, plain.digest, list(plain.shards))


@pytest.mark.parametrize("missing", [StoreNotFound, StoreAuthError])  # S3 without the right to list answers 403
def test_a_version_published_while_its_header_was_asked_for_is_found(make_draft, missing):
    store = OvertakingStore()
    publish(store, make_draft(store, 3), mode="overwrite")
    store.missing = missing
    store.missed.clear()

    def publish_next():
        store.missing = StoreNotFound
        publish(store, make_draft(store, 4), mode="overwrite")
        store.missing = missing

    store.publish_next = publish_next
    assert open_version(store, WantedVersion(expected=1)).version == 2


def test_a_set_replaced_while_its_header_was_asked_for_is_read_as_it_is_now(make_draft):
    store, other = OvertakingStore(), MemoryStore()
    for rows in (3, 4):
        publish(store, make_draft(store, rows), mode="overwrite")
    for rows in (5, 6):
        publish(other, make_draft(other, rows), mode="overwrite")

    def replace():
        for info in list(store.list()):
            store.delete(info.key)
        for info in other.list():
            store.put(info.key, other.get(info.key))

    store.missed.clear()
    store.publish_next = replace
    found = open_version(store, WantedVersion(expected=2))
    assert (found.version, found.rows) == (2, 6)


def test_an_expectation_of_a_plain_set_changes_nothing(make_draft):
    store = MemoryStore()
    publish(store, make_draft(store, 3), mode="overwrite")
    shards = load_manifest(store).shards
    plain = MemoryStore()
    entries = ", ".join(json.dumps(shard.to_json(), sort_keys=True) for shard in shards)
    plain.put(INDEX, f'{{"shards": [{entries}], "version": 2}}'.encode())
    assert open_version(plain, WantedVersion(expected=5)).version == 0


def test_a_header_that_never_arrives_is_an_error_that_names_it(make_draft, monkeypatch):
    monkeypatch.setattr(opening, "HEADER_TIMEOUT_SECONDS", 0.2)
    store = MemoryStore()
    publish(store, make_draft(store, 3), mode="overwrite")
    store.plant("get_range", key=header_key(1), delay=5.0)
    with pytest.raises(StoreTimeout, match=f"{header_key(1)}: no answer for 0 s"):
        open_version(store, WantedVersion(expected=1))
