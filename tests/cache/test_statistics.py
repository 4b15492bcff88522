"""Counters over processes, however these are started, and how they are presented."""

import json
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from smalti.cache import CacheStats, Counters, StepWaits

STATS = CacheStats(
    hits=5, fetches=3, bytes_fetched=330, evictions=1, bytes_evicted=100, wait_seconds=0.25, least_bytes=300,
    bytes_received=360, link_seconds=1.5, retries=1, loop_samples=64, loop_seconds=4.0, loop_wait_seconds=1.0,
    step_waits=StepWaits(3, 0.3, 0.0, 0.2, (1, 0, 0, 2, 0, 0)),
    failures={"timeout": 1, "auth": 0, "gone": 0, "damaged": 0, "store": 0, "disk": 0},
)  # fmt: skip


def add_much(counters: Counters) -> None:
    for _ in range(200):
        counters.add(fetches=1, bytes_fetched=10)


@pytest.mark.process
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_worker_processes_add_to_the_same_counters(start):
    counters = Counters()
    context = multiprocessing.get_context(start)
    workers = [context.Process(target=add_much, args=(counters,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    add_much(counters)
    for worker in workers:
        worker.join(120)
    assert (counters.get("fetches"), counters.get("bytes_fetched")) == (600, 6000)


def test_concurrent_threads_lose_no_count():
    counters = Counters()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_much, [counters] * 4))
    assert counters.get("fetches") == 800


@pytest.mark.process
def test_a_killed_process_does_not_block_the_counters():
    counters = Counters()
    child = os.fork()
    if not child:
        while True:
            counters.add(fetches=1)
    while counters.get("fetches") < 100:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    before = counters.get("fetches")
    counters.add(fetches=1)
    assert counters.get("fetches") == before + 1


def test_the_step_reached_is_the_largest_one():
    counters = Counters()
    counters.add(reached=7)
    counters.add(reached=3)
    assert counters.get("reached") == 7
    counters.restart()
    counters.add(reached=3)
    assert counters.get("reached") == 3


def test_a_pickled_copy_counts_from_zero():
    import pickle

    counters = Counters()
    copy = pickle.loads(pickle.dumps(counters))
    copy.add(hits=1)
    assert (counters.get("hits"), copy.get("hits")) == (0, 1)


def test_json_holds_all_figures():
    figures = json.loads(STATS.to_json())
    waits = figures.pop("step_waits")
    assert figures == {
        "hits": 5, "fetches": 3, "bytes_fetched": 330, "evictions": 1, "bytes_evicted": 100, "wait_seconds": 0.25,
        "least_bytes": 300, "bytes_before": 0, "bytes_received": 360, "link_seconds": 1.5, "bytes_from_disk": 0,
        "bytes_in_blocks": 0,
        "retries": 1, "failures": {"timeout": 1, "auth": 0, "gone": 0, "damaged": 0, "store": 0, "disk": 0},
        "ranks": 1, "ranks_added": 1, "ratio": 1.1, "link_bytes_per_second": 240.0,
        "samples_skipped": 0, "loop_samples": 64, "loop_seconds": 4.0, "loop_wait_seconds": 1.0, "data_fraction": 0.25,
    }  # fmt: skip
    assert waits == {
        "steps": 3, "total_seconds": 0.3, "last_seconds": 0.0, "most_seconds": 0.2, "classes": [1, 0, 0, 2, 0, 0],
        "mean_seconds": 0.3 / 3,
    }  # fmt: skip


def test_prometheus_text_has_a_type_and_a_value_for_each():
    lines = STATS.to_prometheus({"rank": '0"\n'}).splitlines()
    assert lines[:3] == [
        "# HELP smalti_cache_hits_total Shards that were here when a batch asked for them.",
        "# TYPE smalti_cache_hits_total counter",
        'smalti_cache_hits_total{rank="0\\"\\n"} 5',
    ]
    assert 'smalti_cache_fetch_ratio{rank="0\\"\\n"} 1.1' in lines
    assert 'smalti_cache_failures_total{rank="0\\"\\n",kind="timeout"} 1' in lines
    assert 'smalti_cache_step_wait_seconds_bucket{rank="0\\"\\n",le="0.1"} 1' in lines
    assert 'smalti_cache_step_wait_seconds_bucket{rank="0\\"\\n",le="1.0"} 3' in lines
    assert 'smalti_cache_step_wait_seconds_bucket{rank="0\\"\\n",le="+Inf"} 3' in lines
    assert lines[-1] == 'smalti_cache_step_wait_seconds_count{rank="0\\"\\n"} 3'


def test_figures_without_a_value_are_left_out():
    text = CacheStats(1, 1, 1, 0, 0, 0.0).to_prometheus()
    assert "least_bytes" not in text
    assert "ratio" not in text
    assert "\nsmalti_cache_fetches_total 1\n" in text


def test_closed_counters_ignore_additions_and_touch_no_descriptor():
    """The garbage collector closes objects of a cycle in any order, so counters may be used after they were closed."""
    counters = Counters()
    taken = counters._descriptor
    counters.__del__()
    with open(os.devnull) as reused:  # the lowest free descriptor
        assert reused.fileno() == taken
        counters.add(hits=1)
        counters.__del__()
        assert os.fstat(taken), "the other file is still open"
