"""The benchmark harness: what it concludes from figures, and that it still runs, with Smalti alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.goals import at_least, at_most
from benchmarks.measures.system_calls import _total
from benchmarks.plan import Planned, interleaved, preparations
from benchmarks.process import Outcome, run_task
from benchmarks.report import RowReport
from benchmarks.results import Results
from benchmarks.row import Entrant, Row
from benchmarks.runner import RunOptions
from benchmarks.scale import SCALES
from benchmarks.task import Task
from benchmarks.trees import tree_rss

ROOT = Path(__file__).resolve().parents[2]


def task(peer="smalti", measure="write", **options):
    return Task(measure, peer, "tiny", 100, "/work", options)


def test_a_goal_is_judged_against_the_floor_of_the_same_run():
    goal = at_least(0.8, "solb")
    assert goal.is_met(81, {"solb": 100}) is True
    assert goal.is_met(79, {"solb": 100}) is False
    assert goal.is_met(1000, {}) is None
    assert at_most(4).is_met(4.1, {}) is False
    assert goal.describe() == ">= 0.8 x solb"


def test_runs_of_participants_alternate():
    a, b = Planned(task("smalti"), "a", 2), Planned(task("hfds"), "b", 1)
    assert [(each.label, run) for each, run in interleaved([a, b])] == [("a", 0), ("b", 0), ("a", 1)]


def test_a_set_is_prepared_once_for_all_that_read_it_and_before_its_links():
    reading = [task("litfull", "read"), task("litdata", "access")]
    tasks = [*reading, task("grain", "write"), task("smalti-plain", "open", copies=5)]
    prepared = preparations([Planned(each, "", 1) for each in tasks], fresh=True)
    assert [(each.measure, each.peer) for each in prepared] == [
        ("prepare", "litdata"), ("prepare", "smalti"), ("multiply", "smalti-plain"),
    ]  # fmt: skip


def test_a_continued_run_repeats_only_what_failed(tmp_path):
    log = tmp_path / "run.jsonl"
    results = Results(log, resume=False)
    good, bad = Planned(task("smalti"), "good", 1), Planned(task("hfds"), "bad", 1)
    results.add(good, 0, Outcome("ok", {"seconds": 2.0}), {})
    results.add(bad, 0, Outcome("timeout", {}, "no answer after 60 s"), {})
    again = Results(log, resume=True)
    assert again.has(good, 0)
    assert not again.has(good, 1)
    assert not again.has(bad, 0)
    assert again.trouble(bad.key) == "timeout: no answer after 60 s"
    assert again.failures == ["bad"]
    again.add(bad, 0, Outcome("ok", {"seconds": 3.0}), {})
    assert again.failures == []
    assert again.summary(bad.key, "seconds").median == 3.0


def row_report(tmp_path, figures, *, lower_is_better=False):
    peers = ("smalti", "hfds", "litdata", "mosaicml", "solb")
    row = Row(
        "read", "read", "read", "tiny", "rate", "/s", tuple(Entrant(peer, peer) for peer in peers), {}, "solb",
        needs_true_shuffle=True, lower_is_better=lower_is_better,
    )  # fmt: skip
    options = RunOptions([row], peers, SCALES["smoke"], 3, tmp_path)
    results = Results(tmp_path / "run.jsonl", resume=False)
    report = RowReport(row, options, results)
    for peer, values in figures.items():
        each = Planned(Task("read", peer, "tiny", 2_000, str(tmp_path), {"seconds": 0.1}), peer, 3)
        for run, value in enumerate(values):
            results.add(each, run, Outcome("ok", {"rate": value}), {})
    return RowReport(row, options, results) if figures else report


def test_the_best_peer_is_none_with_a_weak_shuffle_and_no_floor(tmp_path):
    report = row_report(
        tmp_path, {"smalti": [90, 300, 100], "hfds": [50, 50, 50], "litdata": [99], "mosaicml": [5], "solb": [200]}
    )
    assert report.best_peer == "hfds"
    assert report.ratio("smalti", "best") == 2.0  # medians: 100 and 50
    assert report.ratio("smalti", "solb") == 0.5


def test_a_ratio_above_one_is_better_where_less_is_better(tmp_path):
    report = row_report(tmp_path, {"smalti": [2], "hfds": [8], "mosaicml": [20]}, lower_is_better=True)
    assert report.best_peer == "hfds"
    assert report.ratio("smalti", "best") == 4.0


def test_the_total_of_strace_is_read_with_and_without_errors():
    table = "% time     seconds  usecs/call     calls    errors syscall\n 60.00    0.1   10   12   futex\n"
    assert _total(table + "100.00    0.2    3    57     4 total\n") == 57
    assert _total(table + "100.00    0.2    3    58 total\n") == 58


@pytest.mark.process
def test_a_task_that_raises_or_hangs_is_an_outcome_not_an_end(tmp_path):
    unknown = Task("write", "smalti", "no such data", 10, str(tmp_path))
    raised = run_task(unknown, timeout=60)
    assert raised.status == "failed"
    assert raised.detail.startswith("KeyError")
    late = run_task(Task("write", "memcpy", "tiny", 10, str(tmp_path)), timeout=0.0)
    assert late.status == "timeout"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_of_children_counts():
    size = 64_000_000
    hold = f"import sys; held = b'x' * {size}; print('held', flush=True); sys.stdin.read()"
    before = tree_rss(subprocess.os.getpid())
    child = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"held\n"
        assert tree_rss(subprocess.os.getpid()) - before > size * 0.9
    finally:
        child.communicate()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.torch
@pytest.mark.nightly
def test_the_harness_runs_with_smalti_alone(tmp_path):
    rows = "write-tiny,write-tokens-zstd,read-tiny,read-jpeg-decoded,read-tokens-2w,access-tiny,open-1e5"
    command = [
        sys.executable, "-m", "benchmarks", "--scale", "smoke", "--peers", "smalti", "--only", rows, "--name", "test",
        "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = (tmp_path / "results").glob("*-test.json")
    measured = json.loads(report.read_text())["measurements"]
    ours = {(line["row"], line["label"]) for line in measured if line["label"].startswith("smalti")}
    assert {row for row, label in ours if label == "smalti-alias"} == {row for row, _ in ours}
    assert {each for each in ours if each[1] != "smalti-alias"} == {
        ("write-tiny", "smalti rows"), ("write-tiny", "smalti Arrow"), ("write-tokens-zstd", "smalti rows"),
        ("write-tokens-zstd", "smalti Arrow"), ("read-tiny", "smalti"), ("read-jpeg-decoded-2w", "smalti"),
        ("read-tokens-2w", "smalti"), ("access-tiny", "smalti"), ("open-1e5", "smalti manifest"),
        ("open-1e5", "smalti index.json"),
    }  # fmt: skip
    assert {line["status"] for line in measured} == {"ok"}
    page = report.with_suffix(".md").read_text()
    assert "**FAIL**" in page or "PASS" in page
