"""Forecast of an epoch's cost before it is run: steps, padding, traffic, cache, memory. Pure arithmetic.

Seconds and prices are in `cost`.

A host has to hold the shards of the windows that it reads, and of the next ones. They are counted from the order's own
plan of an epoch, run by run, in O(shards). The epoch's last positions, fewer than one for each run, are not counted:
they may need a shard of another host's runs.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import Cursor
from smalti.errors import ArgumentError
from smalti.order import Division, EpochPlan, plan_epoch
from smalti.world import World

_PLAN_BYTES = 56  # per shard in a plan; measured, see docs/order.md
_ID_BYTES = 8
_BATCHES_AHEAD = 2  # per worker; torch's default prefetch factor
_BATCHES_KEPT = 4

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


@dataclass(frozen=True, eq=False)
class ShardSizes:
    """Sizes of the shards; each int64, shape (shards,)."""

    samples: Ints
    stored: Ints
    """Bytes in the store."""
    raw: Ints
    """Unpacked bytes."""


def forecast(cursor: Cursor, shards: ShardSizes, reader: ReaderSetup) -> Forecast:
    """Return the cost of the cursor's epoch. Pure; O(shards) for each canonical node.

    Raises:
        ValueError: the cursor is of a mixture, or of another order.
    """
    if cursor.mixture is not None:
        raise ArgumentError("a forecast is made for one stream, without weights and `epoch_size`.")
    plan = plan_epoch(
        shards.samples,
        seed=cursor.seed,
        epoch=cursor.epoch,
        canonical_nodes=cursor.canonical_nodes,
        shuffle_block_size=cursor.block_size,
        shuffle=cursor.shuffle,
        affinity=cursor.affinity,
    )
    world = World.of_blocks(0, reader.hosts * reader.ranks_on_host, reader.hosts)
    division = Division(cursor.epoch_size, 0, reader.batch_size, world, reader.tail)
    samples, count = int(shards.samples.sum()), int(shards.samples.size)
    mixed = min(samples, cursor.block_size * cursor.canonical_nodes) if cursor.shuffle else 1
    block = min(cursor.block_size, max(1, samples // cursor.canonical_nodes))
    ahead = _BATCHES_KEPT + _BATCHES_AHEAD * max(1, reader.workers)
    return Forecast(
        samples=samples,
        shards=count,
        stored_bytes=int(shards.stored.sum()),
        steps=division.num_steps,
        global_batch=division.global_batch,
        repeats=division.num_repeats,
        hosts=tuple(_host(host, plan, shards, reader, cursor) for host in range(reader.hosts)),
        plan_bytes=_PLAN_BYTES * count + 2 * _ID_BYTES * mixed,
        batch_bytes=ahead * reader.batch_size * (int(shards.raw.sum()) // max(1, samples)),
        window_samples=mixed,
        window_shards=block * count / max(1, samples) if cursor.shuffle else 0.0,
    )


def bytes_in_use(plan: EpochPlan, samples: Ints, raw: Ints, host: int, num_hosts: int) -> int:
    """Return the most unpacked bytes, at any time in an epoch, of the shards of the windows that a host reads."""
    _, rows = _shards_of_host(plan, ShardSizes(samples, raw, raw), host, num_hosts)
    return rows.most_held(ahead=0)


def _shards_of_host(
    plan: EpochPlan, shards: ShardSizes, host: int, num_hosts: int
) -> "tuple[NDArray[np.bool_], _WindowRows]":
    """Return which shards a host reads (bool, shape (shards,)), and in which rows of windows it needs them."""
    ends, count = np.cumsum(shards.samples), shards.samples.size
    read, rows = np.zeros(count, dtype=bool), _WindowRows()
    if not plan.shuffle:  # stored order: every host reads some of every shard, one after the other
        read[:] = shards.samples > 0
        rows.add(np.arange(count), np.arange(count), shards.raw)
    for run in plan.runs_of_host(host, num_hosts) if plan.shuffle else ():
        first_ids, piece_ends = plan.pieces(run)
        shards_of_run = np.searchsorted(ends, first_ids, side="right")
        read[shards_of_run] = True
        begins = np.concatenate(([0], piece_ends[:-1]))
        rows.add(begins // plan.block_size, (piece_ends - 1) // plan.block_size, shards.raw[shards_of_run])
    return read, rows


def _host(host: int, plan: EpochPlan, shards: ShardSizes, reader: ReaderSetup, cursor: Cursor) -> HostForecast:
    read, rows = _shards_of_host(plan, shards, host, reader.hosts)
    cold, unpacked = int(shards.stored[read].sum()), int(shards.raw[read].sum())
    window, in_use = (min(unpacked, rows.most_held(ahead=ahead)) for ahead in (1, 0))
    room = unpacked if reader.cache_bytes is None else reader.cache_bytes
    # The cache keeps the shards that are needed next, so its contents at an epoch's end are all used in the next one.
    held = 0.0 if room < in_use else min(1.0, room / max(1, unpacked))
    kept = min(held, _part_read_again(plan, cursor, host, reader.hosts))
    return HostForecast(host, int(read.sum()), cold, unpacked, window, round(cold * (1 - kept)), in_use)


def _part_read_again(plan: EpochPlan, cursor: Cursor, host: int, num_hosts: int) -> float:
    """Return the part of its shards that a host reads in the next epoch too, on average.

    Those that leave their run are dealt to all runs, and so some of them to the host's.
    """
    if not cursor.shuffle:
        return 1.0
    share_of_runs = len(plan.runs_of_host(host, num_hosts)) / cursor.canonical_nodes
    return cursor.affinity + (1 - cursor.affinity) * share_of_runs


class _WindowRows:
    """Bytes of shards by row of windows: row n is the n-th window of every run, which are read at the same time."""

    def __init__(self) -> None:
        self._begins: list[Ints] = []
        self._ends: list[Ints] = []
        self._weights: list[Ints] = []

    def add(self, first: Ints, last: Ints, weights: Ints) -> None:
        """Add shards that are needed from row `first` to row `last`, with their bytes; each int64, shape (n,)."""
        self._begins.append(first)
        self._ends.append(last + 1)
        self._weights.append(weights)

    def most_held(self, *, ahead: int) -> int:
        """Return the most bytes held at any row, together with the shards of the `ahead` rows after it."""
        if not self._begins:
            return 0
        begins, ends, weights = map(np.concatenate, (self._begins, self._ends, self._weights))
        if not ends.size:
            return 0
        changes = np.zeros(int(ends.max()) + 1, dtype=np.int64)
        np.add.at(changes, np.maximum(begins - ahead, 0), weights)
        np.subtract.at(changes, ends, weights)
        return int(np.cumsum(changes).max())
