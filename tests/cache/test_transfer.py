"""Objects in chunks, whole or by parts, within a deadline."""

import threading

import pytest

from smalti.cache.transfer import PART_BYTES, cut, stream, stream_parts
from smalti.errors import StoreError, StoreNotFound, StoreTimeout
from smalti.storage.retry import Deadline
from smalti.testing import MemoryStore

SIZE = 2 * PART_BYTES + 5
DATA = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


@pytest.fixture
def store():
    found = MemoryStore()
    found.put("k", DATA)
    return found


class Counting(MemoryStore):
    """Notes how many ranges are asked for at the same time, and waits until `expected` are."""

    def __init__(self, expected):
        super().__init__()
        self.together, self._all_here = 0, threading.Barrier(expected)
        self.spans = []

    def get_range(self, key, begin, end):
        self.spans.append((begin, end))
        if begin < 2 * PART_BYTES:
            self._all_here.wait(30)
            self.together += 1
        return super().get_range(key, begin, end)


def parts(store, key="k", num_bytes=SIZE, *, at_once=2, seconds=30.0):
    return stream_parts(store, key, cut(num_bytes, 0, at_once), deadline=Deadline(seconds))


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_parts_are_the_object_in_order(store, at_once):
    assert b"".join(parts(store, at_once=at_once)) == DATA


def test_so_many_parts_are_asked_for_at_once():
    store = Counting(2)
    store.put("k", DATA)
    assert b"".join(parts(store, at_once=2)) == DATA
    assert store.together == 2


def test_parts_are_not_asked_for_far_ahead_of_the_one_who_takes_them(store):
    asked = []
    get_range = store.get_range
    store.get_range = lambda key, begin, end: asked.append(begin) or get_range(key, begin, end)
    taken = parts(store, at_once=1)
    assert next(taken) == DATA[:PART_BYTES]
    taken.close()
    assert max(asked) <= PART_BYTES, "one part ahead, and no further"


def test_an_object_that_is_longer_than_it_should_be_is_noticed(store):
    assert len(b"".join(parts(store, num_bytes=SIZE - 3))) == SIZE - 2, "one byte more than was declared"


def test_an_object_that_is_shorter_than_it_should_be_is_noticed(store):
    assert b"".join(parts(store, num_bytes=SIZE + 9)) == DATA


def test_a_part_that_fails_is_the_error_of_the_whole(store):
    with pytest.raises(StoreNotFound):
        list(parts(store, "other"))


@pytest.mark.parametrize("read", ["whole", "parts"])
def test_a_store_that_never_answers_is_a_timeout_that_says_what_to_do(read):
    free = threading.Event()

    class Held(MemoryStore):
        def get_range(self, *_):
            free.wait(60)
            return b""

        def fetch(self, *_, **__):
            free.wait(60)
            return 0

    chunks = stream(Held(), "k", deadline=Deadline(30), stall=0.1) if read == "whole" else parts(Held(), seconds=0.1)
    with pytest.raises(StoreTimeout, match=r"(no byte for|not complete within) 0 s \(0 bytes.*download_timeout"):
        list(chunks)
    free.set()


@pytest.mark.parametrize("read", ["whole", "parts"])
def test_an_error_that_is_not_the_stores_says_which_object(read):
    class Broken(MemoryStore):
        def get_range(self, *_):
            raise ZeroDivisionError("of the client")

        def fetch(self, *_, **__):
            raise ZeroDivisionError("of the client")

    chunks = stream(Broken(), "k", deadline=Deadline(30), stall=30) if read == "whole" else parts(Broken())
    with pytest.raises(StoreError, match="k: ZeroDivisionError: of the client"):
        list(chunks)
