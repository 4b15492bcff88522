"""G12: SIGTERM at any step of a loop written by hand: the state is saved within the grace, and resumed exactly.

The same for `smalti.torch.train`: tests/torch/train/launch/test_processes.py.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.faults.preempted_loop import STATE
from tests.shard_sets import write_set
from tests.worker_messages import without_harmless

pytestmark = [pytest.mark.torch, pytest.mark.process, pytest.mark.slow]

STEPS = 100
GRACE_SECONDS = 30.0  # Kubernetes's default
THREADS = {"num_workers": 2, "worker_kind": "thread"}
PROCESSES = {"num_workers": 2, "worker_kind": "process", "multiprocessing_context": "fork"}
ALONE: dict[str, object] = {}


def run_life(root, folder, way, saves, step):
    """Run one life, which is preempted after some steps."""
    told = {"root": root, "folder": str(folder), "way": way, "saves": saves}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.preempted_loop", json.dumps(told)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for _ in range(step):
            assert process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=GRACE_SECONDS)
    if way == PROCESSES:
        said = without_harmless(said)
    assert (said, process.returncode) == ("", 143)


@pytest.mark.parametrize(
    ("saves", "ways"),
    [
        ("handler", (PROCESSES,)),
        ("flag", (THREADS,)),
        pytest.param("handler", (THREADS, PROCESSES), marks=pytest.mark.nightly),
        pytest.param("flag", (PROCESSES, ALONE), marks=pytest.mark.nightly),
    ],
)
def test_g12_preempted_lives_and_the_rest_are_the_uninterrupted_epoch(tmp_path, saves, ways):
    root = str(write_set(tmp_path / "root", 4 * STEPS))
    rng = random.Random(saves)
    for way in ways:
        run_life(root, tmp_path, way, saves, rng.randint(1, 14))
    saved = json.loads((tmp_path / STATE).read_text())
    rest = StreamingDataLoader(StreamingDataset(remote=root, shuffle=True), 4)
    rest.load_state_dict(saved["state"])
    whole = [batch["id"].tolist() for batch in StreamingDataLoader(StreamingDataset(remote=root, shuffle=True), 4)]
    assert 1 <= len(saved["seen"]) < STEPS == len(whole)
    assert saved["seen"] + [batch["id"].tolist() for batch in rest] == whole
