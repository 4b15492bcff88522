"""Ray Train, where it is installed: two workers stop in the middle of an epoch, and one resumes it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.egress import egress_guard

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray (pip install 'ray[train]'), 600 MB"),
]

RUNS = """
import sys
from pathlib import Path
import ray
from examples import ray_resume as example

folder = Path(sys.argv[1])
ray.init(num_cpus=4, include_dashboard=False, _node_ip_address="127.0.0.1")
example.write_set(str(folder / "set"))
example.run(folder, "whole", num_workers=2)
checkpoint = example.run(folder, "first", num_workers=2, max_steps=3)
example.run(folder, "same", num_workers=2, checkpoint=checkpoint)
example.run(folder, "one", num_workers=1, checkpoint=checkpoint)
"""


@pytest.mark.timeout(600)
def test_workers_resume_what_two_began(tmp_path):
    """Ray's processes run without the guard of connections: they use the addresses of this machine."""
    from examples.ray_resume import seen_by

    watched = {"PYTHONPATH", egress_guard.LOG}
    env = {name: value for name, value in os.environ.items() if name not in watched}
    env |= {"PYTHONPATH": str(REPOSITORY), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", RUNS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, env=env, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    whole, first = seen_by(tmp_path, "whole"), seen_by(tmp_path, "first")
    same, (one,) = seen_by(tmp_path, "same"), seen_by(tmp_path, "one")
    assert [before + after for before, after in zip(first, same, strict=True)] == whole
    assert [len(batches) for batches in first] == [3, 3]
    read = [number for batches in first for batch in batches for number in batch]
    rest = [number for batch in one for number in batch]
    assert len(one) == 7
    assert sorted(read + rest[:26]) == list(range(50))
