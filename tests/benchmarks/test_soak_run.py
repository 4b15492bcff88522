"""The soak itself, small: it passes with real jobs, faults and kills, and fails when something is made to go wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.skipif("SMALTI_NIGHTLY" not in os.environ, reason="takes minutes: `make test-nightly` runs it"),
]
ROOT = Path(__file__).resolve().parents[2]


def soak(tmp_path, *arguments):
    """A run of it; the exit status, what it said, and its report."""
    command = [sys.executable, "-m", "benchmarks.soak", "--small", "--results", str(tmp_path / "results"), *arguments]
    done = subprocess.run(
        [*command, "--work", str(tmp_path / "work")], cwd=ROOT, capture_output=True, text=True, timeout=190, check=False
    )
    reports = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert len(reports) == 1, done.stdout[-2000:] + done.stderr[-3000:]
    return done, reports[0]


def test_some_seconds_of_faults_and_kills_are_survived(tmp_path):
    done, report = soak(tmp_path, "--seconds", "7", "--fault-every", "1", "--kill-every", "3", "--seed", "3")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert report["problems"] == []
    assert report["injected"] == report["survived"] >= 3
    assert sum(report["kills"].values()) >= 1
    assert [job["samples"] > 0 for job in report["jobs"]] == [True, True, True]


def test_what_is_planted_is_noticed(tmp_path):
    plants = ("wrong-byte", "over-limit", "leaked-part", "leaked-process")
    planted = [word for plant in plants for word in ("--plant", plant)]
    done, report = soak(tmp_path, "--seconds", "3", "--fault-every", "100", "--kill-every", "100", *planted)
    assert done.returncode == 1
    told = " | ".join(report["problems"])
    for words in ("wrong samples, such as", "the limit is", "left behind, processes", ".shard.00000.mds"):
        assert words in told
