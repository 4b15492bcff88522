"""A conditional request whose reply is lost, or that takes effect and is repeated: the work is done all the same."""

import pytest

from smalti.catalog import history, load_manifest, publish, rollback, tag, tags, untag, write_index
from smalti.exchange import copy_version
from smalti.storage.probe import probe_store
from smalti.testing import MemoryStore
from smalti.writer import compact

CONDITIONAL = ("put_if_absent", "put_if_match", "delete")


class RepeatingStore(MemoryStore):
    """A store that executes every conditional request twice, as after a lost reply; the second reply counts."""

    def put_if_absent(self, key, data):
        super().put_if_absent(key, data)
        super().put_if_absent(key, data)

    def put_if_match(self, key, data, etag):
        super().put_if_match(key, data, etag)
        return super().put_if_match(key, data, etag)

    def delete(self, key):
        super().delete(key)
        super().delete(key)


def two_versions(store, make_draft):
    publish(store, make_draft(store, 3))
    publish(store, make_draft(store, 4), mode="append")


def moved_tag(store, _):
    tag(store, "best", 1)
    tag(store, "best", 2, move=True)
    assert tags(store) == {"best": 2}


WORK = {
    "publish": lambda store, make_draft: publish(store, make_draft(store, 2), mode="append"),
    "overwrite": lambda store, make_draft: publish(store, make_draft(store, 2), mode="overwrite"),
    "rollback": lambda store, _: rollback(store, 1),
    "tag": lambda store, _: tag(store, "best", 1),
    "move a tag": moved_tag,
    "untag": lambda store, _: (tag(store, "best", 1), untag(store, "best")),
    "write_index": lambda store, _: write_index(store),
    "compact": lambda store, _: compact(store),
    "copy": lambda store, make_draft: copy_version(other_set(make_draft), store, mode="overwrite"),
    "probe of exclusive puts": lambda store, _: store.check_exclusive_puts("p"),
    "probe of conditional puts": lambda store, _: store.check_conditional_puts("p"),
    "probe_store": lambda store, _: no_problems(probe_store(store)),
}


def other_set(make_draft):
    store = MemoryStore(url="memory-store://other")
    publish(store, make_draft(store, 5))
    return store


def no_problems(probe):
    assert probe.problems == ()


@pytest.mark.parametrize("name", WORK)
def test_a_request_that_took_effect_and_is_repeated_is_our_own(make_draft, name):
    store = RepeatingStore()
    two_versions(store, make_draft)
    WORK[name](store, make_draft)
    check_consistent(store)


@pytest.mark.parametrize("name", WORK)
@pytest.mark.parametrize("request_name", CONDITIONAL)
def test_a_lost_reply_ends_nothing(make_draft, name, request_name):
    store = MemoryStore()
    two_versions(store, make_draft)
    store.plant(request_name, lost_ack=True, times=1)
    WORK[name](store, make_draft)
    store.heal()
    check_consistent(store)


def check_consistent(store):
    assert [info.problem for info in history(store)] == [""] * len(history(store))
    assert load_manifest(store).rows == sum(shard.samples for shard in load_manifest(store).shards)
    left = [info.key for info in store.list() if "probe" in info.key or "/writes/" in info.key]
    assert left == []
