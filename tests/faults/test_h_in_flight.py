"""H9, H13: batches in flight do not count, and neither does what a collate function makes of a batch."""

import json
import multiprocessing
import os
import signal
import time
from itertools import islice

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.combinations import each_value_once
from tests.faults.world_sets import FIRST_EPOCH, KNOWN, SECOND_EPOCH, write_known_set
from tests.reading_options import grouped

pytestmark = pytest.mark.torch

FORK = multiprocessing.get_context("fork")
SLOW = [pytest.mark.process, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly
DEADLINE = 280.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_known_set(tmp_path_factory.mktemp("known") / "root")


def loader_of(root, batch=2, *, collate_fn=None, transform=None, **loader):
    dataset = StreamingDataset(remote=root, transform=transform, **grouped(tail="short", **KNOWN))
    if loader.pop("processes", False):
        loader["multiprocessing_context"] = "fork"
    return StreamingDataLoader(dataset, batch, collate_fn=collate_fn, **loader)


def ids(batches):
    return [number for batch in batches for number in batch["id"].tolist()]


# ---------------------------------------------------------------------- H9: batches in flight


IN_PROCESSES = [
    pytest.param(workers, prefetch, True, marks=SLOW if (workers, prefetch) in {(1, 1), (3, 8)} else [*SLOW, NIGHTLY])
    for workers in (1, 3)
    for prefetch in (1, 2, 3, 5, 8)
]


@pytest.mark.parametrize(
    ("workers", "prefetch", "processes"),
    [*((workers, prefetch, False) for workers in (1, 3) for prefetch in (1, 2, 3, 5, 8)), *IN_PROCESSES],
)
def test_h9_the_rest_after_discarding_a_loader_is_exact_whatever_it_prefetched(root, workers, prefetch, processes):
    """11 steps of 2; up to 24 batches ahead, which is all of the epoch."""
    for taken in (1, 4):
        loader = loader_of(root, num_workers=workers, prefetch_factor=prefetch, processes=processes)
        batches = iter(loader)
        first = ids(islice(batches, taken))
        state = json.loads(json.dumps(loader.state_dict()))
        del batches, loader
        assert (first, state["sample_in_epoch"]) == (FIRST_EPOCH[: 2 * taken], 2 * taken)
        resumed = loader_of(root)
        resumed.load_state_dict(state)
        assert ids(resumed) == FIRST_EPOCH[2 * taken :]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_h9_the_rest_is_exact_without_prefetching(root, workers):
    loader = loader_of(root, num_workers=workers, prefetch_factor=1 if workers else None)
    batches = iter(loader)
    next(batches)
    assert loader.state_dict()["sample_in_epoch"] == 2
    assert ids(batches) == FIRST_EPOCH[2:]


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.process)])
def test_h9_without_prefetching_an_epochs_end_is_recorded(root, processes):
    loader = loader_of(root, num_workers=2, prefetch_factor=0, processes=processes)
    assert ids(loader) == FIRST_EPOCH


def run_until_killed(root, folder, taken, options):
    """Save after `taken` steps, take one more, and be killed with batches in flight."""
    loader = loader_of(root, **options)
    batches = iter(loader)
    first = ids(islice(batches, taken))
    workers = [process.pid for process in multiprocessing.active_children()]
    (folder / "saved.json").write_text(json.dumps({"ids": first, "state": loader.state_dict(), "workers": workers}))
    next(batches)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("processes", "prefetch"), [(False, 1), (False, 8), (True, 8)])
def test_h9_the_rest_after_a_kill_is_exact_and_the_workers_end(root, tmp_path, processes, prefetch):
    options = {"num_workers": 2, "prefetch_factor": prefetch, "processes": processes}
    run = FORK.Process(target=run_until_killed, args=(root, tmp_path, 3, options))
    run.start()
    run.join(DEADLINE)
    assert run.exitcode == -signal.SIGKILL
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved["ids"] == FIRST_EPOCH[:6]
    resumed = loader_of(root, num_workers=2)
    resumed.load_state_dict(saved["state"])
    assert ids(resumed) == FIRST_EPOCH[6:]
    assert ids(resumed) == SECOND_EPOCH
    # A worker that had sent all of its batches by then may have ended.
    assert 1 <= len(saved["workers"]) <= 2 if processes else not saved["workers"]
    end = time.monotonic() + DEADLINE
    while any(map(is_running, saved["workers"])):
        assert time.monotonic() < end, "workers of a killed run are still alive"
        time.sleep(0.05)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


# ---------------------------------------------------------------------- H13: packing and filtering


class OnlyEven:
    """Drop samples in a collate function; now and then all of them."""

    def __call__(self, samples):
        return [int(sample["id"]) for sample in samples if sample["id"] % 2 == 0]


class Packed:
    """Pack samples into rows of at most 30, as texts are packed into a context: any number of rows per batch."""

    def __call__(self, samples):
        rows = [[]]
        for sample in samples:
            if sum(rows[-1]) + sample["id"] > 30:
                rows.append([])
            rows[-1].append(int(sample["id"]))
        return [number for row in rows for number in row]


def halved(columns):
    """Drop rows in a transform of batches."""
    return {"kept": columns["id"][columns["id"] % 2 == 0]}


halved.on_batches = halved.thread_safe = True

EVEN = [4, 18, 12, 16, 0, 20, 2, 6, 8, 14, 10]
"""The rest of FIRST_EPOCH, worked out by hand."""
WAYS = [
    pytest.param({}, id="alone"),
    pytest.param({"num_workers": 2, "worker_kind": "thread"}, id="threads"),
    pytest.param({"num_workers": 2, "processes": True}, id="processes", marks=SLOW),
]
MAKERS = [
    pytest.param({"collate_fn": OnlyEven()}, EVEN, id="filter"),
    pytest.param({"collate_fn": Packed()}, FIRST_EPOCH, id="pack"),
    pytest.param({"transform": halved}, EVEN, id="transform"),
]


def flat(batches):
    return [int(number) for batch in batches for number in (batch["kept"] if isinstance(batch, dict) else batch)]


@pytest.mark.parametrize(("maker", "expected", "way"), each_value_once(MAKERS, WAYS))
def test_h13_a_state_counts_samples_of_the_set_and_the_rest_is_exact(root, maker, expected, way):
    """8 steps of 3; the state after each counts the samples read, whatever the collate function returned."""
    for taken in (1, 4, 7):
        loader = loader_of(root, 3, **maker, **way)
        batches = iter(loader)
        first = flat(islice(batches, taken))
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()
        assert state["sample_in_epoch"] == 3 * taken
        resumed = loader_of(root, 3, **maker, **way)
        resumed.load_state_dict(state)
        assert first + flat(resumed) == expected


def test_h13_a_run_that_filters_samples_resumes_like_one_that_does_not(root):
    """With another batch size too: the place is that of the set, not of the collate function."""
    loader = loader_of(root, 5, collate_fn=OnlyEven())
    batches = iter(loader)
    next(batches), next(batches)
    plain = loader_of(root, 4)
    plain.load_state_dict(loader.state_dict())
    assert ids(plain) == FIRST_EPOCH[10:]


def test_h13_empty_batches_count_as_steps(root):
    loader = loader_of(root, 4, collate_fn=lambda samples: [])
    assert list(loader) == [[]] * 6
    assert (loader.state_dict()["epoch"], loader.state_dict()["sample_in_epoch"]) == (1, 0)
