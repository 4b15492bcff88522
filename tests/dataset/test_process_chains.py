"""Resumed runs as processes, each segment on another world, most of them killed: every sample counts once."""

import json
import multiprocessing
import random

import pytest

from smalti.dataset import StreamingDataset
from tests.dataset.rank_process import RankTask, run_rank
from tests.reading_options import grouped
from tests.seeds import seed_of, sized
from tests.shard_sets import write_set

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.search]

COUNT = 137
DEADLINE = 280.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("set") / "root", COUNT))


@pytest.fixture(scope="module")
def processes():
    return multiprocessing.get_context("forkserver")


def launch(processes, root, folder, world, options, steps):
    """Run one segment on all ranks, and return the records of each."""
    hosts, ranks = world
    started = []
    for rank in range(hosts * ranks):
        environment = {"RANK": rank, "WORLD_SIZE": hosts * ranks, "LOCAL_RANK": rank % ranks, "LOCAL_WORLD_SIZE": ranks}
        task = RankTask(root, folder, {name: str(value) for name, value in environment.items()}, options, steps)
        started.append(processes.Process(target=run_rank, args=(task,)))
    for process in started:
        process.start()
    for process in started:
        process.join(DEADLINE)
        assert process.exitcode in (0, -9), f"rank ended with {process.exitcode}"
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(hosts * ranks)]


def count(saved, consumed):
    for rank in saved:
        for positions, ids in rank["records"]:
            for position, sample_id in zip(positions, ids, strict=True):
                if position >= 0:
                    assert position not in consumed, "a position is counted once"
                    consumed[position] = sample_id


@pytest.mark.parametrize("chain", range(sized(25)))
def test_a_run_of_killed_processes_counts_every_sample_once(processes, root, tmp_path, chain):
    rng = random.Random(seed_of(chain))
    order = {"shuffle": True, "num_canonical_nodes": 6, "shuffle_block_size": 64}
    consumed, state, segments = {}, None, 0
    while state is None or state["epoch"] == 0:
        segments += 1
        world = (rng.choice([1, 2, 3]), rng.choice([1, 2]))
        options = {**order, "batch_size": rng.randint(1, 6)}
        folder = tmp_path / str(segments)
        folder.mkdir()
        if state is not None:
            (folder / "state.json").write_text(json.dumps(state))
        saved = launch(processes, root, folder, world, options, None if segments == 3 else rng.randint(1, 8))
        count(saved, consumed)
        assert all(rank["state"] == saved[0]["state"] for rank in saved), "states are equal on all ranks"
        state = saved[0]["state"]
    assert segments <= 3
    assert sorted(consumed.values()) == list(range(COUNT))
    alone = StreamingDataset(remote=root, batch_size=1, **grouped(**order))
    plan = alone._smalti.reading(alone._smalti.begin_pass()).plan
    assert consumed == {place: int(plan.sample_ids(place, place + 1)[0]) for place in consumed}
