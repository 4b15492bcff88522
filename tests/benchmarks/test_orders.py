"""The orders that the benchmark times are whole epochs, and what it calls a resume is their continuation."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.measures.memory import PeakMemory
from benchmarks.measures.ordering import check_ids, measure_late_ids, measure_order
from benchmarks.order_rows import ORDER_ROWS
from benchmarks.peers import OrderOptions, Unsupported, find, is_installed
from benchmarks.task import Task

SAMPLES, PER_SHARD, TAKEN = 5_120, 500, 4_608  # 20 batches of 256, of which 18 were taken

# Where a library is not installed (all but ours and torch's are in .venv/bench alone), its case skips.
ORDERS = [
    ("smalti", None), ("smalti", "py1e"), ("torch", None), ("torch", "randperm"), ("mosaicml", None), ("hfds", None),
    ("grain", None),
]  # fmt: skip


def ids(peer, algorithm, start, count):
    if not is_installed(peer):
        pytest.skip(f"{peer} is not installed here; .venv/bench has it")
    return list(find(peer).order(OrderOptions(SAMPLES, PER_SHARD, start, algorithm))(count))


def test_the_last_shard_holds_what_is_left():
    assert OrderOptions(25, 10, 0).shard_sizes().tolist() == [10, 10, 5]
    assert OrderOptions(20, 10, 0).shard_sizes().tolist() == [10, 10]
    assert OrderOptions(3, 10, 0).shard_sizes().tolist() == [3]


@pytest.mark.torch
@pytest.mark.parametrize(("peer", "algorithm"), ORDERS)
def test_an_order_that_is_timed_is_a_whole_shuffled_epoch(peer, algorithm):
    epoch = ids(peer, algorithm, 0, SAMPLES)
    assert sorted(epoch) == list(range(SAMPLES))
    assert epoch != list(range(SAMPLES))


@pytest.mark.torch
@pytest.mark.parametrize(("peer", "algorithm"), ORDERS)
def test_ids_of_a_resume_are_those_that_the_epoch_has_left(peer, algorithm):
    left = SAMPLES - TAKEN
    assert ids(peer, algorithm, TAKEN, left) == ids(peer, algorithm, 0, SAMPLES)[TAKEN:]


def test_the_py1e_that_is_timed_beside_mosaicmls_is_the_same_order():
    assert ids("mosaicml", None, 0, SAMPLES) == ids("smalti", "py1e", 0, SAMPLES)


def order_task(measure="order", samples=SAMPLES, **options):
    return Task(measure, "smalti", "tiny", samples, "/nowhere", {"samples_per_shard": PER_SHARD, **options})


def test_what_is_not_run_says_why_and_runs_nothing():
    with pytest.raises(Unsupported, match="not run: 46 GB by extrapolation"):
        measure_order(order_task(samples=10**15, instead="46 GB by extrapolation"))


def test_what_mosaicml_would_take_grows_with_the_samples():
    rows = {row.key: row for row in ORDER_ROWS}
    told = [
        entrant.options["instead"].partition(";")[0]
        for power in (9, 10, 11)
        for entrant in rows[f"order-start-1e{power}"].entrants
        if entrant.label == "mosaicml"
    ]
    assert told == ["about 3 min and 46 GB", "about 28 min and 460 GB", "about 283 min and 4,600 GB"]


@pytest.mark.parametrize(
    "wrong", [[1, 2, 2], [1, 2], [1, 2, 9], [-1, 2, 3]], ids=["twice", "too few", "beyond the end", "negative"]
)
def test_wrong_ids_are_no_figure(wrong):
    check_ids(np.array([8, 0, 3]), 3, 9)
    with pytest.raises(ValueError, match="3 different ids below 9"):
        check_ids(np.array(wrong), 3, 9)


@pytest.mark.nightly  # `make bench` runs the same
@pytest.mark.slow
def test_early_and_late_ids_are_compared_in_one_process():
    figures = measure_late_ids(order_task("late-ids"))
    assert 0 < figures["late_over_early"] < 1_000
    assert figures["ids_s"] > 0


def test_rows_above_ten_to_the_eighth_have_the_shards_of_the_goals():
    shards = {row.key: row.samples // row.options["samples_per_shard"] for row in ORDER_ROWS}
    assert (shards["order-start-1e10"], shards["order-resume-1e10"], shards["order-late-1e10"]) == (10**6,) * 3
    assert (shards["order-start-1e11"], shards["order-start-1e8"], shards["order-start-1e6"]) == (10**7, 25_000, 250)
    goals = {row.key: row.goals["smalti window"][0].limit for row in ORDER_ROWS if row.goals}
    assert goals == {
        "order-start-1e10": 0.6, "order-start-1e11": 5.0, "order-resume-1e10": 0.6, "order-resume-1e11": 5.0,
        "order-memory-1e10": 120, "order-late-1e10": 1.1,
    }  # fmt: skip


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


ALONE = """
from benchmarks.measures.memory import PeakMemory
block = b"x" * 200_000_000
del block
memory = PeakMemory()
print(memory.added_mb())
block = b"x" * 100_000_000
del block
print(memory.added_mb())
"""


@needs_proc
def test_memory_that_was_given_back_counts_and_an_earlier_peak_does_not():
    """In a process of its own: this one may have servers below it, which count."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=500, check=True)
    earlier, later = map(float, done.stdout.split())
    assert earlier < 50
    assert 90 < later < 150


@needs_proc
@pytest.mark.process
def test_memory_of_worker_processes_counts():
    memory = PeakMemory()
    hold = "import sys; held = b'x' * 80_000_000; print('held', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"held\n"
        assert memory.added_mb() > 80
    finally:
        child.communicate()
