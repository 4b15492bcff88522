"""`smalti ledger check URL`: check that a run read every planned sample once."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import typer

from smalti.cli.faults import ExitCode, point_out
from smalti.cli.options import Output, StoreOptions
from smalti.cli.output import write, write_json
from smalti.cli.registration import TRAINING, command, group

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smalti.cursor import Cursor
    from smalti.ledger import LedgerReport, Plan


group("ledger", "The ledger of a run: the samples that its ranks read.", panel=TRAINING)


@command(
    "ledger check",
    examples=[
        "smalti ledger check runs/7/ledger",
        "smalti ledger check s3://bucket/runs/7/samples",
        "smalti ledger check runs/7/ledger --data ./flowers --json",
    ],
)
def check(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Folder or URL of the ledger, such as the folder `samples` of a run.",
            show_default=False,
        ),
    ],
    *,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="URL",
            help="Shard set that the run read: compare sample ids with the plan; repeat for streams of a mixture.",
        ),
    ] = None,
    stores: StoreOptions,
    output: Output,
) -> ExitCode:
    """Prove that each planned sample was read once, over all lives of the run.

    The exit status is 3 if it is not proven.
    """
    from smalti.ledger import check_ledger
    from smalti.storage.local_files import local_files

    with local_files(stores.open(folder)) as files:
        report = check_ledger(files, _planner(data, stores) if data else None)
    if output.as_json:
        write_json(report.to_dict())
    else:
        _write_report(report)
    return ExitCode.OK if report.ok else ExitCode.NOT_VERIFIED


def _write_report(report: "LedgerReport") -> None:
    for life in report.lives:
        write(f"life {life['life']:<5} ranks {life['num_ranks']:,}, hosts {life['num_hosts']:,}")
    for epoch in report.epochs:
        state = "" if epoch.is_finished else f" (open, of {epoch.size:,})"
        skipped = f", {epoch.skipped:,} skipped" if epoch.skipped else ""
        repeats = f", {epoch.repeats:,} repeats to fill the last step" if epoch.repeats else ""
        write(f"epoch {epoch.epoch:<4} {epoch.taken:,} of {epoch.expected:,} samples{state}{skipped}{repeats}")
    write(f"{report.superseded:,} samples superseded by a later life, {report.in_flight:,} in flight at the end")
    compared = (
        f"{report.compared:,} sample ids compared with the plan" if report.compared else "not compared; see --data"
    )
    write(f"plan       {compared}")
    for each in report.skipped:
        write(f"skipped    sample {each['sample_id']} of epoch {each['epoch']} ({each['shard']}): {each['cause']}")
    num_unlisted = sum(epoch.skipped for epoch in report.epochs) - len(report.skipped)
    if num_unlisted > 0:
        write(f"skipped    {num_unlisted:,} more")
    for note in report.notes:
        write(f"note: {note}")
    for problem in report.problems:
        point_out(f"{problem.kind}: {problem.message}")
    found = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in sorted(report.counts.items()))
    write("all good" if report.ok else f"not proven: {found}")


def _planner(urls: list[str], stores: StoreOptions) -> "Callable[[Cursor], Plan]":
    """Return a function from a cursor to its order, using the versions of the shard sets with the cursor's digests."""
    from smalti.catalog import history
    from smalti.dataset import open_dataset
    from smalti.dataset.order import window_plan
    from smalti.errors import CursorError

    @lru_cache(maxsize=256)
    def shard_sizes(digest: str, split: str | None) -> "NDArray[np.int64]":
        found = []
        for url in urls:
            store = stores.open(url)
            versions = [info.version for info in history(store) if info.digest == digest]
            dataset = open_dataset(store, version=versions[-1] if versions else None, split=split)
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

    def plan(cursor: "Cursor") -> "Plan":
        mixture = cursor.mixture
        if mixture is None:
            return window_plan(cursor, [shard_sizes(cursor.digest, cursor.split)])
        return window_plan(cursor, [shard_sizes(stream.digest, stream.split) for stream in mixture.streams])

    return plan
