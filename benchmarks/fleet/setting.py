"""What is simulated: a shard set, a fleet, a store; and what comes out of it. Plain values."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """A set of shards of one size."""

    name: str
    samples: int
    sample_bytes: int
    shard_samples: int

    @property
    def shard_bytes(self) -> int:
        """Bytes of each shard."""
        return self.sample_bytes * self.shard_samples

    @property
    def shard_sizes(self) -> Ints:
        """Samples of each shard; the last one may have fewer."""
        sizes = np.full(-(-self.samples // self.shard_samples), self.shard_samples, np.int64)
        sizes[-1] = self.samples - int(sizes[:-1].sum())
        return sizes

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole set."""
        return self.samples * self.sample_bytes


@dataclass(frozen=True)
class Fleet:
    """The hosts that read, all alike, and how fast they train."""

    hosts: int
    ranks: int = 8
    """Ranks on each host."""
    batch_size: int = 256
    """Samples per rank and step."""
    workers: int = 4
    """Loader workers of each rank."""
    batches_ahead: int = 8
    """Batches of each rank that are read before they are trained on: two for each worker."""
    samples_per_s: float = 1000.0
    """Samples that one rank trains on in a second."""
    cache_bytes: int | None = None
    """Cache of each host; None for no limit."""
    predownload: int | None = None
    """Samples that each rank looks ahead for each of its workers; None for the dataset's default."""

    @property
    def host_batch(self) -> int:
        """Samples that a host takes in one step."""
        return self.ranks * self.batch_size

    @property
    def step_s(self) -> float:
        """Seconds that a step computes."""
        return self.batch_size / self.samples_per_s


@dataclass(frozen=True)
class Store:
    """A store, the way to it, and its prices; the defaults resemble an object store in the region of the hosts."""

    latency_s: float = 0.03
    """Median time from a request to its first byte."""
    latency_spread: float = 0.5
    """Standard deviation of the logarithm of that time; 0 for none."""
    host_bytes_per_s: float = 3.125e9
    """Of one host's link: 25 Gbit/s."""
    total_bytes_per_s: float = 125e9
    """Of the store to all hosts together: 1 Tbit/s."""
    connection_bytes_per_s: float = 90e6
    """Of one transfer."""
    requests_per_s: float = 5500.0
    """Of one prefix."""
    prefixes: int = 1
    """Prefixes that the shards are spread over."""
    per_thousand_requests: float = 0.0004
    """Price."""
    per_gb: float = 0.02
    """Price of 10**9 bytes, between regions; 0 within one, 0.09 to the internet."""


@dataclass(frozen=True)
class Order:
    """The order that an epoch is read in, with its options."""

    name: str
    canonical_nodes: int | None = None
    """None for the default of the order."""
    block_size: int | None = None
    """None for the default of the order."""
    affinity: float = 1.0
    """Part of its shards that a run keeps from epoch to epoch; of the order `window` alone."""
    seed: int = 9176

    @property
    def is_mosaic(self) -> bool:
        """True for MosaicML's order `py1e`."""
        return self.name == "mosaicml"


@dataclass(frozen=True)
class EpochFigures:
    """One epoch of a fleet."""

    bytes_per_host: float
    amplification: float
    """Bytes that all hosts fetch, as a multiple of the set."""
    fetches: int
    """Of all hosts; one request each."""
    first_batch_s: float
    """From the start of the epoch to the first batch; in the first epoch, opening and planning included."""
    seconds: float
    stall_s: float
    """Seconds in which training waits for data after its first batch."""
    stalls: int
    """Steps that wait for more than a hundredth of their own time."""
    late: int
    """Fetches of all hosts that found no space ahead of their turn, and that a reader waits for."""
    price: float
    """Of requests and bytes."""

    @property
    def stall_share(self) -> float:
        """Share of the epoch in which training waits, the first batch included."""
        return (self.stall_s + self.first_batch_s) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Outcome:
    """A simulated run: its setting and its epochs."""

    data: DataSet
    fleet: Fleet
    store: Store
    order: Order
    simulated_hosts: int
    """Hosts that were simulated one by one; the others are taken to be like these."""
    canonical_nodes: int
    block_size: int
    opening_s: float
    planning_s: float
    first_batch_by_blocks_s: float
    """The first batch of the run where only the needed blocks of its shards are fetched, if that takes less."""
    in_use_bytes: int
    """Bytes of the shards that a host reads from at once, at most."""
    share_bytes: int
    """Bytes of all shards that a host reads from in an epoch."""
    epochs: tuple[EpochFigures, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as JSON holds them."""
        found = asdict(self)
        for epoch, each in zip(found["epochs"], self.epochs, strict=True):
            epoch["stall_share"] = each.stall_share
            epoch.update({name: _rounded(value) for name, value in epoch.items()})
        return found


def _rounded(value: Any) -> Any:
    """Return a figure with six digits."""
    if isinstance(value, float) and math.isfinite(value) and value:
        return round(value, 5 - math.floor(math.log10(abs(value))))
    return value
