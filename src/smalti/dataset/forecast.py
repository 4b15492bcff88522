"""The cost of an epoch and of a run before machines are rented: steps, padding, traffic, cache, memory, seconds, price.

`forecast_epoch` reads a version's manifest; the rest is pure arithmetic. A host has to hold the shards of the windows
that it reads, and of the next ones. They are counted from the order's own plan of an epoch, run by run, in O(shards).
The epoch's last positions, fewer than one for each run, are not counted: they may need a shard of another host's runs.
"""

import math
import re
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from smalti.catalog.table.shard_table import ShardBytes
from smalti.cursor import Cursor
from smalti.dataset.lookahead import most_held, rows_of_host
from smalti.dataset.order import window_plan
from smalti.dataset.streaming import open_dataset
from smalti.errors import ArgumentError, SchemaError
from smalti.format.sizes import parse_byte_count
from smalti.order import Division, EpochPlan
from smalti.storage import Place, open_store
from smalti.world import World

_PLAN_BYTES = 56  # per shard in a plan; measured, see docs/order.md
_ID_BYTES = 8
_BATCHES_AHEAD = 2  # per worker; torch's default prefetch factor
_BATCHES_KEPT = 4
_BITS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bits?|bps)(?:/s)?\s*", re.ASCII | re.IGNORECASE)
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BYTES_IN_GB = 1e9  # as clouds price traffic

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HostForecast:
    """One host's part of an epoch."""

    host: int
    shards: int
    """Shards that it reads at least one sample of."""
    cold_bytes: int
    """Stored bytes that it fetches with an empty cache."""
    cache_bytes: int
    """Unpacked bytes of its shards: with a cache of this size nothing is fetched twice."""
    window_bytes: int
    """Unpacked bytes of the shards of the windows that it reads and of the next ones: with a cache of this size, the
    next windows are fetched while these are read."""
    warm_bytes: int
    """Stored bytes that it fetches in each later epoch with its cache, on average; a lower bound if the cache is too
    small."""
    in_use_bytes: int = 0
    """Unpacked bytes of the shards of the windows that it reads; with a smaller cache they are fetched repeatedly."""


