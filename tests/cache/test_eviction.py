"""Eviction under a limit: the bytes that an epoch fetches, compared with the fewest possible."""

import threading
import time
import warnings

import numpy as np
import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource, Uses
from smalti.dataset import OrderOptions, StreamingDataset
from smalti.dataset.lookahead import MAX_PASSES
from smalti.storage import LocalStore
from smalti.stream import Stream
from smalti.world import World
from tests.cache.conftest import DIGEST
from tests.faults.cached_sets import copies, read_all, reader, remote_set, shard_bytes
from tests.stores import LoggedStore


@pytest.fixture
def made(fill, tmp_path):
    """Make a cache with space for `room` of four shards, which will be read in this order; return it and its store."""

    def make(order, room, keep_zip=False):
        store = LocalStore(tmp_path / "set")
        infos = fill(store, compression="zstd")[:4]
        largest = max(info.raw.num_bytes + (info.zip.num_bytes if keep_zip else 0) for info in infos)
        options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=280.0, keep_zip=keep_zip)
        far = LoggedStore(store, tmp_path / "log")
        cache = ShardCache(ShardSource(far, DIGEST, infos, options), limit=room * largest)
        cache.plan(iter([Uses(np.array(order), np.arange(len(order)), len(order))]))
        return cache, far

    return make


def fetched(store):
    return [int(key.split("shard.")[1][:5]) for _, key, _ in store.lines("fetch")]


def read(cache, order):
    for step, shard in enumerate(order):
        cache.reached(step)
        cache.shard(shard)


def test_the_shard_that_is_needed_last_is_evicted(made):
    order = [0, 1, 2, 0, 1, 3, 0, 2]
    cache, store = made(order, room=2)
    read(cache, order)
    # 2 for 1 (needed at 4, 0 at 3), 1 for 2 (at 7), 3 for 1 (never again), 2 for any
    assert fetched(store) == [0, 1, 2, 1, 3, 2]
    assert cache.counters.get("evictions") == 4


def test_the_compressed_copy_counts_and_is_evicted_with_its_shard(made, tmp_path):
    order = [0, 1, 0, 1]
    cache, store = made(order, room=2, keep_zip=True)
    cache.limit = cache._space.get().limit = max(
        info.raw.num_bytes + info.zip.num_bytes for info in cache._sources[0].shards
    ) + min(info.raw.num_bytes for info in cache._sources[0].shards)
    read(cache, order)
    assert fetched(store) == [0, 1]
    assert sorted(path.name for path in copies(tmp_path / "cache")) == [
        "shard.00000.mds",
        "shard.00001.mds",
        "shard.00001.mds.zstd",
    ]


def test_a_fetch_ahead_evicts_nothing_that_is_needed_sooner(made):
    order = [0, 1, 0, 1, 2]
    cache, store = made(order, room=2)
    read(cache, [0, 1])
    cache.prefetch([2])
    cache.shard(0)
    cache.shard(1)
    assert fetched(store) == [0, 1]


def test_a_copy_that_is_needed_nearly_as_late_is_evicted_for_one_that_is_still_in_use(made):
    order = [0, 1, 1, 2, 2, 2, 2, 2, 2, 0, 1]
    cache, store = made(order, room=2)
    read(cache, [0, 1])
    cache.prefetch([2])  # 1 is needed last, at step 10, but also at step 2: 0 is needed at step 9
    end = time.monotonic() + 280
    while fetched(store) != [0, 1, 2] and time.monotonic() < end:
        time.sleep(0.01)
    cache.reached(2)
    cache.shard(1)
    assert fetched(store) == [0, 1, 2]


def test_a_fetch_ahead_waits_where_only_copies_that_are_needed_soon_could_be_evicted(made):
    order = [0, 1, 1, 2, 0, 2, 2, 2, 2, 2, 1]
    cache, store = made(order, room=2)
    read(cache, [0, 1])
    cache.prefetch([2])  # 0 is needed at step 4, far before 1
    cache.reached(2)
    cache.shard(1)
    cache.shard(0)
    assert fetched(store) == [0, 1]


WHOLE = 1 << 20


@pytest.mark.parametrize(
    ("block", "part"),
    [
        *(pytest.param(32, part, id=f"32-{part}") for part in (0.15, 0.4, 1.0)),
        pytest.param(WHOLE, 0.15, id="whole-0.15", marks=[pytest.mark.slow, pytest.mark.nightly]),
        *(pytest.param(32, part, id=f"32-{part}", marks=pytest.mark.nightly) for part in (0.05, 0.7)),
        *(pytest.param(WHOLE, part, id=f"whole-{part}", marks=pytest.mark.nightly) for part in (0.05, 0.4, 0.7, 1.0)),
    ],
)
def test_an_epoch_fetches_at_most_a_tenth_more_than_the_least(tmp_path, part, block):
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


