"""Descriptors and threads of caches: closed when a cache is dropped, and when descriptors run out."""

import ast
import gc
import os
import resource
import threading
import time
import weakref
from contextlib import contextmanager

import pytest

from smalti.cache import CacheOptions
from smalti.cache.mapping import is_out_of_descriptors
from smalti.errors import StoreError
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.cache.conftest import ids
from tests.shard_sets import write_set
from tests.storage.test_process import in_fork
from tests.stores import MemoryStore


@contextmanager
def no_garbage_collection():
    """Disable the garbage collector, so that only reference counting releases objects."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def descriptors():
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


@pytest.fixture
def await_no_threads():
    """Wait until the threads that began to fetch ahead in this test have ended."""
    before = set(threading.enumerate())

    def new():
        return [each for each in threading.enumerate() if each.name == "smalti-ahead" and each not in before]

    def wait(seconds=280):
        end = time.monotonic() + seconds
        while new() and time.monotonic() < end:
            time.sleep(0.005)
        assert new() == []

    return wait


def await_descriptors(expected):
    """Wait until no more than `expected` are open: a fetch ahead that is running is completed first."""
    end = time.monotonic() + 120
    while descriptors() > expected and time.monotonic() < end:
        time.sleep(0.005)
    assert descriptors() <= expected


@pytest.fixture
def a_set(tmp_path):
    return str(write_set(tmp_path / "set", 200))


@pytest.mark.parametrize("limit", [None, 1 << 20])
def test_a_dropped_dataset_closes_its_descriptors_at_once(tmp_path, await_no_threads, limit):
    remote = str(write_set(tmp_path / "set", 200, compression="zstd"))

    def read():
        dataset = StreamingDataset(
            remote=remote,
            cache=CacheOptions(local=str(tmp_path / "cache"), cache_limit=limit),
            batch_size=8,
            shuffle=True,
        )
        assert sum(len(batch["id"]) for batch in dataset.batches()) == 200
        return weakref.ref(dataset.stream.cache), descriptors()

    read()
    with no_garbage_collection():
        before = descriptors()
        cache, during = read()
        assert during > before + 5
        await_descriptors(before)
        assert cache() is None
    await_no_threads()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("steps", [3, 1000])
def test_a_dropped_loader_closes_its_descriptors_at_once(a_set, await_no_threads, num_workers, steps):
    def read():
        loader = StreamingDataLoader(
            StreamingDataset(remote=a_set, batch_size=8, shuffle=True), num_workers=num_workers
        )
        for step, _ in enumerate(loader, start=1):
            if step == steps:
                break

    read()
    with no_garbage_collection():
        before = descriptors()
        read()
        await_descriptors(before)
    await_no_threads()


def test_a_finished_epoch_leaves_no_threads(a_set, tmp_path, await_no_threads):
    dataset = StreamingDataset(remote=a_set, cache=CacheOptions(local=str(tmp_path / "cache")), batch_size=8)
    assert sum(len(batch["id"]) for batch in dataset.batches()) == 200
    await_no_threads(2.0)  # they would wait five seconds for more
    assert sum(len(batch["id"]) for batch in dataset.batches()) == 200, "threads start again"


def test_a_dropped_cache_ends_its_idle_threads(fill, make_cache, await_no_threads):
    store = MemoryStore()
    cache = make_cache(store, fill(store))
    cache.prefetch([0, 1, 2])
    ids(cache)
    del cache
    await_no_threads(2.0)


@pytest.mark.process
def test_twenty_datasets_share_half_of_the_descriptors(tmp_path):
    root = str(write_set(tmp_path / "set", 200))

    def read():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        others, most, kept = descriptors(), 0, []
        for _ in range(20):
            kept.append(StreamingDataset(remote=root, batch_size=8))
            assert sum(len(batch["id"]) for batch in kept[-1].batches()) == 200
            most = max(most, descriptors() - others - 2 * len(kept))  # two of its counters
        again = [sum(len(batch["id"]) for batch in dataset.batches()) for dataset in kept]
        return most, again == [200] * 20

    most, is_whole = ast.literal_eval(in_fork(read))
    assert is_whole
    assert 50 < most <= 110


@pytest.mark.process
def test_caches_unmap_shards_when_no_descriptor_is_left(tmp_path):
    root = str(write_set(tmp_path / "set", 200))

    def read():
        kept = StreamingDataset(remote=root, batch_size=8)
        assert sum(len(batch["id"]) for batch in kept.batches()) == 200
        few = descriptors() + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
        other = StreamingDataset(remote=root, batch_size=8)
        return [sum(len(batch["id"]) for batch in dataset.batches()) for dataset in (other, kept)]

    assert in_fork(read) == "[200, 200]"


def test_running_out_of_descriptors_is_recognized_by_the_cause_of_an_error():
    error = StoreError("shard 0 cannot be read")
    assert not is_out_of_descriptors(error)
    error.__cause__ = OSError(24, "Too many open files")
    assert is_out_of_descriptors(error)
    assert not is_out_of_descriptors(OSError(2, "No such file"))
