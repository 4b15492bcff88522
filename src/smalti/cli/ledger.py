"""`smalti ledger check FOLDER`: check that a run read every planned sample once."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.catalog import history
from smalti.cursor import Cursor
from smalti.dataset import open_dataset
from smalti.dataset.order import window_plan
from smalti.errors import CursorError
from smalti.ledger import LedgerReport, Plan, check_ledger


def add_ledger_commands(commands: Any) -> None:
    """Add `ledger` and its subcommands to the parser."""
    text = "the ledger of a run: the samples that its ranks read"
    checks = commands.add_parser("ledger", help=text, description=text).add_subparsers(required=True, metavar="COMMAND")
    text = "prove that each planned sample was read once, over all lives of the run"
    check = checks.add_parser("check", help=text, description=text)
    check.add_argument("folder", help="folder of the ledger, as given to the loader")
    check.add_argument(
        "--data",
        action="append",
        metavar="URL",
        help="shard set that the run read: compare every sample id with the plan; once for each stream of a mixture",
    )
    check.add_argument("--json", action="store_true", help="print the whole report as JSON")
    check.set_defaults(run=_check)


def _check(chosen: argparse.Namespace) -> int:
    report = check_ledger(chosen.folder, _planner(chosen.data) if chosen.data else None)
    if chosen.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _print_report(report)
    return 0 if report.ok else 1


def _print_report(report: LedgerReport) -> None:
    for life in report.lives:
        print(f"life {life['life']:<5} ranks {life['num_ranks']:,}, hosts {life['num_hosts']:,}")
    for epoch in report.epochs:
        state = "" if epoch.is_finished else f" (open, of {epoch.size:,})"
        repeats = f", {epoch.repeats:,} repeats to fill the last step" if epoch.repeats else ""
        print(f"epoch {epoch.epoch:<4} {epoch.taken:,} of {epoch.expected:,} samples{state}{repeats}")
    print(f"{report.superseded:,} samples superseded by a later life, {report.in_flight:,} in flight at the end")
    compared = (
        f"{report.compared:,} sample ids compared with the plan" if report.compared else "not compared; see --data"
    )
    print(f"plan       {compared}")
    for note in report.notes:
        print(f"note: {note}")
    for problem in report.problems:
        print(f"{problem.kind}: {problem.message}", file=sys.stderr)
    found = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in sorted(report.counts.items()))
    print("all good" if report.ok else f"not proven: {found}")


def _planner(urls: list[str]) -> Callable[[Cursor], Plan]:
    """Return a function from a cursor to its order, using the versions of the shard sets with the cursor's digests."""

    @lru_cache(maxsize=256)
    def shard_sizes(digest: str, split: str | None) -> NDArray[np.int64]:
        found = []
        for url in urls:
            versions = [info.version for info in history(url) if info.digest == digest]
            dataset = open_dataset(url, version=versions[-1] if versions else None, split=split)
            newest, sizes = dataset.manifest.digest, dataset.stream.shard_sizes
            dataset.close()
            if newest == digest:
                return sizes
            found.append(f"{url} (newest: {newest[:16]})")
        raise CursorError(
            f"the ledger's run read a data set with digest {digest[:16]}, and no version of {', '.join(found)} has it. "
            "Give each data set that the run read by its own `--data`, or omit `--data`.",
            digest=digest,
            urls=urls,
        )

    def plan(cursor: Cursor) -> Plan:
        mixture = cursor.mixture
        if mixture is None:
            return window_plan(cursor, [shard_sizes(cursor.digest, cursor.split)])
        return window_plan(cursor, [shard_sizes(stream.digest, stream.split) for stream in mixture.streams])

    return plan
