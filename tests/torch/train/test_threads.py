"""The cores that a process may use, and how torch's threads wait for each other."""

import os
import subprocess
import sys

import pytest

from smalti.torch.train.threads import detect_cores, waiting_of_threads

pytestmark = pytest.mark.torch


def test_a_limit_of_the_container_counts_if_it_is_below_the_cores(tmp_path):
    unlimited = detect_cores(tmp_path / "absent")
    assert unlimited >= 1
    for text, expected in [
        ("max 100000\n", unlimited),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),  # half a core: one thread
        ("99900000 100000\n", unlimited),
    ]:
        (tmp_path / "cpu.max").write_text(text)
        assert detect_cores(tmp_path / "cpu.max") == expected


def test_a_choice_in_the_environment_is_kept():
    assert waiting_of_threads({"HOME": "/"}) == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        assert waiting_of_threads({name: "1"}) == {}


SPY = """
import os, sys
from smalti.cli import main

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch is imported with", os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))

sys.meta_path.insert(0, Spy())
main(["train", "config.yaml"])
"""


@pytest.mark.parametrize(("chosen", "expected"), [({}, "PASSIVE 1000"), ({"GOMP_SPINCOUNT": "7"}, "None 7")])
def test_the_command_chooses_before_torch_is_imported(tmp_path, chosen, expected):
    (tmp_path / "config.yaml").write_text("data: absent\nrun_dir: run\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", SPY], cwd=tmp_path, env={**kept, **chosen}, capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip
    assert done.stdout == f"torch is imported with {expected}\n"
    assert "absent" in done.stderr
