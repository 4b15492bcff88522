"""Figures other than fetched bytes: waits of steps, use of the link, failures, bytes from disk."""

import multiprocessing
import threading
import time

import pytest

from smalti.cache import CacheStats, Counters, StepWaits, stats_of
from smalti.errors import ChecksumMismatch, FormatError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout
from smalti.process import PerProcess
from tests.cache.conftest import ids
from tests.stores import MemoryStore


def test_counting_does_not_wait_for_a_client_that_another_thread_creates():
    begun, may_end = threading.Event(), threading.Event()

    def create():
        begun.set()
        return may_end.wait(30)

    creating = threading.Thread(target=PerProcess(create).get)
    counters = Counters()
    counting = threading.Thread(target=counters.add, kwargs={"fetches": 1}, daemon=True)
    creating.start()
    try:
        assert begun.wait(10)
        counting.start()
        counting.join(10)
        assert counters.get("fetches") == 1
    finally:
        may_end.set()
        creating.join()


def test_waits_are_counted_by_class_and_summed():
    counters = Counters()
    for seconds in (0.0, 0.0005, 0.002, 0.05, 0.05, 30.0, 0.2):
        counters.waited(seconds)
    waits = stats_of(counters).step_waits
    assert waits.classes == (2, 1, 2, 1, 0, 1)
    assert (waits.steps, waits.last_seconds, waits.most_seconds) == (7, 0.2, 30.0)
    assert waits.total_seconds == pytest.approx(30.3025)
    assert waits.mean_seconds == pytest.approx(30.3025 / 7)
    assert StepWaits().mean_seconds is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StoreTimeout("x"), "timeout"), (StoreAuthError("x"), "auth"), (StoreNotFound("x"), "gone"),
        (ChecksumMismatch("x"), "damaged"), (FormatError("x"), "damaged"), (StoreError("x"), "store"),
        (OSError(28, "full"), "disk"),
    ],
    ids=lambda value: getattr(value, "__class__", type(value)).__name__,
)  # fmt: skip
def test_failures_are_counted_by_kind(error, kind):
    counters = Counters()
    counters.failed(error)
    counters.failed(error)
    assert {name: number for name, number in stats_of(counters).failures.items() if number} == {kind: 2}


def test_concurrent_transfers_count_the_link_as_busy_once(monkeypatch):
    """On a simulated clock: 0 to 300 ms, and 100 to 500 ms; a gap; then 900 to 1000 ms."""
    now = [1000.0]
    monkeypatch.setattr("smalti.cache.stats.time.monotonic", lambda: now[0])
    counters = Counters()
    with counters.receiving() as first:
        now[0] += 0.1
        with counters.receiving() as second:
            now[0] += 0.2
            first(1000)
            now[0] += 0.2
            second(2000)
    now[0] += 0.4
    with counters.receiving() as third:
        now[0] += 0.1
        third(500)
    stats = stats_of(counters)
    assert stats.bytes_received == 3500
    assert stats.link_seconds == pytest.approx(0.6, abs=0.003)
    assert stats.link_bytes_per_second == pytest.approx(3500 / 0.6, rel=0.01)


def test_bytes_and_time_of_a_failed_transfer_are_counted():
    counters = Counters()

    def transfer():
        with counters.receiving() as arrived:
            arrived(77)
            raise StoreError("cut")

    with pytest.raises(StoreError):
        transfer()
    assert stats_of(counters).bytes_received == 77
    assert stats_of(counters).link_seconds > 0


def keep_busy(counters: Counters, barrier) -> None:
    barrier.wait(60)
    with counters.receiving() as arrived:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            arrived(10)
            time.sleep(0.01)


@pytest.mark.process
@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_concurrent_transfers_of_several_processes_count_the_link_as_busy_once(start):
    counters, context = Counters(), multiprocessing.get_context(start)
    barrier = context.Barrier(3)
    workers = [context.Process(target=keep_busy, args=(counters, barrier)) for _ in range(2)]
    begin = time.monotonic()
    for worker in workers:
        worker.start()
    keep_busy(counters, barrier)
    for worker in workers:
        worker.join(60)
    took = time.monotonic() - begin
    assert 0.5 <= stats_of(counters).link_seconds <= took + 0.01, "not the sum over three processes"
    assert stats_of(counters).link_seconds <= 1.4 or took > 1.5


def test_existing_copies_are_counted_as_bytes_from_disk(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    total = sum(info.raw.num_bytes for info in infos)
    cold = make_cache(store, infos)
    assert ids(cold) == list(range(40))
    assert (stats_of(cold.counters).bytes_from_disk, stats_of(cold.counters).bytes_fetched) == (0, total)
    warm = make_cache(store, infos)
    assert ids(warm) == list(range(40))
    assert (stats_of(warm.counters).bytes_from_disk, stats_of(warm.counters).bytes_fetched) == (total, 0)


def test_each_batch_counts_as_a_step_with_its_wait(fill, make_cache):
    store = MemoryStore()
    infos = fill(store)
    store.plant("fetch", delay=0.05, times=1)
    cache = make_cache(store, infos)
    cache.shards([0, 1])
    cache.shards([0, 1])
    waits = stats_of(cache.counters).step_waits
    assert (waits.steps, waits.last_seconds) == (2, 0.0)
    assert waits.most_seconds >= 0.05
    assert waits.classes[0] == 1


def test_figures_of_ranks_add_up_to_those_of_their_host():
    waits = StepWaits(2, 0.3, 0.1, 0.2, (1, 0, 0, 1, 0, 0))
    rank = CacheStats(
        5, 3, 300, 1, 100, 0.5, least_bytes=1000, bytes_received=330, link_seconds=2.0, retries=1, step_waits=waits,
        failures=dict.fromkeys(("timeout", "auth", "gone", "damaged", "disk"), 0) | {"store": 2}, ranks=2,
    )  # fmt: skip
    other = CacheStats(
        1, 5, 800, 0, 0, 0.25, least_bytes=1000, step_waits=StepWaits(1, 7.0, 7.0, 7.0, (0,) * 6), ranks=2
    )
    assert rank.ratio is None
    host = CacheStats.of_host([rank, other])
    assert (host.hits, host.fetches, host.bytes_fetched, host.wait_seconds, host.retries) == (6, 8, 1100, 0.75, 1)
    assert (host.least_bytes, host.ratio, host.failures["store"]) == (1000, 1.1, 2)
    assert (host.step_waits.steps, host.step_waits.most_seconds, host.step_waits.total_seconds) == (3, 7.0, 7.3)
    with pytest.raises(ValueError, match="at least one rank"):
        CacheStats.of_host([])


def test_single_shards_and_batches_count_hits_alike(fill, make_cache):
    """Two rounds: each shard is missing only in the first one."""
    store = MemoryStore()
    infos = fill(store)
    one_by_one, in_batches = make_cache(store, infos), make_cache(store, infos, local="other")
    for _ in range(2):
        for number in range(len(infos)):
            one_by_one.shard(number)
            in_batches.shards([number])
    for cache in (one_by_one, in_batches):
        cache.settle()
        assert stats_of(cache.counters).hits == len(infos)
