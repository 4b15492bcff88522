"""The cost of a run before machines are rented: `forecast_epoch` of a version, and its seconds and price (`run_cost`).

`forecast_epoch` reads a version's manifest; the rest is pure arithmetic.
"""

import math
import re
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from smalti.dataset.forecast import Forecast, ReaderSetup, ShardSizes, forecast
from smalti.dataset.streaming import open_dataset
from smalti.errors import ArgumentError, SchemaError
from smalti.format.sizes import parse_byte_count
from smalti.storage import Place, open_store
from smalti.world import World

_BITS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:bits?|bps)(?:/s)?\s*", re.ASCII | re.IGNORECASE)
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BYTES_IN_GB = 1e9  # as clouds price traffic


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
        sizes = dataset.stream.sets[0].num_bytes_each
        return forecast(dataset.cursor(), ShardSizes(dataset.stream.shard_sizes, sizes.stored, sizes.raw), reader)


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
