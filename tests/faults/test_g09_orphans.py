"""G9: loader workers do not outlive their program, whatever they are doing when it is killed."""

import json
import sys

import pytest

from tests.combinations import nightly
from tests.faults.reading_program import started
from tests.shard_sets import write_set
from tests.torch.train.launch.test_processes import is_alive, wait_until

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

SECONDS = 5.0  # the promise


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(write_set(tmp_path_factory.mktemp("orphans") / "root", 400))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "transform"),
    [
        ("fork", "none"),
        ("spawn", "bulky"),
        *nightly([pytest.param("forkserver", "slow"), pytest.param("fork", "slow"), pytest.param("fork", "bulky")]),
    ],
)
def test_g9_workers_of_a_killed_program_are_gone_in_five_seconds(root, start, transform):
    way = {"num_workers": 2, "worker_kind": "process", "multiprocessing_context": start, "prefetch_factor": 8}
    with started(root=root, way=way, transform=transform, steps=2, then="wait") as program:
        pids = json.loads(program.stdout.readline())["pids"]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        program.kill()
        program.wait(60)
    wait_until(lambda: not any(map(is_alive, pids)), SECONDS)
