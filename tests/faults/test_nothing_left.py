"""Datasets and loaders that were dropped leave nothing behind in their process, whether somebody closed them or not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shard_sets import write_set
from tests.worker_messages import without_harmless

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


def test_52_data_sets_of_one_process_leave_as_much_as_13_which_is_nothing_of_ours(tmp_path):
    """Local, unpacked and remote; alone, with threads and processes; whole epochs and parts; closed and forgotten."""
    write_set(tmp_path / "plain", 40)
    write_set(tmp_path / "packed", 40, compression="zstd")
    done = subprocess.run(
        [sys.executable, str(HERE / "many_datasets.py"), str(tmp_path), "52", str(tmp_path / "found.json")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT / "src"), str(PROJECT)])},
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert without_harmless(done.stderr) == "", "nothing is said on the way"
    early, late = json.loads((tmp_path / "found.json").read_text()).values()
    assert early == late
    ours = (
        "boards beyond the program's one", "of shards and rings", "maps of shards and rings", "children",
        "shared memory", "locks and parts",
    )  # fmt: skip
    assert {name: late[name] for name in ours} == dict.fromkeys(ours, 0)
    assert late["threads"] == 1
