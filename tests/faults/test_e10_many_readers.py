"""E10 and P12: many readers at once, and a store that fails at the rates of SlateDB's chaos tests."""

import threading

import pytest

from smalti.errors import StoreError
from smalti.torch import StreamingDataLoader
from tests.faults.ways_of_reading import DEADLINE, SHARD, WAYS, assert_exact, crossed, expected, open_set, read, serve
from tests.faultstore import Toxic

pytestmark = pytest.mark.torch


def chaos(latency):
    """Return faults at the rates of P12, for every request."""
    return (
        Toxic("http", status=503, probability=0.10),
        Toxic("http", status=429, probability=0.05),
        Toxic("reset_peer", after=50, probability=0.15),
        Toxic("slow_close", seconds=latency, probability=0.30),
        Toxic("latency", seconds=latency, probability=0.35),
    )


@pytest.mark.parametrize(("way", "seed"), crossed(WAYS, [1, 2]))
def test_e6_an_epoch_at_the_rates_of_p12_is_exact(faults, tmp_path, way, seed):
    faults.reset(seed)
    serve(faults).plant(*chaos(0.05))
    assert_exact(open_set(tmp_path), way)
    assert len([entry for entry in faults.log() if entry.toxics]) >= 3


def readers(tmp_path, count, **options):
    """Read with `count` readers at the same time, each with its own cache; return the samples or the error of each."""
    found = [None] * count

    def one(number):
        try:
            found[number] = read(StreamingDataLoader(open_set(tmp_path / str(number), **options)))
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * DEADLINE)
    return found


@pytest.mark.parametrize(
    ("count", "rate"),
    [pytest.param(2, 6, marks=pytest.mark.slow), pytest.param(8, 6, marks=[pytest.mark.slow, pytest.mark.nightly])],
)
def test_e10_concurrent_readers_are_throttled_and_exact(faults, tmp_path, count, rate):
    serve(faults).plant(Toxic("throttle", rate=rate))
    assert readers(tmp_path, count) == [expected()] * count
    assert any(entry.status == 429 for entry in faults.log())


@pytest.mark.slow
def test_e10_a_throttled_request_is_retried_more_often_than_a_failed_one(faults, tmp_path):
    """With two attempts, a throttled request is sent four times, one that fails with 500 twice."""
    options = {"retry": 1, "store": {"request_attempts": 2}}
    serve(faults).plant(Toxic("http", status=429, key=f"*{SHARD}*", count=3))
    assert open_set(tmp_path / "throttled", **options)[30]["id"] == 30
    assert [entry.status for entry in faults.log("GET", f"{SHARD}.mds")] == [429, 429, 429, 200]
    faults.heal()
    serve(faults).plant(Toxic("http", status=500, key=f"*{SHARD}*", count=3))
    with pytest.raises(StoreError, match=f"shard 3 .*{SHARD}"):
        open_set(tmp_path / "failing", **options)[30]
