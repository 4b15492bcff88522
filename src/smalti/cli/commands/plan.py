"""`smalti plan URL`: the cost of an epoch, computed before machines are rented."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from smalti.cli.faults import UsageFault
from smalti.cli.options import Output, Split, StoreOptions, Url, VersionChoice
from smalti.cli.output import byte_count, duration, write, write_json
from smalti.cli.registration import TRAINING, command

if TYPE_CHECKING:
    from smalti.dataset.cost import EpochCost, Rates, RunCost
    from smalti.dataset.forecast import Forecast, ReaderSetup

_WORLD = re.compile(r"(\d+)x(\d+)", re.ASCII)
_ORDER = "Order"
_COST = "Seconds and price"


@dataclass(frozen=True)
class Readers:
    """The hosts and ranks that will read."""

    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Samples per rank and step.")]
    world: Annotated[str, typer.Option("--world", metavar="HxR", help="Hosts, and ranks of each, such as 2x8.")] = "1x1"
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=0, help="Loader workers of a rank.")] = 0
    cache: Annotated[
        str | None,
        typer.Option("--cache", metavar="BYTES", help="Cache on each host, such as 50GB (default: enough)."),
    ] = None
    tail: Annotated[Literal["pad", "short", "drop"], typer.Option("--tail", help="How the last step is filled.")] = (
        "pad"
    )

    def setup(self) -> "ReaderSetup":
        """Return them as the library takes them."""
        from smalti.dataset.forecast import ReaderSetup

        match = _WORLD.fullmatch(self.world)
        if match is None or not int(match[1]) or not int(match[2]):
            raise UsageFault(f"--world: expected hosts x ranks of each, such as 2x8, found {self.world!r}")
        cache = None if self.cache is None else _bytes(self.cache)
        return ReaderSetup(int(match[1]), int(match[2]), self.batch, self.workers, cache, self.tail)


@dataclass(frozen=True)
class OrderChoice:
    """The order in which samples are read."""

    canonical_nodes: Annotated[
        int | None,
        typer.Option("--canonical-nodes", metavar="N", min=1, rich_help_panel=_ORDER, help="As for StreamingDataset."),
    ] = None
    shuffle_block_size: Annotated[
        int | None,
        typer.Option(
            "--shuffle-block-size", metavar="N", min=1, rich_help_panel=_ORDER, help="As for StreamingDataset."
        ),
    ] = None
    affinity: Annotated[
        float | None,
        typer.Option(
            "--affinity",
            metavar="PART",
            min=0.0,
            max=1.0,
            rich_help_panel=_ORDER,
            help="Part of its shards that a host reads again in the next epoch (default: 1, all).",
        ),
    ] = None
    no_shuffle: Annotated[
        bool, typer.Option("--no-shuffle", rich_help_panel=_ORDER, help="Read in the stored order.")
    ] = False


@dataclass(frozen=True)
class CostOptions:
    """Speeds and prices; with none of them no seconds are computed."""

    link: Annotated[
        str | None,
        typer.Option(
            "--link", metavar="RATE", rich_help_panel=_COST, help="Link of each host: 10Gbit, or 500MB a second."
        ),
    ] = None
    store_rate: Annotated[
        str | None,
        typer.Option(
            "--store-rate", metavar="RATE", rich_help_panel=_COST, help="The store to all hosts together: 40Gbit."
        ),
    ] = None
    read_rate: Annotated[
        float | None,
        typer.Option(
            "--read-rate",
            metavar="N",
            rich_help_panel=_COST,
            help="Samples that a rank reads and decodes in a second; `smalti benchmark` measures them.",
        ),
    ] = None
    compute_seconds_per_step: Annotated[
        float | None,
        typer.Option(
            "--compute-seconds-per-step", metavar="S", rich_help_panel=_COST, help="The model's seconds for a step."
        ),
    ] = None
    price_per_hour: Annotated[
        float,
        typer.Option(
            "--price-per-hour",
            metavar="P",
            rich_help_panel=_COST,
            help="Price of a host for an hour.",
            show_default=False,
        ),
    ] = 0.0
    price_per_gb: Annotated[
        float,
        typer.Option(
            "--price-per-gb",
            metavar="P",
            rich_help_panel=_COST,
            help="Price of 10^9 bytes out of the store.",
            show_default=False,
        ),
    ] = 0.0
    price_per_1000_gets: Annotated[
        float,
        typer.Option(
            "--price-per-1000-gets",
            metavar="P",
            rich_help_panel=_COST,
            help="Price of 1000 requests.",
            show_default=False,
        ),
    ] = 0.0
    epochs: Annotated[
        int, typer.Option("--epochs", metavar="N", min=1, rich_help_panel=_COST, help="Epochs of the run.")
    ] = 1

    def rates(self) -> "Rates | None":
        """Return the rates as the library takes them; None if none is given."""
        from smalti.dataset.cost import Rates

        try:
            rates = Rates(
                link=_rate("--link", self.link),
                store=_rate("--store-rate", self.store_rate),
                read=self.read_rate,
                step=self.compute_seconds_per_step,
                host_hour=self.price_per_hour,
                egress_gb=self.price_per_gb,
                thousand_gets=self.price_per_1000_gets,
            )
        except ValueError as fault:
            raise UsageFault(f"speeds and prices: {fault}") from None
        return None if rates == Rates() else rates


@command(
    "plan",
    panel=TRAINING,
    examples=[
        "smalti plan ./flowers --batch 32 --world 2x8",
        "smalti plan ./flowers --batch 32 --link 10Gbit --price-per-hour 4",
    ],
)
def plan(
    url: Url,
    version: VersionChoice,
    split: Split = None,
    *,
    readers: Readers,
    order: OrderChoice,
    costs: CostOptions,
    stores: StoreOptions,
    output: Output,
) -> None:
    """Compute the cost of an epoch on a world: steps, padding, traffic, cache, memory, mixing, seconds, price."""
    from smalti.dataset import OrderOptions
    from smalti.dataset.cost import forecast_epoch, run_cost

    reader, rates = readers.setup(), costs.rates()
    found = forecast_epoch(
        stores.open(url),
        reader,
        version=version.at,
        tag=version.tag,
        split=split,
        shuffle=not order.no_shuffle,
        order=OrderOptions(
            num_canonical_nodes=order.canonical_nodes,
            shuffle_block_size=order.shuffle_block_size,
            affinity=order.affinity,
        ),
    )
    cost = None if rates is None else run_cost(found, reader, rates, epochs=costs.epochs)
    if output.as_json:
        write_json(found.to_dict() | ({} if cost is None else {"cost": cost.to_dict()}))
        return
    _write_forecast(found, reader)
    if cost is not None:
        for line in _cost_lines(cost):
            write(line)


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


def _cost_lines(cost: "RunCost") -> Iterator[str]:
    later = [("later", cost.later)] if cost.epochs > 1 else []
    for name, part in [("first", cost.first), *later]:
        bound = f", bound by {part.bound_by}" if part.bound_by else ""
        yield f"{name:<7}  epoch: at least {duration(part.seconds)}{bound}"
        if part.seconds_by:
            times = (f"{what} {duration(seconds)}" for what, seconds in part.seconds_by.items())
            yield f"         {', '.join(times)}"
        yield f"         {_prices(part)}"
    if cost.epochs > 1:
        yield f"run      {cost.epochs:,} epochs: at least {duration(cost.seconds)}, price {_money(cost.price)}"


def _prices(part: "EpochCost") -> str:
    return (
        f"price {_money(part.price)}: machines {_money(part.machines_price)}, traffic {_money(part.egress_price)}, "
        f"{part.requests:,} requests {_money(part.requests_price)}"
    )


def _money(price: float) -> str:
    return f"{price:,.2f}" if price >= 1 else f"{price:.3g}"


def _rate(option: str, text: str | None) -> float | None:
    from smalti.dataset.cost import parse_rate
    from smalti.errors import SchemaError

    try:
        return None if text is None else parse_rate(text, what=option)
    except SchemaError as fault:
        raise UsageFault(str(fault)) from None


def _bytes(text: str) -> int:
    from smalti.errors import SchemaError
    from smalti.format.sizes import parse_byte_count

    try:
        return parse_byte_count(text, what="--cache")
    except SchemaError:
        raise UsageFault(f"--cache: expected bytes, such as 50GB, found {text!r}") from None
