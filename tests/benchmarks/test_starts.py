"""Sets that are opened, or opened again with a saved state: what is prepared, and that the right batch is timed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measures.opening import measure_resuming, save_state
from benchmarks.peers import ReadOptions, WriteOptions, find, is_installed
from benchmarks.plan import Planned, preparations, task_of
from benchmarks.results import Results
from benchmarks.row import Entrant, Row
from benchmarks.runner import RunOptions, run
from benchmarks.scale import SCALES
from benchmarks.start_rows import START_ROWS
from benchmarks.task import Task

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, TAKEN = 2_560, 2_304  # ten batches of 256, nine of which were taken


def test_a_state_is_saved_after_the_links_of_the_set_that_it_belongs_to():
    resuming = Task("resume", "smalti-sparse", "tiny", 100, "/work", {"copies": 5, "workers": 0})
    prepared = preparations([Planned(resuming, "", 1)], fresh=True)
    assert [(each.measure, each.peer) for each in prepared] == [
        ("prepare", "smalti"), ("multiply", "smalti-sparse"), ("save-state", "smalti-sparse"),
    ]  # fmt: skip


def test_states_for_other_sets_and_workers_lie_apart():
    task = Task("resume", "grain", "tiny", 100, "/work", {"workers": 0})
    names = {replace(task, options=o).state_file for o in ({"workers": 0}, {"workers": 2}, {"workers": 0, "copies": 5})}
    assert len(names) == 3


def test_rows_that_give_their_own_sizes_shrink_with_the_scale():
    row = next(row for row in START_ROWS if row.key == "open-1e10")
    full, smoke = (task_of(row, row.entrants[0], SCALES[scale], "/work") for scale in ("full", "smoke"))
    assert (full.samples, full.options["copies"], full.opened_kind.samples) == (10**4, 10**6, 10**10)
    assert (smoke.samples, smoke.options["copies"]) == (100, 10**4)


@pytest.mark.torch
@pytest.mark.parametrize("peer", ["smalti", "smalti-alias", "mosaicml", "litdata", "litfull", "grain"])
def test_the_batch_after_a_saved_state_is_the_one_that_an_unbroken_epoch_has_there(peer, tmp_path):
    if not is_installed(peer):
        pytest.skip(f"{peer} is not installed here; .venv/bench has it")
    task = Task("resume", peer, "tiny", SAMPLES, str(tmp_path), {"workers": 0})
    library, options = find(peer), ReadOptions(batch_size=256)
    task.set_folder.mkdir(parents=True)
    library.write(task.data.rows, task.kind, task.set_folder, WriteOptions())
    unbroken = [read_ids(library, batch) for batch in library.loader(task.set_folder, task.kind, options)]
    saved = save_state(task)
    state = json.loads(task.state_file.read_text())
    (last,) = (read_ids(library, batch) for batch in library.resumed(task.set_folder, task.kind, options, state))
    assert saved["taken"] == TAKEN
    assert last == unbroken[9]
    assert measure_resuming(task)["seconds"] > 0


def read_ids(library, batch):
    return [int(value) for value in library.columns(batch)["id"]]


@pytest.mark.process
@pytest.mark.torch
def test_what_cannot_be_prepared_because_a_library_has_no_counterpart_is_no_failure(tmp_path):
    row = Row("r", "r", "resume", "tiny", "seconds", "s", (Entrant("solb", "solb"),), {}, samples=100_000)
    results = Results(tmp_path / "run.jsonl", resume=False)
    run(RunOptions([row], ["solb"], SCALES["smoke"], 1, tmp_path), results)
    (line,) = results.lines
    assert (line["status"], line["detail"]) == ("unsupported", "no state to continue from")
    assert results.failures == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.torch
@pytest.mark.nightly
def test_rows_about_starts_and_orders_run_and_share_a_table(tmp_path):
    rows = "open-1e6,open-1e10,resume-1e10,order-start-1e10,order-memory,order-late"
    command = [
        sys.executable, "-m", "benchmarks", "--scale", "smoke", "--peers", "smalti,torch", "--only", rows,
        "--name", "test", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (page,) = (tmp_path / "results").glob("*-test.md")
    lines = page.read_text().splitlines()
    assert "| who | 10^6 | 10^6, 2 workers | 10^10 |" in lines
    assert [line.count(" MB |") for line in lines if line.startswith("| smalti |")] == [3, 1]
    assert "- [2] not run: about 480 GB; extrapolated from 10^8 samples, not measured" in lines
    measured = json.loads(page.with_suffix(".json").read_text())["measurements"]
    assert {line["status"] for line in measured} == {"ok", "unsupported"}
    # The row about memory looks at the processes of the one about seconds again.
    assert "order-memory-1e10" not in {line["row"] for line in measured}
