"""G10 and G14: a program with little shared memory, or that ends within an epoch, is silent and leaves nothing."""

import json
import random

import pytest

from tests.faults.reading_program import can_have_own_shm, started
from tests.shard_sets import write_set
from tests.torch.train.launch.test_processes import is_alive

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not can_have_own_shm(), reason="needs a mount namespace of its own (unshare -rm)"),
]

COUNT = 20_000
PROCESSES = {"num_workers": 2, "worker_kind": "process"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("exits") / "root", COUNT, size_limit=1 << 20))


def ended(**options):
    """Run a program to its end; return its first line and the names left in /dev/shm. It prints nothing else."""
    with started(**options) as program:
        out, err = program.communicate(timeout=500)
    assert (err, program.returncode) == ("", 0)
    first, *left = out.splitlines()
    return json.loads(first), left


@pytest.mark.parametrize(
    ("way", "seed"),
    [
        pytest.param({"num_workers": 0}, 1, marks=pytest.mark.nightly),
        ({"num_workers": 2, "worker_kind": "thread"}, 2),
        pytest.param({**PROCESSES, "multiprocessing_context": "fork"}, 4, marks=pytest.mark.nightly),
        ({**PROCESSES, "multiprocessing_context": "fork", "persistent_workers": True}, 5),
        pytest.param(
            {**PROCESSES, "multiprocessing_context": "spawn", "persistent_workers": True}, 6, marks=pytest.mark.nightly
        ),
    ],
)
def test_g14_an_interpreter_that_ends_at_any_step_is_silent_and_leaves_nothing(root, way, seed):
    steps = random.Random(seed).randint(1, 12)
    told, left = ended(root=root, way=way, batch=64, steps=steps, then="exit", shm=64 * MIB)
    assert len(told["seen"]) == steps
    assert len(told["pids"]) == (2 if "multiprocessing_context" in way else 0)
    assert not any(map(is_alive, told["pids"]))
    assert left == []


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_g10_a_mebibyte_of_shared_memory_is_enough_for_worker_processes(root, start):
    """Neither orders nor batches are in /dev/shm: the order of these samples alone would take 160 kB per epoch."""
    way = {**PROCESSES, "multiprocessing_context": start, "prefetch_factor": 4}
    told, left = ended(root=root, way=way, transform="wide", batch=500, steps=40, then="exit", shm=MIB)
    assert sorted(number for batch in told["seen"] for number in batch) == list(range(COUNT))
    assert left == []
