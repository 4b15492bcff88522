"""Ranks of one host with one cache folder: each shard is fetched once, and under a limit little more than needed."""

import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from smalti.cache import CacheStats
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.faultstore import FaultStore
from tests.reading_options import grouped
from tests.shard_sets import write_set

pytestmark = [pytest.mark.process, pytest.mark.torch]

RANKS, SAMPLES, BATCH = 4, 800, 4
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """100 shards of eight samples, compressed."""
    return Path(write_set(tmp_path_factory.mktemp("sharing") / "set", SAMPLES, compression="zstd"))


def raw_bytes(written) -> int:
    manifest = StreamingDataset(remote=str(written)).manifest
    return sum(info.raw.num_bytes for info in manifest.shards)


def read_as_rank(rank, workers, epochs, options, barrier, answers):
    warnings.filterwarnings("ignore", "`cache_limit` is")
    dataset = StreamingDataset(
        batch_size=BATCH,
        shuffle=True,
        world=World.of_blocks(rank, RANKS, 1),
        **grouped(download_timeout=280.0, num_canonical_nodes=2, tail="short", **options),
    )
    loader = StreamingDataLoader(dataset, num_workers=workers, worker_kind="process" if workers else "thread")
    found = []
    for _ in range(epochs):
        for batch in loader:
            found += batch["id"].tolist()
            barrier.wait(280)  # as in training: all ranks take a step together
    answers.put((found, dataset.stats()))
    dataset.close()


def read_on_all_ranks(workers=0, epochs=1, **options):
    """Read on all ranks, check their samples, and return the statistics of each."""
    barrier, answers = FORK.Barrier(RANKS), FORK.Queue()
    ranks = [
        FORK.Process(target=read_as_rank, args=(rank, workers, epochs, options, barrier, answers))
        for rank in range(RANKS)
    ]
    for rank in ranks:
        rank.start()
    try:
        found = [answers.get(timeout=500) for _ in ranks]
    finally:
        for rank in ranks:
            rank.join(60)
            rank.kill()
    assert sorted(number for ids, _ in found for number in ids) == sorted([*range(SAMPLES)] * epochs)
    return [stats for _, stats in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", [pytest.param(None, id="no limit"), pytest.param(2.0, id="limit", marks=pytest.mark.nightly)]
)
def test_four_ranks_of_two_workers_fetch_each_shard_once(written, tmp_path, monkeypatch, limit):
    """By the store's own log, not by counters of the cache."""
    with FaultStore(own_process=True) as store:
        for name in [name for name in os.environ if name.startswith(("AWS_", "S3_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.put_folder(written, "set/")
        chosen = None if limit is None else int(limit * raw_bytes(written))
        each = read_on_all_ranks(2, remote="s3://bucket/set", local=str(tmp_path / "cache"), cache_limit=chosen)
        keys = [entry.key for entry in store.log("GET") if ".mds" in entry.key]
    assert len(keys) == len(set(keys)) == 100
    host = CacheStats.of_host(each)
    assert (host.fetches, host.ratio, host.evictions) == (100, 1.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "workers"),
    [(0.25, 0), pytest.param(0.5, 2, marks=pytest.mark.nightly), pytest.param(0.9, 0, marks=pytest.mark.nightly)],
)
def test_four_ranks_fetch_at_most_a_tenth_more_than_the_least(written, tmp_path, part, workers):
    """Two epochs: at the end of the first, the needs of the second are known."""
    limit = int(part * raw_bytes(written))
    options = {"remote": str(written), "local": str(tmp_path / "cache"), "shuffle_block_size": 40}
    each = read_on_all_ranks(workers, 2, cache_limit=limit, **options)
    assert [one.ratio for one in each] == [None] * RANKS, "the bytes of one rank are not those of the host"
    assert len({one.least_bytes for one in each}) == 1
    host = CacheStats.of_host(each)
    assert host.evictions > 0
    assert host.ratio <= 1.1
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.mds")) <= limit
