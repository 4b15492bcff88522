"""Resumed runs over several streams as killed processes with loader workers, on other worlds and weights."""

import json
import multiprocessing
import random

import pytest

from smalti.world import World
from tests.combinations import nightly
from tests.dataset.mixture_rank_process import MixedRankTask, run_rank
from tests.dataset.mixture_sets import by_stream, flat, mixed, streams_of, take, write_three
from tests.seeds import seed_of

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.torch, pytest.mark.search]

DEADLINE = 280.0
SIZE = 160
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    return write_three(tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def processes():
    return multiprocessing.get_context("forkserver")


def launch(processes, folder, num_ranks, **options):
    """Run one segment on all ranks, and return the records of each."""
    started = []
    for rank in range(num_ranks):
        environment = {"RANK": rank, "WORLD_SIZE": num_ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": num_ranks}
        environment = {name: str(value) for name, value in environment.items()}
        started.append(
            processes.Process(target=run_rank, args=(MixedRankTask(folder=folder, environment=environment, **options),))
        )
    for process in started:
        process.start()
    for process in started:
        process.join(DEADLINE)
        assert process.exitcode in (0, -9), f"rank ended with {process.exitcode}"
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(num_ranks)]


@pytest.mark.parametrize("chain", [2, *nightly([0, 1, 3])])
def test_killed_processes_of_a_mixture_read_the_same_as_one_reader(processes, roots, tmp_path, chain):
    """Three segments of one epoch, the last with other weights, compared with a single reader."""
    rng = random.Random(seed_of(chain))
    options = {"shuffle": True, "epoch_size": SIZE, "batching_method": BATCHINGS[chain], "num_canonical_nodes": 6}
    values = [(2, 1, 1), (2, 1, 1), (1, 3, 4)]
    state, read, expected = None, {}, []
    for number in range(3):
        changes = {"change_weights": number == 2}
        alone = mixed(roots, values=values[number], batch_size=16 // 2, world=World.flat(0, 2), **options, **changes)
        folder = tmp_path / str(number)
        folder.mkdir()
        num_ranks, batch = (2, 8) if number == 0 else (rng.choice([1, 2, 3]), rng.randint(6, 8))
        if state is not None:
            (folder / "state.json").write_text(json.dumps(state))
            alone.load_state_dict(state)
        place = 0 if state is None else state["sample_in_epoch"]
        plan = alone._smalti.reading(alone._smalti.begin_pass()).plan
        expected[place:] = plan.sample_ids(place, SIZE).tolist()
        workers = rng.choice([{}, {"num_workers": 1}, {"num_workers": 2, "worker_kind": "process"}])
        saved = launch(
            processes,
            folder,
            num_ranks,
            streams=streams_of(roots, values=values[number]),
            options={**options, **changes},
            loader={"batch_size": batch, **workers},
            steps=None if number == 2 else rng.randint(1, 3),
        )
        for rank in saved:
            for positions, ids in rank["records"]:
                for position, sample_id in zip(positions, ids, strict=True):
                    if position >= 0:
                        assert position not in read, "a position is counted once"
                        read[position] = sample_id
        assert all(rank["state"] == saved[0]["state"] for rank in saved), "states are equal on all ranks"
        state = saved[0]["state"]
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 0)
    assert read == dict(enumerate(expected))
    history = state["smalti"]["mixture"]["history"]
    rest = SIZE - history[1]["samples"]
    counts = by_stream([read[position] for position in range(history[1]["samples"], SIZE)])
    assert all(abs(count - rest * part / 8) < 1 for count, part in zip(counts, (1, 3, 4), strict=True))
    after = mixed(roots, values=(1, 3, 4), **options)
    after.load_state_dict(state)
    assert by_stream(flat(take(after)[0])) == [20, 60, 80]
