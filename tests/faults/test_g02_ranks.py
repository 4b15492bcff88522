"""G2, G3 and G11: processes that share a cache folder wait neither for a dead one nor for one that failed."""

import os
import re
import signal
from collections import Counter

import pytest

from tests.faults.blocking_store import S3Server
from tests.faults.rank_processes import Rank, started
from tests.shard_sets import write_set
from tests.torch.train.launch.test_processes import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

COUNT = 96  # six steps of four ranks with batches of four
RANKS = range(4)


@pytest.fixture
def store(tmp_path):
    write_set(tmp_path / "set", COUNT)
    with S3Server(tmp_path) as server:
        yield server


def ranks_of(store, tmp_path, numbers=RANKS, num_ranks=4, **options):
    dataset = {"remote": "s3://b/set", "local": str(tmp_path / "cache"), "storage_options": store.options}
    dataset["download_retry"] = 10
    return [Rank(number, num_ranks, str(tmp_path), dataset, **options) for number in numbers]


def requested_shards(store):
    return [key for key in store.requested_keys if key.endswith(".mds")]


def test_g2_ranks_finish_with_exactly_their_samples_when_one_was_killed_while_they_waited_for_it(store, tmp_path):
    """Rank 2 fetches the first shards and holds their locks; the other three ranks need them as well."""
    store.held = r"\.mds$"
    go = tmp_path / "go"
    [doomed] = ranks_of(store, tmp_path, [2])
    others = ranks_of(store, tmp_path, [0, 1, 3], after=str(go))
    with started([doomed, *others]) as [dying, *_]:
        wait_until(lambda: requested_shards(store))
        go.touch()
        wait_until(lambda: store.requested_keys.count("set/index.json") == 4)
        os.kill(dying, signal.SIGKILL)
        store.release.set()
    assert not doomed.answer.exists()
    for rank in others:
        first = range(rank.number, COUNT, 16)
        assert rank.read()["batches"] == [[[n, n + 4, n + 8, n + 12] for n in first]]


@pytest.mark.parametrize(
    ("forbidden", "key"),
    [
        pytest.param("", "index.json", id="everything", marks=pytest.mark.nightly),
        pytest.param(r"\.mds$", "shard.0000", id="shards"),
    ],
)
def test_g3_all_ranks_get_the_same_error_when_the_store_refuses_them(store, tmp_path, forbidden, key):
    """No rank waits for another, and none retries a request that was refused."""
    store.forbidden = forbidden
    ranks = ranks_of(store, tmp_path, ways=[{"num_workers": 2}])
    with started(ranks):
        pass
    for rank in ranks:
        answer = rank.read()
        assert answer["error"] == "StoreAuthError"
        assert key in answer["message"]
        assert re.search(r"the credentials were refused \(.*Access Denied\)", answer["message"])
    assert store.requested_keys.count("set/index.json") == 4
    assert all(times <= 4 * 3 for times in Counter(requested_shards(store)).values()), "ahead, and by two threads"


@pytest.mark.nightly  # beside the four processes of tests/cache/test_processes.py
def test_g11_eight_processes_with_four_datasets_each_read_one_set_through_one_cache_at_the_same_time(tmp_path):
    write_set(tmp_path / "set", COUNT, compression="zstd")
    dataset = {"remote": str(tmp_path / "set"), "local": str(tmp_path / "cache")}
    ways = [{}, {"num_workers": 2}, {"num_workers": 1, "worker_kind": "process"}, {"drop_last": True}]
    readers = [Rank(number, 1, str(tmp_path), dataset, ways) for number in range(8)]
    with started(readers):
        pass
    for reader in readers:
        assert reader.read() == {"batches": [[list(range(n, n + 4)) for n in range(0, COUNT, 4)]] * 4}
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".mds"]
    assert left == [], "no lock, no half file"
