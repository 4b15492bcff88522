"""The bytes that an epoch fetches under a limit, beside the fewest that it can."""

import warnings

import numpy as np
import pytest

from smalti.cache import CacheOptions, ShardCache, Source, Uses
from smalti.storage import LocalStore
from smalti.testing import LoggedStore
from tests.cache.conftest import DIGEST
from tests.faults.f_sets import copies, read_all, reader, remote_set, shard_bytes


@pytest.fixture
def made(fill, tmp_path):
    """A cache for so many shards of four, which will be asked for in this order; and the store's log."""

    def make(order, room, keep_zip=False):
        store = LocalStore(tmp_path / "set")
        infos = fill(store, compression="zstd")[:4]
        largest = max(info.raw.num_bytes + (info.zip.num_bytes if keep_zip else 0) for info in infos)
        options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=5.0, keep_zip=keep_zip)
        far = LoggedStore(store, tmp_path / "log")
        cache = ShardCache(Source(far, DIGEST, infos, options), limit=room * largest)
        cache.plan(iter([Uses(np.array(order), np.arange(len(order)), len(order))]))
        return cache, far

    return make


def fetched(store):
    return [int(key.split("shard.")[1][:5]) for _, key, _ in store.lines("fetch")]


def read(cache, order):
    for step, shard in enumerate(order):
        cache.reached(step)
        cache.shard(shard)


def test_the_shard_that_is_needed_last_goes(made):
    order = [0, 1, 2, 0, 1, 3, 0, 2]
    cache, store = made(order, room=2)
    read(cache, order)
    # 2 for 1 (needed at 4, 0 at 3), 1 for 2 (at 7), 3 for 1 (never again), 2 for any
    assert fetched(store) == [0, 1, 2, 1, 3, 2]
    assert cache.counters.get("evictions") == 4


def test_the_compressed_copy_counts_and_goes_first(made, tmp_path):
    order = [0, 1, 0, 1]
    cache, store = made(order, room=2, keep_zip=True)
    cache._limit = cache._keeper.get().limit = max(
        info.raw.num_bytes + info.zip.num_bytes for info in cache._sources[0].shards
    ) + min(info.raw.num_bytes for info in cache._sources[0].shards)
    read(cache, order)
    assert fetched(store) == [0, 1]
    assert sorted(path.name for path in copies(tmp_path / "cache")) == [
        "shard.00000.mds",
        "shard.00001.mds",
        "shard.00001.mds.zstd",
    ]


def test_what_is_fetched_ahead_takes_the_place_of_nothing_that_is_needed_sooner(made):
    order = [0, 1, 0, 1, 2]
    cache, store = made(order, room=2)
    read(cache, [0, 1])
    cache.prefetch([2])
    cache.shard(0)
    cache.shard(1)
    assert fetched(store) == [0, 1]


@pytest.mark.parametrize("part", [0.05, 0.15, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("block", [32, 1 << 20])
def test_an_epoch_costs_at_most_a_tenth_more_than_the_least(tmp_path, part, block):
    remote = remote_set(tmp_path / "set", 400)
    sizes = shard_bytes(reader(remote, tmp_path / "x"))
    dataset = reader(
        remote,
        tmp_path / "cache",
        cache_limit=max(int(part * sum(sizes)), 2 * max(sizes)),
        shuffle_block_size=block,
        predownload=16,
    )
    for _ in range(2):
        assert read_all(dataset) == list(range(400))
    stats = dataset.stats()
    dataset.close()
    assert stats.least_bytes > 0
    assert stats.ratio <= 1.1
    assert (stats.evictions > 0) == (part < 1.0)


def test_a_pass_that_is_left_early_is_counted_as_far_as_it_came(tmp_path):
    dataset = reader(remote_set(tmp_path / "set"), tmp_path / "cache", shuffle=False, predownload=0)
    batches = dataset.batches()
    next(batches)
    next(batches)
    batches.close()
    needed = dataset.stream.shards_of(np.arange(16))
    assert dataset.stats().least_bytes == sum(dataset.stream.shards[shard].zip.num_bytes for shard in set(needed))


def test_without_a_limit_nothing_goes_and_nobody_warns(tmp_path):
    dataset = reader(remote_set(tmp_path / "set"), tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_all(dataset)
    assert (dataset.stats().evictions, dataset.stats().ratio) == (0, 1.0)
