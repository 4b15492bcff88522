"""`python -m benchmarks`: measures, reports, or installs the libraries to compare with. See README.md."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.environment import PYTHON, is_inside, setup
from benchmarks.excerpt import excerpt
from benchmarks.machine import machine_facts
from benchmarks.markdown import render
from benchmarks.peers import KNOWN, is_installed
from benchmarks.process import ROOT
from benchmarks.report import RowReport
from benchmarks.results import Results
from benchmarks.row import Row
from benchmarks.runner import RunOptions, alone, run
from benchmarks.scale import SCALES
from benchmarks.table import ROWS

DEFAULT_WORK = ROOT / "build" / "benchmarks"
DEFAULT_RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns an exit status: 1 when a measurement failed, never for a missed goal."""
    if list(arguments[:1]) == ["setup"]:
        return setup()
    if list(arguments[:1]) == ["excerpt"]:
        for page in map(Path, arguments[1:]):
            page.write_text(excerpt(page.read_text()))
        return 0
    if PYTHON.exists() and not is_inside():
        # The libraries to compare with are not in the project's own environment.
        os.execv(PYTHON, [str(PYTHON), "-m", "benchmarks", *arguments])
    chosen = _parse(arguments)
    if chosen.list:
        for row in ROWS:
            print(f"{row.key:22} {row.title}")
        return 0
    scale = SCALES[chosen.scale]
    options = RunOptions(
        _rows(chosen.only), _peers(chosen.peers), scale, chosen.runs or scale.runs, chosen.work.resolve(),
        resume=chosen.resume,
    )  # fmt: skip
    with alone(options.work):
        results = Results(options.work / f"{chosen.name}.jsonl", resume=options.resume)
        try:
            run(options, results)
        except KeyboardInterrupt:
            print(f"==> stopped; the same command with --continue goes on after {len(results.lines)} measurements")
    command = shlex.join(["python", "-m", "benchmarks", *arguments])
    facts = {"name": chosen.name, "command": command, "scale": scale.name, "machine": machine_facts(options.work)}
    _write(chosen, options, results, facts)
    return int(bool(results.failures))


def _write(chosen: argparse.Namespace, options: RunOptions, results: Results, facts: dict[str, Any]) -> None:
    page = render([RowReport(row, options, results) for row in options.rows], facts)
    chosen.results.mkdir(parents=True, exist_ok=True)
    stem = chosen.results / f"{datetime.now(timezone.utc):%Y-%m-%d}-{chosen.name}"
    stem.with_suffix(".md").write_text(page)
    lines = [{name: value for name, value in line.items() if name != "key"} | _identity(line) for line in results.lines]
    stem.with_suffix(".json").write_text(json.dumps({**facts, "measurements": lines}, indent=1) + "\n")
    print(f"\n{page}\n==> {stem}.md and .json")


def _identity(line: dict[str, Any]) -> dict[str, Any]:
    task = json.loads(line["key"])
    return {"task": {name: value for name, value in task.items() if name != "work_dir"}}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", help="beginnings of rows, comma-separated: write,read-tiny; see --list")
    parser.add_argument("--peers", help=f"participants besides the floors, comma-separated, out of {', '.join(KNOWN)}")
    parser.add_argument("--runs", type=int, help="interleaved runs; by default 3, or 1 below full scale")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--quick", dest="scale", action="store_const", const="quick", help="the same as --scale quick")
    parser.add_argument("--continue", dest="resume", action="store_true", help="keep what the run of this name has")
    parser.add_argument("--name", default="comparison", help="of the run and its reports")
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK, help="folder for data; its disk is measured")
    parser.add_argument("--results", type=Path, default=DEFAULT_RESULTS)
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    return parser.parse_args(arguments)


def _rows(only: str | None) -> list[Row]:
    if only is None:
        return list(ROWS)
    wanted = only.split(",")
    unknown = [start for start in wanted if not any(row.key.startswith(start) for row in ROWS)]
    if unknown:
        raise SystemExit(f"no row begins with {unknown[0]!r}; see --list")
    return [row for row in ROWS if any(row.key.startswith(start) for start in wanted)]


def _peers(chosen: str | None) -> list[str]:
    names = list(KNOWN)
    if chosen is not None:
        wanted = set(chosen.split(","))
        if wanted - KNOWN.keys():
            raise SystemExit(f"no participant is called {min(wanted - KNOWN.keys())!r}; there are: {', '.join(KNOWN)}")
        wanted |= {name for name in KNOWN if name.startswith("smalti-")} if "smalti" in wanted else set()
        names = [name for name in KNOWN if name in wanted or KNOWN[name].is_floor]
    missing = [name for name in names if not is_installed(name)]
    if missing:
        print(f"==> not installed, and so not measured: {', '.join(missing)} (python -m benchmarks setup)")
    return names


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
