"""One run of the harness: prepares the sets, measures row after row, and says what it does while it does it."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.goals import short
from benchmarks.peers import is_installed
from benchmarks.plan import Planned, interleaved, key_of, planned, preparations
from benchmarks.process import Outcome, run_task
from benchmarks.results import Results, first_line
from benchmarks.row import Row
from benchmarks.scale import Scale


@dataclass(frozen=True)
class RunOptions:
    """What was chosen for this run."""

    rows: Sequence[Row]
    peers: Sequence[str]
    scale: Scale
    runs: int
    work: Path
    resume: bool = False

    def measurements(self, row: Row) -> list[Planned]:
        """The tasks of one row, of those that are installed."""
        there = [peer for peer in self.peers if is_installed(peer)]
        everything = planned(row, self.scale, self.runs, str(self.work), there)
        return [each for each in everything if is_installed(each.task.writer)]


def run(options: RunOptions, results: Results) -> None:
    """Measures everything that is not in the results yet; failures are printed and stand in the results."""
    begin = time.monotonic()
    by_row = {row.key: options.measurements(row) for row in options.rows}
    everything = [each for measurements in by_row.values() for each in measurements]
    broken = _prepare(options, everything)
    left = sum(each.runs for each in {each.key: each for each in everything}.values())
    print(f"==> {left} measurements in {len(by_row)} rows", flush=True)
    for row in options.rows:
        print(f"==> {row.title}", flush=True)
        for each, number in interleaved(by_row[row.key]):
            if results.has(each, number):
                continue
            load = [round(value, 2) for value in os.getloadavg()]
            outcome = _measure(each, options, broken)
            at = datetime.now(timezone.utc).isoformat(timespec="seconds")
            results.add(each, number, outcome, {"row": row.key, "load": load, "at": at})
            print(f"    {time.monotonic() - begin:6.0f} s  {_told(row, each, number, outcome)}", flush=True)


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """Holds the work folder: a second run would overwrite the sets of the first, and spoil its figures."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SystemExit(f"another run is at work in {work}; wait for it, or give --work another folder") from error
        yield


def _measure(each: Planned, options: RunOptions, broken: dict[str, Outcome]) -> Outcome:
    missing = [broken[key_of(task)] for task in preparations([each], fresh=True) if key_of(task) in broken]
    if missing and missing[0].status == "unsupported":
        return missing[0]
    if missing:
        return Outcome("failed", {}, f"its set could not be written: {first_line(missing[0].detail)}")
    return run_task(each.task, float(each.task.options.get("timeout_s", options.scale.timeout)))


def _prepare(options: RunOptions, everything: Sequence[Planned]) -> dict[str, Outcome]:
    """Writes the sets that are read; returns what went wrong, by task."""
    broken: dict[str, Outcome] = {}
    tasks = preparations(everything, fresh=True)
    if not tasks:
        return broken
    print(f"==> preparing {len(tasks)} sets", flush=True)
    for task in tasks:
        begin = time.monotonic()
        outcome = run_task(task, options.scale.timeout)
        if outcome.status != "ok":
            broken[key_of(task)] = outcome
        note = "" if outcome.status == "ok" else f"  {outcome.status}: {first_line(outcome.detail)}"
        print(f"    {task.measure} {task.peer} {task.workload} {time.monotonic() - begin:.1f} s{note}", flush=True)
    return broken


def _told(row: Row, each: Planned, number: int, outcome: Outcome) -> str:
    who = f"{each.label} ({number + 1}/{each.runs})"
    if outcome.status != "ok":
        return f"{who:28} {outcome.status}: {first_line(outcome.detail)}"
    memory = outcome.figures.get("tree_rss_mb", outcome.figures["max_rss_mb"])
    return f"{who:28} {short(outcome.figures[row.figure]):>8} {row.unit:10} {memory:6.0f} MB"
