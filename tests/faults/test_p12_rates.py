"""P12: epochs of which two thirds of all calls are struck, at the rates of SlateDB's chaos tests, 3 s of latency too.

Many read at once, so that the latencies pass together. SMALTI_P12_CACHES=400 is a night's worth.
"""

import functools
import os
import threading

import pytest

from smalti.cache import CacheOptions, ShardCache, ShardSource
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.faults.ways_of_reading import read
from tests.faultstore import Toxic
from tests.shard_sets import write_set

pytestmark = [pytest.mark.torch, pytest.mark.slow]

NUM_CACHES = int(os.environ.get("SMALTI_P12_CACHES", "20"))
SAMPLES = 360
WAYS = ({}, {"num_workers": 2, "worker_kind": "thread"})
RATES = (
    Toxic("http", status=503, probability=0.10, key="*.mds"),
    Toxic("http", status=429, probability=0.05, key="*.mds"),
    Toxic("reset_peer", after=50, probability=0.15, key="*.mds"),
    Toxic("slow_close", seconds=3.0, probability=0.30, key="*.mds"),
    Toxic("latency", seconds=3.0, probability=0.35, key="*.mds"),
)
"""Of each hundred calls 10, 5, 15, 30 and 35; a call may have several of them."""


def make_reader(remote, local, seed):
    """A dataset with a cache of its own."""
    return StreamingDataset(
        remote=remote,
        cache=CacheOptions(local=str(local), predownload=SAMPLES, download_retry=4, download_timeout=120.0),
        shuffle=True,
        shuffle_seed=seed,
        batch_size=6,
    )


@pytest.fixture
def epochs(tmp_path):
    """By seed, the epoch that a reader without faults has."""
    root = write_set(tmp_path / "set", SAMPLES)
    seeds = range(4)
    found = {seed: read(StreamingDataLoader(make_reader(str(root), tmp_path / "plain", seed))) for seed in seeds}
    assert [sorted(number for number, _ in epoch) for epoch in found.values()] == [list(range(SAMPLES))] * 4
    return found


@pytest.mark.nightly
def test_e6_a_thousand_faulty_calls_at_the_rates_of_p12_leave_every_epoch_exact(faults, tmp_path, epochs):
    """Loaders without workers and with two, of four seeds; and beside them caches that share one store."""
    faults.reset(seed=12)
    faults.put_folder(tmp_path / "set", "set/")
    loaders = [
        StreamingDataLoader(make_reader("s3://bucket/set", tmp_path / str(number), number % 4), **WAYS[number // 4])
        for number in range(8)
    ]
    shared, manifest = faults.open("set"), loaders[0].dataset.manifest
    caches = [
        ShardCache(ShardSource(shared, manifest.digest, manifest.shards, options_of(tmp_path / f"cache-{number}")))
        for number in range(NUM_CACHES)
    ]
    faults.plant(*RATES)
    found = [Running(functools.partial(rows, loader)) for loader in loaders]
    found += [Running(functools.partial(whole, cache)) for cache in caches]
    for number, each in enumerate(found):
        each.join(240)
        assert each.result == (epochs[number % 4] if number < 8 else sorted(epochs[0]))
    struck = [entry.toxics for entry in faults.log("GET", ".mds") if entry.toxics]
    assert len(struck) > max(1000, 35 * NUM_CACHES)
    kinds = [kind for toxics in struck for kind in toxics]
    assert all(kinds.count(toxic.kind) > 50 for toxic in RATES)


class Running(threading.Thread):
    """Work in a thread of its own, from now on; its result is what it returns or raises."""

    def __init__(self, work):
        super().__init__(daemon=True)
        self.work, self.result = work, None
        self.start()

    def run(self):
        try:
            self.result = self.work()
        except Exception as error:
            self.result = error


def options_of(folder):
    return CacheOptions(local=str(folder), download_retry=4, download_timeout=120.0)


def rows(loader):
    return [row for batch in loader for row in zip(batch["id"].tolist(), batch["text"], strict=True)]


def whole(cache):
    cache.prefetch(range(len(cache)))
    return [(int(row["id"]), row["text"]) for number in range(len(cache)) for row in cache.shard(number)]
