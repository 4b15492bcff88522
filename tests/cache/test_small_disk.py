"""A disk that holds a few shards: a fetch ahead never takes the space of the shard that a reader waits for."""

import time
from contextlib import suppress

import numpy as np
import pytest

from smalti.cache import Uses
from tests.canary import paths_below
from tests.faults.cached_sets import copies
from tests.stores import MemoryStore


@pytest.fixture
def made(fill, make_cache, tmp_path):
    """Make a cache without a limit, on a disk with space for `room` of six shards; return it and its store."""

    def make(order, room):
        store = MemoryStore()
        infos = fill(store, 80)[:6]
        size = max(info.raw.num_bytes for info in infos)

        def sizes():
            found = {}
            for path in paths_below(tmp_path / "cache"):
                if path.suffix in {".mds", ".part"}:
                    with suppress(FileNotFoundError):  # published in between
                        found[path] = path.stat().st_size
            return found

        def free(_folder):
            before, now = None, sizes()
            while now != before:  # a file that is renamed during a walk may be missed, or counted twice
                before, now = now, sizes()
            return room * size - sum(now.values())

        cache = make_cache(store, infos)
        cache.plan(iter([Uses(np.array([shard for _, shard in order]), np.array([step for step, _ in order]), 9)]))
        cache._space.get().free_bytes = free
        return cache, store

    return make


def shards_on_disk(tmp_path):
    return sorted(int(path.name[6:11]) for path in copies(tmp_path / "cache"))


def await_idle(cache):
    """Wait until nothing is queued or being fetched."""
    end, queue = time.monotonic() + 120, cache._queue.get()
    while queue._fetches and time.monotonic() < end:
        time.sleep(0.002)
    assert not queue._fetches


def test_fetches_ahead_leave_space_for_one_more_shard(made, tmp_path):
    cache, _ = made([(step, step) for step in range(6)], room=4)
    cache.shard(0)
    for shard in (1, 2, 3, 4):
        cache.prefetch([shard])
        await_idle(cache)
    assert len(shards_on_disk(tmp_path)) == 3, "one of four places stays free"


def test_fetches_ahead_at_once_leave_space_for_one_more_shard(made, tmp_path):
    cache, _ = made([(step, step) for step in range(6)], room=4)
    cache.shard(0)
    cache.prefetch([1, 2, 3, 4])
    await_idle(cache)
    # A shard that is published while another is admitted may be counted twice; the other is fetched at a later step.
    assert 2 <= len(shards_on_disk(tmp_path)) <= 3, "one of four places stays free"


def test_an_epoch_on_a_small_disk_fetches_each_shard_once(made, tmp_path):
    cache, store = made([(step, step) for step in range(6)], room=3)
    for step in range(6):
        cache.reached(step)
        cache.shard(step)
        cache.prefetch(range(step + 1, 6))
        await_idle(cache)
        assert len(shards_on_disk(tmp_path)) <= 3
    assert [call.op for call in store.calls].count("fetch") == 6


def test_a_shard_that_is_needed_now_replaces_the_one_that_is_needed_last(made, tmp_path):
    cache, _ = made([(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)], room=2)
    for step, shard in enumerate([0, 1, 2]):
        cache.reached(step)
        cache.shard(shard)
    assert shards_on_disk(tmp_path) == [0, 2], "1 is needed after 0"


def test_shards_of_the_current_step_are_not_evicted(made, tmp_path):
    cache, _ = made([(0, 0), (0, 1), (1, 2)], room=1)
    cache.shards([0, 1])
    assert shards_on_disk(tmp_path) == [0, 1]


def test_after_a_batch_on_a_full_disk_its_shards_are_unmapped(made):
    cache, _ = made([(step, step) for step in range(3)], room=2)
    cache.shards([0])
    cache.done([0])
    assert cache._opened.missing(range(6)) == [1, 2, 3, 4, 5], "there is space"
    for step in (1, 2):
        cache.reached(step)
        cache.shards([step])
    cache.done([2])
    assert cache._opened.peek(2) is None
