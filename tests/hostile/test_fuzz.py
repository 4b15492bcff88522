"""Damaged files by the ten thousand, each ending in a valid value or in a typed error.

With fresh seeds it takes 50,000 index files and manifests, 25,000 shards, and some images and sources; `make test`
and the quick tests take one in twenty of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.harness import SEED, Cases, run
from tests.hostile.kinds import KINDS
from tests.seeds import sized

ROOT = Path(__file__).resolve().parents[2]
COUNTS = {
    "mds-index": 30_000,
    "text-index": 15_000,
    "manifest": 5_000,
    "shard": 17_500,
    "text-shard": 5_000,
    "packed": 2_500,
    "archive": 10_000,
    "picture": 8_000,
    "parquet": 1_200,
    "litdata-rows": 1_200,
    "arrow-dataset": 1_200,
}
RUN_SECONDS = 500


def test_a_nightly_run_has_the_documented_size():
    assert COUNTS.keys() == KINDS.keys()
    assert sum(COUNTS[name] for name in ("mds-index", "text-index", "manifest")) == 50_000
    assert sum(COUNTS[name] for name in ("shard", "text-shard", "packed")) == 25_000


@pytest.mark.parametrize("name", COUNTS)
def test_one_case_in_twenty_ends_in_a_value_or_a_typed_error(name, tmp_path):
    ended = run(KINDS[name], Cases(count=COUNTS[name] // 20), tmp_path)
    assert _is_balanced(ended)


@pytest.mark.search
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", COUNTS)
def test_every_case_ends_in_a_value_or_a_typed_error_within_its_memory_and_time(name, tmp_path):
    count = sized(COUNTS[name], part=20)
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.hostile.harness", name]
    command += ["--seed", str(SEED), "--count", str(count), "--folder", str(tmp_path)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    last = int.from_bytes((tmp_path / f"{name}.at").read_bytes(), "little")
    assert done.returncode == 0, f"case {last} of {name}: {done.stderr[-3000:]}"
    ended = {outcome: int(times) for times, outcome in re.findall(r"^ *(\d+)  (.+)$", done.stdout, re.MULTILINE)}
    assert sum(ended.values()) == count
    assert _is_balanced(ended)
    if sys.platform == "linux":
        assert "memory limit: yes" in done.stdout


def _is_balanced(ended):
    """Return whether 10 to 95 % of the cases were refused: the damage is neither negligible nor always fatal."""
    total = sum(ended.values())
    refused = sum(times for outcome, times in ended.items() if outcome.startswith("refused"))
    return 0.1 < refused / total < 0.95