@dataclass(frozen=True)
class Forecast:
    """The cost of an epoch on one world."""

    samples: int
    shards: int
    stored_bytes: int
    steps: int
    """Steps of each rank; equal on all ranks."""
    global_batch: int
    repeats: int
    """Samples over all ranks that fill the last step."""
    hosts: tuple[HostForecast, ...]
    plan_bytes: int
    """Memory of the order's plan in each reading process."""
    batch_bytes: int
    """Memory of the batches that a rank prefetches."""
    window_samples: int
    """Samples that are mixed at once, over all runs."""
    window_shards: float
    """Shards that one run's window mixes; with few, batches of a sorted set vary in composition (docs/order.md)."""

    @property
    def cold_bytes(self) -> int:
        """Stored bytes that all hosts together fetch in the first epoch."""
        return sum(host.cold_bytes for host in self.hosts)

    @property
    def warm_bytes(self) -> int:
        """Stored bytes that all hosts together fetch in each later epoch; a lower bound if their cache is too small."""
        return sum(host.warm_bytes for host in self.hosts)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON holds them."""
        return asdict(self) | {"cold_bytes": self.cold_bytes, "warm_bytes": self.warm_bytes}


@dataclass(frozen=True)
class ReaderSetup:
    """The hosts, ranks and workers that will read, and their cache."""

    hosts: int
    ranks_on_host: int
    batch_size: int
    """Samples per rank and step."""
    workers: int = 0
    """Loader workers of a rank."""
    cache_bytes: int | None = None
    """Cache for shards on each host; None for as much as needed."""
    tail: str = "pad"


def forecast(cursor: Cursor, sizes: Ints, num_bytes: ShardBytes, reader: ReaderSetup) -> Forecast:
    """Return the cost of the cursor's epoch. Pure; O(shards) for each canonical node.

    `sizes` are the samples of every shard, `num_bytes` its bytes.

    Raises:
        ValueError: the cursor is of a mixture, or of another order.
    """
    if cursor.mixture is not None:
        raise ArgumentError("a forecast is made for one stream, without weights and `epoch_size`.")
    plan = cast("EpochPlan", window_plan(cursor, [sizes]))
    world = World.of_blocks(0, reader.hosts * reader.ranks_on_host, reader.hosts)
    division = Division(cursor.epoch_size, 0, reader.batch_size, world, reader.tail)
    samples, count = int(sizes.sum()), int(sizes.size)
    mixed = min(samples, cursor.block_size * cursor.canonical_nodes) if cursor.shuffle else 1
    block = min(cursor.block_size, max(1, samples // cursor.canonical_nodes))
    ahead = _BATCHES_KEPT + _BATCHES_AHEAD * max(1, reader.workers)
    return Forecast(
        samples=samples,
        shards=count,
        stored_bytes=int(num_bytes.stored.sum()),
        steps=division.num_steps,
        global_batch=division.global_batch,
        repeats=division.num_repeats,
        hosts=tuple(_host(host, plan, sizes, num_bytes, reader, cursor) for host in range(reader.hosts)),
        plan_bytes=_PLAN_BYTES * count + 2 * _ID_BYTES * mixed,
        batch_bytes=ahead * reader.batch_size * (int(num_bytes.raw.sum()) // max(1, samples)),
        window_samples=mixed,
        window_shards=block * count / max(1, samples) if cursor.shuffle else 0.0,
    )


def _host(
    host: int, plan: EpochPlan, sizes: Ints, num_bytes: ShardBytes, reader: ReaderSetup, cursor: Cursor
) -> HostForecast:
    needed, begins, ends = rows_of_host(plan, sizes, host, reader.hosts)
    read = np.unique(needed)
    cold, unpacked = int(num_bytes.stored[read].sum()), int(num_bytes.raw[read].sum())
    held_bytes = (most_held(num_bytes.raw[needed], begins, ends, ahead=ahead) for ahead in (1, 0))
    window, in_use = (min(unpacked, most) for most in held_bytes)
    room = unpacked if reader.cache_bytes is None else reader.cache_bytes
    # The cache keeps the shards that are needed next, so its contents at an epoch's end are all used in the next one.
    held = 0.0 if room < in_use else min(1.0, room / max(1, unpacked))
    # The part of its shards that it reads in the next epoch too, on average. Those that leave their run are dealt to
    # all runs, and so some of them to the host's.
    again = 1.0
    if cursor.shuffle:
        share_of_runs = len(plan.runs_of_host(host, reader.hosts)) / cursor.canonical_nodes
        again = cursor.affinity + (1 - cursor.affinity) * share_of_runs
    kept = min(held, again)
    return HostForecast(host, read.size, cold, unpacked, window, round(cold * (1 - kept)), in_use)


@dataclass(frozen=True)
class Rates:
    """The speed of the link, the machine and the store, and their prices; None is "not known", and not counted."""

    link: float | None = None
    """Bytes per second that one host receives."""
    store: float | None = None
    """Bytes per second that the store sends to all hosts together, such as a file server's."""
    read: float | None = None
    """Samples per second that one rank reads and decodes from its cache."""
    step: float | None = None
    """Seconds that a step computes."""
    host_hour: float = 0.0
    """Price of one host for an hour."""
    egress_gb: float = 0.0
    """Price of 10^9 bytes that leave the store."""
    thousand_gets: float = 0.0
    """Price of 1000 requests for shards."""

    def __post_init__(self) -> None:
        for name in ("link", "store", "read"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ArgumentError(f"`{name}`: expected a rate above 0, found {value!r}")
        for name in ("step", "host_hour", "egress_gb", "thousand_gets"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ArgumentError(f"`{name}`: expected 0 or more, found {value!r}")


@dataclass(frozen=True)
class EpochCost:
    """Seconds and price of one epoch."""

    seconds: float
    """The largest of the times below: fetching, reading and computing overlap."""
    bound_by: str
    """The slowest part: link, store, read or compute; empty if no rate is known."""
    seconds_by: dict[str, float]
    """The time of each whose rate is known."""
    num_bytes: int
    """Stored bytes that all hosts together fetch."""
    requests: int
    """Requests for shards, of all hosts; one for each shard."""
    machines_price: float
    egress_price: float
    requests_price: float

    @property
    def price(self) -> float:
        """Price of the epoch."""
        return self.machines_price + self.egress_price + self.requests_price


@dataclass(frozen=True)
class RunCost:
    """Seconds and price of a run: a first epoch with an empty cache, and later ones."""

    epochs: int
    first: EpochCost
    later: EpochCost

    @property
    def seconds(self) -> float:
        """Seconds of all epochs."""
        return self.first.seconds + (self.epochs - 1) * self.later.seconds

    @property
    def price(self) -> float:
        """Price of all epochs."""
        return self.first.price + (self.epochs - 1) * self.later.price

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON holds them."""
        parts = {
            name: asdict(part) | {"price": part.price} for name, part in (("first", self.first), ("later", self.later))
        }
        return {"epochs": self.epochs, "seconds": self.seconds, "price": self.price} | parts


def forecast_epoch(
    place: Place,
    reader: ReaderSetup,
    *,
    version: int | None = None,
    tag: str | None = None,
    split: str | None = None,
    **options: Any,
) -> Forecast:
    """Return the cost of an epoch over a version, the newest by default. Reads its manifest and no shard.

    Args:
        place: The shard set.
        reader: The hosts, ranks and workers that will read.
        version: A version.
        tag: A tag in place of a version.
        split: The split to read; None for all.
        **options: other arguments of `StreamingDataset` that determine the order: `shuffle` and `order`.

    Raises:
        SmaltiError: the version or split cannot be opened.

    Examples:
        >>> forecast = forecast_epoch("s3://bucket/users", ReaderSetup(hosts=2, ranks_on_host=1, batch_size=4))
        >>> len(forecast.hosts)
        2
    """
    world = World.of_blocks(0, reader.hosts * reader.ranks_on_host, reader.hosts)
    with closing(
        open_dataset(open_store(place), version=version, tag=tag, split=split, world=world, **options)
    ) as dataset:
        (shards,) = dataset.stream.sets
        return forecast(dataset.cursor(), shards.shard_sizes, shards.num_bytes_each, reader)


def run_cost(found: Forecast, reader: ReaderSetup, rates: Rates, *, epochs: int = 1) -> RunCost:
    """Return the seconds and the price of a run. Pure.

    A lower bound: fetching, reading and computing are taken to overlap completely, and every host to run as long as the
    slowest one.

    Args:
        found: Result of `forecast_epoch`.
        reader: The hosts, ranks and workers of the forecast.
        rates: Speeds and prices.
        epochs: Epochs of the run, of which only the first one has an empty cache.

    Examples:
        >>> reader = ReaderSetup(hosts=2, ranks_on_host=1, batch_size=4)
        >>> cost = run_cost(forecast_epoch("s3://bucket/users", reader), reader, Rates(), epochs=10)
        >>> cost.epochs
        10
    """
    if epochs < 1:
        raise ArgumentError(f"`epochs`: expected 1 or more, found {epochs}")
    first = _epoch_cost(found, reader, rates, [host.cold_bytes for host in found.hosts])
    return RunCost(epochs, first, _epoch_cost(found, reader, rates, [host.warm_bytes for host in found.hosts]))


def parse_rate(text: str, *, what: str) -> float:
    """Return the bytes per second of a link: `"10Gbit"` (units of 1000), or `"500MB"` (bytes, units of 1024).

    Raises:
        SchemaError: it is neither, or zero.
    """
    bits = _BITS.fullmatch(text)
    if bits is not None:
        rate = float(bits[1]) * _DECIMAL[bits[2].lower()] / 8
    else:
        try:
            rate = float(parse_byte_count(text.strip().removesuffix("/s"), what=what))
        except SchemaError:
            rate = 0.0
    if not rate:
        raise SchemaError(f"{what}: expected a rate such as 10Gbit or 500MB (bytes a second), found {text!r}")
    return rate


def _epoch_cost(found: Forecast, reader: ReaderSetup, rates: Rates, fetched: list[int]) -> EpochCost:
    times: dict[str, float | None] = {
        "link": max(fetched) / rates.link if rates.link else None,
        "store": sum(fetched) / rates.store if rates.store else None,
        "read": found.steps * reader.batch_size / rates.read if rates.read else None,
        "compute": None if rates.step is None else found.steps * rates.step,
    }
    known = {name: value for name, value in times.items() if value is not None}
    bound = max(known, key=lambda name: known[name], default="")
    seconds = known.get(bound, 0.0)
    requests = sum(
        math.ceil(host.shards * num_bytes / host.cold_bytes)
        for host, num_bytes in zip(found.hosts, fetched, strict=True)
        if host.cold_bytes
    )
    return EpochCost(
        seconds=seconds,
        bound_by=bound,
        seconds_by=known,
        num_bytes=sum(fetched),
        requests=requests,
        machines_price=reader.hosts * seconds / 3600 * rates.host_hour,
        egress_price=sum(fetched) / _BYTES_IN_GB * rates.egress_gb,
        requests_price=requests / 1000 * rates.thousand_gets,
    )