def test_an_abandoned_epoch_is_counted_as_far_as_it_was_read(tmp_path):
    dataset = reader(remote_set(tmp_path / "set"), tmp_path / "cache", shuffle=False, predownload=0)
    batches = dataset.batches()
    next(batches)
    next(batches)
    batches.close()
    needed = dataset.stream.shards_of(np.arange(16))
    assert dataset.stats().least_bytes == sum(dataset.stream.shards[shard].zip.num_bytes for shard in set(needed))


def test_without_a_limit_nothing_is_evicted_and_there_is_no_warning(tmp_path):
    dataset = reader(remote_set(tmp_path / "set"), tmp_path / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_all(dataset)
    assert (dataset.stats().evictions, dataset.stats().ratio) == (0, 1.0)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    """A set of 100 shards of eight samples, and its unpacked bytes."""
    remote = remote_set(tmp_path_factory.mktemp("hundred") / "set", 800)
    return remote, sum(shard_bytes(reader(remote, remote.parent / "x")))


def ratio_of(dataset, epochs=1):
    for _ in range(epochs):
        read_all(dataset)
    ratio = dataset.stats().ratio
    dataset.close()
    return ratio


@pytest.mark.parametrize(
    "part", [0.1, pytest.param(0.25, marks=pytest.mark.nightly), 0.5, pytest.param(0.9, marks=pytest.mark.nightly)]
)
def test_three_epochs_with_lookahead_fetch_little_more_than_the_least(hundred, tmp_path, part):
    remote, total = hundred
    options = {"shuffle_block_size": 25, "num_canonical_nodes": 2, "cache_limit": int(part * total)}
    assert 0.99 <= ratio_of(reader(remote, tmp_path / "cache", **options), 3) <= 1.1


@pytest.mark.parametrize("affinity", [pytest.param(1.0, marks=pytest.mark.nightly), 0.6])
def test_beyond_the_lookahead_the_outline_of_the_order_keeps_what_the_next_epoch_reads(
    hundred, tmp_path, monkeypatch, affinity
):
    """Two hosts of 50 shards each, space for 30; an eighth of an epoch is looked up exactly.

    Without the outline, of the shards of which no use is known the one that was used longest ago is evicted: then a
    host fetches 1.16 times the least with an affinity of 1, and 1.24 times with 0.6.
    """
    monkeypatch.setattr("smalti.cache.leases.MAX_LOOKAHEAD", 50)
    monkeypatch.setattr("smalti.dataset.lookahead._SAMPLES_PER_LOOKUP", 50)
    remote, total = hundred
    options = {"shuffle_block_size": 25, "num_canonical_nodes": 4, "cache_limit": int(0.3 * total)}
    dataset = reader(remote, tmp_path / "cache", affinity=affinity, predownload=8, world=World(1, 2, 1, 2), **options)
    for _ in range(4):
        assert len(read_all(dataset)) == 400
    ratio = dataset.stats().ratio
    dataset.close()
    assert ratio <= 1.08


def test_the_next_epoch_begins_with_hits(hundred, tmp_path):
    """With space for 50 shards, nearly all hold what the next epoch reads first."""
    remote, total = hundred
    options = {"shuffle_block_size": 25, "num_canonical_nodes": 2, "cache_limit": total // 2}
    dataset = reader(remote, tmp_path / "cache", predownload=8, **options)
    read_all(dataset)
    batches, fetched = dataset.batches(), dataset.stats(least=False).fetches
    for _ in range(20):  # a fifth of the epoch
        next(batches)
    assert dataset.stats(least=False).fetches - fetched <= 5, "without lookahead it would be ten"
    batches.close()
    dataset.close()


def test_a_mixture_under_one_limit_fetches_little_more_than_the_least(hundred, tmp_path):
    remote, total = hundred
    other = remote_set(tmp_path / "other", 300)
    local = str(tmp_path / "cache")
    both = [
        Stream(remote=str(each), cache=CacheOptions(local=local), repeat=times)
        for each, times in ((remote, 0.5), (other, 1.5))
    ]
    dataset = StreamingDataset(
        streams=both,
        batch_size=8,
        shuffle=True,
        order=OrderOptions(num_canonical_nodes=2, shuffle_block_size=25, tail="short"),
        cache=CacheOptions(cache_limit=int(0.4 * total), download_timeout=280.0),
    )
    for _ in range(2):
        assert len(read_all(dataset)) == dataset.epoch_size
    stats = dataset.stats()
    dataset.close()
    assert stats.evictions > 0
    assert stats.ratio <= 1.1
    assert sum(copies(tmp_path / "cache").values()) <= int(0.4 * total)


def test_the_rest_of_a_resumed_epoch_fetches_little_more_than_the_least(hundred, tmp_path):
    remote, total = hundred
    options = {"shuffle_block_size": 25, "num_canonical_nodes": 2, "cache_limit": total // 4}
    first = reader(remote, tmp_path / "first", **options)
    state = first.state_dict(8 * 37)
    first.close()
    later = reader(remote, tmp_path / "later", **options)
    later.load_state_dict(state)
    assert len(read_all(later)) == 800 - 8 * 37
    assert 0.99 <= ratio_of(later, 1) <= 1.1


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.process
@pytest.mark.parametrize("start", ["fork", pytest.param("forkserver", marks=pytest.mark.nightly)])
def test_persistent_worker_processes_fetch_little_more_than_the_least(hundred, tmp_path, start):
    from smalti.torch import StreamingDataLoader
    from smalti.torch import StreamingDataset as TorchDataset

    remote, total = hundred
    dataset = TorchDataset(
        remote=str(remote),
        cache=CacheOptions(local=str(tmp_path / "cache"), cache_limit=total // 4, download_timeout=280.0),
        batch_size=8,
        shuffle=True,
        order=OrderOptions(num_canonical_nodes=2, shuffle_block_size=50, tail="short"),
    )
    loader = StreamingDataLoader(
        dataset, num_workers=2, worker_kind="process", persistent_workers=True, multiprocessing_context=start
    )
    for _ in range(2):
        assert sorted(number for batch in loader for number in batch["id"].tolist()) == list(range(800))
    assert 0.99 <= dataset.stats().ratio <= 1.1
    dataset.close()


def test_only_the_latest_epochs_count_towards_the_ratio(tmp_path):
    """Twelve epochs with space for all shards: all bytes are fetched in the first one, which no longer counts then."""
    dataset = reader(remote_set(tmp_path / "set"), tmp_path / "cache", cache_limit="1mb")
    for _ in range(MAX_PASSES):
        read_all(dataset)
    stats = dataset.stats()
    assert (stats.fetches, stats.ratio) == (25, 1.0)
    for _ in range(4):
        read_all(dataset)
    stats = dataset.stats()
    assert len(dataset._smalti.history.begun) == MAX_PASSES == 8
    assert (stats.fetches, stats.bytes_before, stats.least_bytes, stats.ratio) == (25, stats.bytes_fetched, 0, None)
    dataset.close()


class HeldStore(LoggedStore):
    """A store whose third shard is sent when the test allows it."""

    def __init__(self, inner, log):
        super().__init__(inner, log)
        self.released, self.requested = threading.Event(), threading.Event()

    def fetch(self, key, out, **options):
        if "00002" in key:
            self.requested.set()
            assert self.released.wait(280)
        return super().fetch(key, out, **options)


def test_a_fetch_by_a_job_without_a_limit_counts_before_its_bytes_arrive(fill, tmp_path):
    """It makes no reservation; its fetch still counts, so that another job fetches nothing ahead on top of it."""
    store = LocalStore(tmp_path / "set")
    infos = fill(store)[:4]
    options = CacheOptions(local=str(tmp_path / "cache"), download_timeout=280.0)
    slow = HeldStore(store, tmp_path / "slow")
    unlimited = ShardCache(ShardSource(slow, DIGEST, infos, options))
    far = LoggedStore(store, tmp_path / "log")
    limited = ShardCache(ShardSource(far, DIGEST, infos, options), limit=2 * max(info.raw.num_bytes for info in infos))
    limited.plan(iter([Uses(np.array([0, 2, 3]), np.array([0, 1, 2]), 3)]))
    limited.shard(0)
    unlimited.prefetch([2])
    assert slow.requested.wait(280)
    limited.prefetch([3])
    deadline = time.monotonic() + 280
    while not limited._space.get().retry_step and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fetched(far) == [0], "there is space for 0 and 2 only"
    slow.released.set()
    limited.reached(1)
    limited.shard(2)
    limited.reached(2)
    assert limited.shard(3)
    limited.close()
    unlimited.close()
