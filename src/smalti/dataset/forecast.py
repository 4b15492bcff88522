"""What an epoch will cost, told before a machine is rented: steps, padding, traffic, cache, memory. Pure arithmetic.

What a host must hold is the shards of the windows that it reads, and of the next ones. It is counted from the order's
own plan of an epoch, run by run, in O(shards); the epoch's last positions, less than one for each run, are not counted:
they may take a host to a shard of another's.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import Cursor
from smalti.order import Division, EpochPlan, plan_epoch
from smalti.world import World

_PLAN_BYTES = 56  # of one shard in a plan: measured, docs/order.md
_ID_BYTES = 8
_BATCHES_AHEAD = 2  # of each worker, as torch reads ahead
_BATCHES_KEPT = 4

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class HostForecast:
    """One host's part of an epoch."""

    host: int
    shards: int
    """Shards that it reads something of."""
    cold_bytes: int
    """Stored bytes that it fetches when it has none of them."""
    cache_bytes: int
    """Bytes of them unpacked: with so much room nothing is fetched twice."""
    window_bytes: int
    """Unpacked bytes of the shards of the windows that it reads and of the next ones: with so much room, those are
    fetched meanwhile."""
    warm_bytes: int
    """Stored bytes that it fetches in each later epoch with the cache it has; at least, if that is too small."""
    in_use_bytes: int = 0
    """Unpacked bytes of the shards of the windows that it reads; with less cache they are fetched more than once."""


@dataclass(frozen=True)
class Forecast:
    """What an epoch costs on one world."""

    samples: int
    shards: int
    stored_bytes: int
    steps: int
    """Equal on all ranks."""
    global_batch: int
    repeats: int
    """Samples over all ranks that fill the last step."""
    hosts: tuple[HostForecast, ...]
    plan_bytes: int
    """Memory of the order's plan, in each process that reads."""
    batch_bytes: int
    """Memory of the batches that a rank has ahead."""
    window_samples: int
    """Samples that are mixed at once, over all runs."""
    window_shards: float
    """Shards that one run's window mixes; with few of them, batches of a set that is sorted vary (docs/order.md)."""

    @property
    def cold_bytes(self) -> int:
        """Stored bytes that all hosts together fetch in a first epoch."""
        return sum(host.cold_bytes for host in self.hosts)

    @property
    def warm_bytes(self) -> int:
        """The same of each later one, at least."""
        return sum(host.warm_bytes for host in self.hosts)


@dataclass(frozen=True)
class Reader:
    """The world that will read."""

    hosts: int
    ranks_on_host: int
    batch_size: int
    """Samples per rank and step."""
    workers: int = 0
    """Loader workers of a rank."""
    cache_bytes: int | None = None
    """Room for shards on each host; None for as much as is needed."""
    tail: str = "pad"


@dataclass(frozen=True, eq=False)
class Shards:
    """What is known of the shards; each int64, shape (shards,)."""

    samples: Ints
    stored: Ints
    """Bytes in the store."""
    raw: Ints
    """Bytes here, unpacked."""


def forecast(cursor: Cursor, shards: Shards, reader: Reader) -> Forecast:
    """What the cursor's epoch costs. Pure; O(shards) for each canonical node.

    Args:
        cursor: the epoch, and what fixes its order; one stream, in the `window` order.
        shards: what is read.
        reader: who reads it.

    Raises:
        ValueError: the cursor is of a mixture, or of another order.
    """
    if cursor.mixture is not None or cursor.algorithm != "window":
        raise ValueError("a forecast is made for one stream in the `window` order.")
    plan = plan_epoch(
        shards.samples,
        seed=cursor.seed,
        epoch=cursor.epoch,
        canonical_nodes=cursor.canonical_nodes,
        shuffle_block_size=cursor.block_size,
        shuffle=cursor.shuffle,
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
        hosts=tuple(_host(host, plan, shards, reader) for host in range(reader.hosts)),
        plan_bytes=_PLAN_BYTES * count + 2 * _ID_BYTES * mixed,
        batch_bytes=ahead * reader.batch_size * (int(shards.raw.sum()) // max(1, samples)),
        window_samples=mixed,
        window_shards=block * count / max(1, samples) if cursor.shuffle else 0.0,
    )


def bytes_in_use(plan: EpochPlan, samples: Ints, raw: Ints, host: int, num_hosts: int) -> int:
    """Unpacked bytes of the shards of the windows that a host reads at once, the most in an epoch."""
    _, rows = _read_by(plan, Shards(samples, raw, raw), host, num_hosts)
    return rows.most_held(ahead=0)


def _read_by(plan: EpochPlan, shards: Shards, host: int, num_hosts: int) -> "tuple[NDArray[np.bool_], _Rows]":
    """Which shards a host reads something of, and in which rows of windows."""
    ends, count = np.cumsum(shards.samples), shards.samples.size
    read, rows = np.zeros(count, dtype=bool), _Rows()
    if not plan.shuffle:  # stored order: every host reads of every shard, one after the other
        read[:] = shards.samples > 0
        rows.add(np.arange(count), np.arange(count), shards.raw)
    for run in plan.runs_of_host(host, num_hosts) if plan.shuffle else ():
        firsts, piece_ends = plan.pieces(run)
        held = np.searchsorted(ends, firsts, side="right")
        read[held] = True
        begins = np.concatenate(([0], piece_ends[:-1]))
        rows.add(begins // plan.block_size, (piece_ends - 1) // plan.block_size, shards.raw[held])
    return read, rows


def _host(host: int, plan: EpochPlan, shards: Shards, reader: Reader) -> HostForecast:
    read, rows = _read_by(plan, shards, host, reader.hosts)
    cold, unpacked = int(shards.stored[read].sum()), int(shards.raw[read].sum())
    window, in_use = (min(unpacked, rows.most_held(ahead=ahead)) for ahead in (1, 0))
    room = unpacked if reader.cache_bytes is None else reader.cache_bytes
    # Whatever is there at an epoch's end is needed in the next one, and sooner than what that one leaves behind.
    stays = 0.0 if room < in_use else min(1.0, room / max(1, unpacked))
    return HostForecast(host, int(read.sum()), cold, unpacked, window, round(cold * (1 - stays)), in_use)


class _Rows:
    """Bytes that are held while the runs go through their windows, side by side."""

    def __init__(self) -> None:
        self._begins: list[Ints] = []
        self._ends: list[Ints] = []
        self._weights: list[Ints] = []

    def add(self, first: Ints, last: Ints, weights: Ints) -> None:
        """Shards that are needed from one row to another."""
        self._begins.append(first)
        self._ends.append(last + 1)
        self._weights.append(weights)

    def most_held(self, *, ahead: int) -> int:
        """The most bytes at any row, with those of so many rows after it."""
        if not self._begins:
            return 0
        begins, ends, weights = map(np.concatenate, (self._begins, self._ends, self._weights))
        if not ends.size:
            return 0
        changes = np.zeros(int(ends.max()) + 1, dtype=np.int64)
        np.add.at(changes, np.maximum(begins - ahead, 0), weights)
        np.subtract.at(changes, ends, weights)
        return int(np.cumsum(changes).max())
