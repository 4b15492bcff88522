"""Transfers of objects, whole or in parts, within a deadline."""

import threading

import pytest

from smalti.cache import CacheOptions, Counters, ShardSource
from smalti.cache.eviction import SpaceManager
from smalti.cache.fetch import load_shard
from smalti.cache.mapping import OpenShards
from smalti.cache.sources import ShardSources
from smalti.cache.transfer import PART_BYTES, ConcurrencyTuner, PartsTimeout, stream, stream_parts
from smalti.errors import StoreError, StoreNotFound, StoreTimeout
from smalti.storage.retry import TransferDeadline
from tests.cache.conftest import DIGEST, Clock, SlowStore
from tests.stores import MemoryStore

SIZE = 2 * PART_BYTES + 5
DATA = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


@pytest.fixture
def store():
    found = MemoryStore()
    found.put("k", DATA)
    return found


class CountingStore(MemoryStore):
    """A store of a user that adds up what `write` returns, as of any file."""

    def fetch(self, key, out, *, on_chunk=None):
        total = 0
        for begin in range(0, SIZE, PART_BYTES):
            total += out.write(self.objects[key][begin : begin + PART_BYTES])
        return total


def test_the_file_that_a_store_fetches_into_returns_how_much_was_written():
    store = CountingStore()
    store.put("k", DATA)
    deadline = TransferDeadline(30.0, 0, what="memory-store://test/k")
    assert b"".join(stream(store, "k", deadline=deadline, stall=30.0)) == DATA


class ConcurrentStore(MemoryStore):
    """A store that waits until `expected` ranges are requested at the same time."""

    def __init__(self, expected):
        super().__init__()
        self.together, self._all_here = 0, threading.Barrier(expected)
        self.spans = []

    def get_range(self, key, begin, end):
        self.spans.append((begin, end))
        if begin < 2 * PART_BYTES:
            self._all_here.wait(120)
            self.together += 1
        return super().get_range(key, begin, end)


def parts(store, key="k", num_bytes=SIZE, *, at_once=2, seconds=30.0):
    deadline = TransferDeadline(seconds, 0, what="memory-store://test/k")
    return stream_parts(store, key, num_bytes, at_once, deadline=deadline, stall=seconds)


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_parts_are_the_object_in_order(store, at_once):
    assert b"".join(parts(store, at_once=at_once)) == DATA


def test_parts_are_requested_concurrently():
    store = ConcurrentStore(2)
    store.put("k", DATA)
    assert b"".join(parts(store, at_once=2)) == DATA
    assert store.together == 2


def test_parts_are_not_requested_far_ahead_of_the_reader(store):
    asked = []
    get_range = store.get_range
    store.get_range = lambda key, begin, end: asked.append(begin) or get_range(key, begin, end)
    taken = parts(store, at_once=1)
    assert next(taken) == DATA[:PART_BYTES]
    taken.close()
    assert max(asked) <= PART_BYTES, "one part ahead at most"


def test_an_object_longer_than_declared_is_noticed(store):
    assert len(b"".join(parts(store, num_bytes=SIZE - 3))) == SIZE - 2, "one byte more than was declared"


def test_an_object_shorter_than_declared_is_noticed(store):
    assert b"".join(parts(store, num_bytes=SIZE + 9)) == DATA


def test_a_part_that_fails_is_the_error_of_the_whole(store):
    with pytest.raises(StoreNotFound):
        list(parts(store, "other"))


@pytest.mark.parametrize("read", ["whole", "parts"])
def test_a_store_that_never_answers_is_a_timeout_with_advice(read):
    free = threading.Event()

    class Held(MemoryStore):
        def get_range(self, *_):
            free.wait(60)
            return b""

        def fetch(self, *_, **__):
            free.wait(60)
            return 0

    deadline = TransferDeadline(30.0, SIZE)
    chunks = stream(Held(), "k", deadline=deadline, stall=0.1) if read == "whole" else parts(Held(), seconds=0.1)
    with pytest.raises(StoreTimeout, match=r"(no byte for|not complete within) 0 s \(0 .*bytes.*download_timeout"):
        list(chunks)
    free.set()


@pytest.mark.parametrize("read", ["whole", "parts"])
def test_an_unexpected_error_is_raised_with_the_key(read):
    class Broken(MemoryStore):
        def get_range(self, *_):
            raise ZeroDivisionError("of the client")

        def fetch(self, *_, **__):
            raise ZeroDivisionError("of the client")

    deadline = TransferDeadline(30.0, SIZE)
    chunks = stream(Broken(), "k", deadline=deadline, stall=30) if read == "whole" else parts(Broken())
    with pytest.raises(StoreError, match="k: ZeroDivisionError: of the client"):
        list(chunks)


def test_a_slow_object_that_progresses_arrives_long_after_the_time_limit():
    clock = Clock()
    slow = SlowStore(clock, 64 << 10, 1.0)  # 64 KiB/s: 513 seconds
    slow.put("k", DATA)
    deadline = TransferDeadline(10.0, SIZE, clock)
    assert b"".join(stream(slow, "k", deadline=deadline, stall=5.0)) == DATA
    assert clock.now == 513.0


def test_a_trickling_object_fails_at_the_time_limit():
    clock = Clock()
    slow = SlowStore(clock, 1, 0.5)
    slow.put("k", DATA)
    with pytest.raises(StoreTimeout, match="k: less than 64 KiB arrived within 60 s"):
        list(stream(slow, "k", deadline=TransferDeadline(60.0, SIZE, clock, what="k"), stall=30.0))
    assert clock.now < 90.0, "some further chunks may be queued"


def test_a_timeout_of_the_store_in_a_part_is_a_parts_timeout():
    store = MemoryStore()
    store.plant("get_range", error=StoreTimeout("too slow", key="k"))
    with pytest.raises(PartsTimeout, match="too slow"):
        list(parts(store))


def test_a_large_shard_whose_parts_come_too_slowly_is_read_as_a_whole(put_large, make_cache):
    """Progress within a part is not seen: a link that is too slow for parts may be fast enough for the whole object."""
    store = MemoryStore()
    info = put_large(store)
    store.plant("get_range", error=StoreTimeout("too slow"))
    assert make_cache(store, [info], retry=1).shard(0)[2]["b"][:1] == b"\2"
    assert [call.op for call in store.calls].count("fetch") == 1


def test_a_slow_shard_that_progresses_arrives_long_after_the_time_limit(put_large, tmp_path):
    clock = Clock()
    store = SlowStore(clock, 64 << 10, 1.0)  # 64 KiB/s: 289 seconds
    info = put_large(store, hashes=())
    options = CacheOptions(local=str(tmp_path), download_retry=1, download_timeout=10.0)
    sources = ShardSources([ShardSource(store, DIGEST, [info], options)], None)
    space = SpaceManager(None, sources, Counters(), OpenShards(1))
    assert len(load_shard(space, ConcurrencyTuner(), 0, clock=clock)) == info.samples
    assert clock.now == 289.0
