"""`smalti plan URL`, `smalti train CONFIG.yaml`, `smalti ledger check URL`: a training run.

Its cost, computed before machines are rented; the run as its configuration says; the proof that it read every planned
sample once.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import typer

from smalti.cli.faults import ExitCode, UsageFault, point_out
from smalti.cli.options import CommonOptions, SplitChoice, Url, argument, flag, option
from smalti.cli.output import duration, show, write, write_facts, write_json
from smalti.cli.registration import TRAINING, command, group
from smalti.redaction import MASK
from smalti.texts import byte_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from smalti.cursor import Cursor
    from smalti.dataset.forecast import Forecast, Rates, ReaderSetup, RunCost
    from smalti.ledger import LedgerReport, Plan


@dataclass(frozen=True)
class Readers:
    """The hosts and ranks that will read."""

    batch: Annotated[int, option("N", "Samples per rank and step.", min=1)]
    world: Annotated[str, option("HxR", "Hosts, and ranks of each, such as 2x8.")] = "1x1"
    workers: Annotated[int, option("N", "Loader workers of a rank.", min=0)] = 0
    cache: Annotated[str | None, option("BYTES", "Cache on each host, such as 50GB (default: enough).")] = None
    tail: Annotated[Literal["pad", "short", "drop"], typer.Option("--tail", help="How the last step is filled.")] = (
        "pad"
    )

    def setup(self) -> "ReaderSetup":
        """Return them as the library takes them."""
        from smalti.dataset.forecast import ReaderSetup
        from smalti.errors import SchemaError
        from smalti.format.sizes import parse_byte_count

        match = re.fullmatch(r"(\d+)x(\d+)", self.world, re.ASCII)
        if match is None or not int(match[1]) or not int(match[2]):
            raise UsageFault(f"--world: expected hosts x ranks of each, such as 2x8, found {self.world!r}")
        try:
            cache = None if self.cache is None else parse_byte_count(self.cache, what="--cache")
        except SchemaError:
            raise UsageFault(f"--cache: expected bytes, such as 50GB, found {self.cache!r}") from None
        return ReaderSetup(int(match[1]), int(match[2]), self.batch, self.workers, cache, self.tail)


@dataclass(frozen=True)
class OrderChoice:
    """The order in which samples are read."""

    PANEL: ClassVar[str] = "Order"

    canonical_nodes: Annotated[int | None, option("N", "As for StreamingDataset.", min=1)] = None
    shuffle_block_size: Annotated[int | None, option("N", "As for StreamingDataset.", min=1)] = None
    affinity: Annotated[
        float | None,
        option(
            "PART", "Part of its shards that a host reads again in the next epoch (default: 1, all).", min=0.0, max=1.0
        ),
    ] = None
    no_shuffle: Annotated[bool, flag("Read in the stored order.")] = False


@dataclass(frozen=True)
class CostOptions:
    """Speeds and prices; with none of them no seconds are computed."""

    PANEL: ClassVar[str] = "Seconds and price"

    link: Annotated[str | None, option("RATE", "Link of each host: 10Gbit, or 500MB a second.")] = None
    store_rate: Annotated[str | None, option("RATE", "The store to all hosts together: 40Gbit.")] = None
    read_rate: Annotated[
        float | None,
        option("N", "Samples that a rank reads and decodes in a second; `smalti benchmark` measures them."),
    ] = None
    compute_seconds_per_step: Annotated[float | None, option("S", "The model's seconds for a step.")] = None
    price_per_hour: Annotated[float, option("P", "Price of a host for an hour.", show_default=False)] = 0.0
    price_per_gb: Annotated[float, option("P", "Price of 10^9 bytes out of the store.", show_default=False)] = 0.0
    price_per_1000_gets: Annotated[float, option("P", "Price of 1000 requests.", show_default=False)] = 0.0
    epochs: Annotated[int, option("N", "Epochs of the run.", min=1)] = 1

    def rates(self) -> "Rates | None":
        """Return the rates as the library takes them; None if none is given."""
        from smalti.dataset.forecast import Rates, parse_rate
        from smalti.errors import SchemaError

        try:
            rates = Rates(
                link=None if self.link is None else parse_rate(self.link, what="--link"),
                store=None if self.store_rate is None else parse_rate(self.store_rate, what="--store-rate"),
                read=self.read_rate,
                step=self.compute_seconds_per_step,
                host_hour=self.price_per_hour,
                egress_gb=self.price_per_gb,
                thousand_gets=self.price_per_1000_gets,
            )
        except SchemaError as fault:
            raise UsageFault(str(fault)) from None
        except ValueError as fault:
            raise UsageFault(f"speeds and prices: {fault}") from None
        return None if rates == Rates() else rates


@command("plan", panel=TRAINING)
def plan(
    url: Url,
    version: SplitChoice,
    *,
    readers: Readers,
    order: OrderChoice,
    costs: CostOptions,
    common: CommonOptions,
) -> None:
    """Compute the cost of an epoch on a world: steps, padding, traffic, cache, memory, mixing, seconds, price.

    Examples:
        smalti plan ./flowers --batch 32 --world 2x8
        smalti plan ./flowers --batch 32 --link 10Gbit --price-per-hour 4
    """
    from smalti.dataset import OrderOptions
    from smalti.dataset.forecast import forecast_epoch, run_cost

    reader, rates = readers.setup(), costs.rates()
    found = forecast_epoch(
        common.open(url),
        reader,
        **version.arguments(),
        shuffle=not order.no_shuffle,
        order=OrderOptions(
            num_canonical_nodes=order.canonical_nodes,
            shuffle_block_size=order.shuffle_block_size,
            affinity=order.affinity,
        ),
    )
    cost = None if rates is None else run_cost(found, reader, rates, epochs=costs.epochs)
    if common.as_json:
        write_json(found.to_dict() | ({} if cost is None else {"cost": cost.to_dict()}))
        return
    _write_forecast(found, reader)
    if cost is not None:
        _write_cost(cost)


def _write_forecast(found: "Forecast", reader: "ReaderSetup") -> None:
    most = max(found.hosts, key=lambda host: host.cold_bytes)
    held = max(host.window_bytes for host in found.hosts)
    write(f"set      {found.samples:,} samples in {found.shards:,} shards, {byte_count(found.stored_bytes)}")
    write(
        f"epoch    {found.steps:,} steps of {found.global_batch:,} samples, {found.repeats:,} repeats in the last one"
    )
    write(f"host     reads {most.shards:,} shards, {byte_count(most.cold_bytes)} in the first epoch")
    whole = byte_count(most.cache_bytes)
    write(
        f"cache    {byte_count(held)} for the shards that are mixed at once and those that\n"
        f"         come next, {whole} to fetch nothing again"
    )
    write(
        f"traffic  {byte_count(found.cold_bytes)} over all hosts in the first epoch, "
        f"{byte_count(found.warm_bytes)} in later ones"
    )
    room, in_use = reader.cache_bytes, max(host.in_use_bytes for host in found.hosts)
    if room is not None and room < in_use:
        write(
            f"         a cache of {byte_count(room)} is too small for what is mixed, {byte_count(in_use)}:\n"
            "         shards are fetched several times. Give more, or a smaller\n         --shuffle-block-size."
        )
    elif room is not None and room < held:
        write(
            f"         a cache of {byte_count(room)} holds what is mixed, and not what comes next:\n"
            "         readers wait for that."
        )
    write(
        f"memory   {byte_count(found.plan_bytes)} for the order, "
        f"{byte_count(found.batch_bytes)} for a rank's batches ahead"
    )
    write(
        f"mixing   {found.window_samples:,} samples at once; a window of a run mixes {found.window_shards:,.1f} shards"
    )


def _write_cost(cost: "RunCost") -> None:
    later = [("later", cost.later)] if cost.epochs > 1 else []
    for name, part in [("first", cost.first), *later]:
        bound = f", bound by {part.bound_by}" if part.bound_by else ""
        write(f"{name:<7}  epoch: at least {duration(part.seconds)}{bound}")
        if part.seconds_by:
            write(f"         {', '.join(f'{what} {duration(seconds)}' for what, seconds in part.seconds_by.items())}")
        write(
            f"         price {_money(part.price)}: machines {_money(part.machines_price)}, "
            f"traffic {_money(part.egress_price)}, {part.requests:,} requests {_money(part.requests_price)}"
        )
    if cost.epochs > 1:
        write(f"run      {cost.epochs:,} epochs: at least {duration(cost.seconds)}, price {_money(cost.price)}")


def _money(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.3g}"


@command("train", panel=TRAINING)
def train_model(
    config: Annotated[str, argument("CONFIG", "YAML file; its keys are the fields of TrainConfig.")],
    *,
    overrides: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "A value in place of the file's, such as epochs=3 or task_options.image_size=64; may be repeated.",
            "--set",
        ),
    ] = None,
    dry_run: Annotated[bool, flag("Print the resolved configuration, and train nothing.")] = False,
    common: CommonOptions,
) -> None:
    """Train a model as a configuration file says; a run that was stopped resumes from its newest checkpoint.

    The launcher in the configuration starts the processes. Modules that it names are also found beside the file.

    Examples:
        smalti train config.yaml
        smalti train config.yaml --set epochs=3 --set launcher=inline
        smalti train config.yaml --dry-run
    """
    import yaml

    from smalti.torch.train.config import TASKS
    from smalti.torch.train.config_file import read_config

    chosen = read_config(config, overrides or ())
    options = common.for_address(chosen.data)
    if options:
        chosen = read_config(config, overrides or (), storage_options=options)
    if dry_run:
        facts = chosen.to_json()
        if chosen.task in TASKS:
            facts["task_options"] = {**TASKS[chosen.task].option_defaults(), **facts["task_options"]}
        for name in ("storage_options", "run_storage_options"):
            # Their names without the values, which may be secret.
            facts[name] = None if facts[name] is None else dict.fromkeys(facts[name], MASK)
        show(common, facts, lambda: write(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True).rstrip("\n")))
        return
    from smalti.torch.train.threads import waiting_of_threads

    os.environ.update(waiting_of_threads(os.environ))  # the import of torch below reads them
    from smalti.torch.train import train

    sys.path.append(str(Path(config).resolve().parent))  # as Python itself does for a program
    result = train(chosen)
    figures = [(name, f"{value:.6g}") for name, value in sorted(result.metrics.items())]
    run = [
        ("steps", f"{result.steps:,} in {result.epochs:,} epochs, {duration(result.seconds)}"),
        ("model", result.model_dir),
        ("checkpoint", result.checkpoint),
    ]
    show(common, result.to_json(), lambda: write_facts([*figures, *run]))


group("ledger", "The ledger of a run: the samples that its ranks read.", panel=TRAINING)


@command("ledger check")
def check(
    folder: Annotated[str, argument("URL", "Folder or URL of the ledger, such as the folder `samples` of a run.")],
    *,
    data: Annotated[
        list[str] | None,
        option(
            "URL", "Shard set that the run read: compare sample ids with the plan; repeat for streams of a mixture."
        ),
    ] = None,
    common: CommonOptions,
) -> ExitCode:
    """Prove that each planned sample was read once, over all lives of the run.

    The exit status is 3 if it is not proven.

    Examples:
        smalti ledger check runs/7/ledger
        smalti ledger check s3://bucket/runs/7/samples
        smalti ledger check runs/7/ledger --data ./flowers --json
    """
    from smalti.ledger import check_ledger
    from smalti.storage.local_files import local_files

    with local_files(common.open(folder)) as files:
        report = check_ledger(files, _planner(data, common) if data else None)
    show(common, report, lambda: _write_report(report))
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


def _planner(urls: list[str], common: CommonOptions) -> "Callable[[Cursor], Plan]":
    """Return a function from a cursor to its order, using the versions of the shard sets with the cursor's digests."""
    from smalti.catalog import history
    from smalti.dataset import open_dataset
    from smalti.dataset.order import window_plan
    from smalti.errors import CursorError

    @lru_cache(maxsize=256)
    def shard_sizes(digest: str, split: str | None) -> "NDArray[np.int64]":
        found = []
        for url in urls:
            store = common.open(url)
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
