"""G5 and G8: all ranks end together, whatever the sizes; an epoch that stops early does not affect others."""

import gc
import multiprocessing
import os
import random
from pathlib import Path

import pytest

from smalti.dataset import OrderOptions
from smalti.order import TAILS, Division
from smalti.torch import StreamingDataLoader, StreamingDataset
from smalti.world import World
from tests.seeds import SEED
from tests.shard_sets import write_set

pytestmark = pytest.mark.torch

WORLDS = [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (1, 7)]
"""Hosts, and ranks on each."""


COUNTS = range(1, 201) if SEED is not None else [*range(1, 61), 97, 128, 200]


def all_ranks(hosts, each):
    return [World.of_blocks(rank, hosts * each, hosts) for rank in range(hosts * each)]


@pytest.mark.search
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world", WORLDS)
def test_g5_all_ranks_take_equally_many_steps_of_any_number_of_samples(world, tail):
    """Together they take every sample once; with `drop`, every sample of a complete step."""
    for count in COUNTS:
        for batch in (1, 4, 5):
            ranks = [Division(count, 0, batch, rank, tail) for rank in all_ranks(*world)]
            steps = [list(rank.steps(0, rank.num_steps)) for rank in ranks]
            one_step = batch * len(ranks)
            expected = count // one_step if tail == "drop" else -(-count // one_step)
            assert [len(taken) for taken in steps] == [expected] * len(ranks)
            assert all(step.lookup.size for taken in steps for step in taken), "a rank without a sample would hang"
            seen = [int(at) for taken in steps for step in taken for at in step.positions if at >= 0]
            assert sorted(seen) == list(range(expected * one_step if tail == "drop" else count))


@pytest.fixture(scope="module", params=[1, 13, 53])
def uneven(request, tmp_path_factory):
    return request.param, str(write_set(tmp_path_factory.mktemp("uneven") / "root", request.param))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("workers", [0, 2])
def test_g5_the_loaders_of_all_ranks_deliver_equally_many_batches(uneven, tail, workers):
    count, root = uneven
    loaders = [
        StreamingDataLoader(
            StreamingDataset(remote=root, shuffle=True, order=OrderOptions(tail=tail), world=world),
            4,
            num_workers=workers,
        )
        for world in all_ranks(2, 2)
    ]
    delivered = [[batch["id"].tolist() for batch in loader] for loader in loaders]
    steps = {1: 1, 13: 1, 53: 4}[count] - (tail == "drop")  # a step is 16 samples
    assert [len(batches) for batches in delivered] == [steps] * 4
    seen = [number for batches in delivered for batch in batches for number in batch]
    if tail == "drop":
        assert len(set(seen)) == len(seen) == steps * 16
    else:
        assert set(seen) == set(range(count))


# ---------------------------------------------------------------------- G8


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("breaks") / "root", 53))


def open_resources():
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())) + Path("/proc/self/maps").read_text().count("smalti-ring")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize(("persistent", "workers"), [(True, 2), (False, 1)])
def test_g8_epochs_that_stop_at_random_steps_leave_no_processes_and_mix_no_samples(root, persistent, workers):
    epochs = 30 if os.environ.get("SMALTI_NIGHTLY") else 10
    rng, before = random.Random(8), set(multiprocessing.active_children())
    alone = StreamingDataset(remote=root, shuffle=True, batch_size=4)
    loader = StreamingDataLoader(
        StreamingDataset(remote=root, shuffle=True), 4, num_workers=workers, worker_kind="process",
        persistent_workers=persistent,
    )  # fmt: skip
    held = []
    for epoch in range(epochs):
        expected = [batch["id"].tolist() for batch in alone.batches()]
        leave_after = rng.randint(1, 14)
        for step, batch in enumerate(loader):
            assert batch["id"].tolist() == expected[step]
            if step + 1 == leave_after:
                break
        state = loader.state_dict()
        consumed = (epoch, 4 * leave_after) if leave_after < 14 else (epoch + 1, 0)
        assert (state["epoch"], state["sample_in_epoch"]) == consumed
        del batch
        if not 5 <= epoch < epochs - 5:
            held.append(open_resources())
    assert max(held[5:]) < max(held[:5]) + 12, "open files and rings do not grow: one for each epoch were 25 or more"
    if persistent:
        loader._iterator._shutdown_workers()
    assert set(multiprocessing.active_children()) == before
