"""From an order to what one host needs: the shards of each stretch of steps that is planned together.

`PieceNeeds` works on shards: an order lays them out, and a window (or MosaicML's block) says over which stretch of the
host's samples each shard's samples are spread. The layout is the order's own; where within that stretch the host's
first sample of a shard stands is drawn at random, as no window is permuted. `SampleNeeds` looks up every sample by the
dataset's own code, which takes O(samples): the check of the other one.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.fleet.setting import DataSet, Fleet, Ints, Order
from smalti.compat.streaming.base.batching import MosaicReading
from smalti.compat.streaming.order.partition import WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun, default_mosaic_nodes
from smalti.compat.streaming.order.sampling import weigh_streams
from smalti.compat.streaming.order.shuffles import moved_by, spans_of_epoch
from smalti.cursor import Cursor
from smalti.dataset.lookahead import lookahead_spans, uses
from smalti.dataset.order import OrderOptions, Pass, Reading
from smalti.order import Division, EpochPlan, default_block_size, default_canonical_nodes, plan_epoch
from smalti.world import World

Floats = NDArray[np.float64]
_STRETCHES = 64  # that are expanded together


@dataclass(frozen=True)
class Stretch:
    """A stretch of steps that is planned together."""

    number: int
    """Counted over all epochs."""
    epoch: int
    first: int
    """First step, in its epoch."""
    stop: int
    shards: Ints
    """Shards that it needs, first needed first."""
    steps: Ints
    """The first step that needs each."""


@dataclass(frozen=True)
class Plan:
    """An order with its defaults filled in, for one set and fleet."""

    data: DataSet
    fleet: Fleet
    order: Order

    @cached_property
    def canonical_nodes(self) -> int:
        """Canonical nodes of the run."""
        if self.order.canonical_nodes is not None:
            return self.order.canonical_nodes
        if self.order.is_mosaic:
            return default_mosaic_nodes("py1e", self.fleet.hosts)
        return default_canonical_nodes(self.data.samples)

    @cached_property
    def block_size(self) -> int:
        """Samples of a canonical node that are mixed at once."""
        if self.order.block_size is not None:
            return self.order.block_size
        if self.order.is_mosaic:
            return MosaicOptions(self.canonical_nodes).shuffle_block
        return default_block_size(self.canonical_nodes)

    def window(self, epoch: int) -> EpochPlan:
        """Return an epoch in the order `window`."""
        order = self.order
        return plan_epoch(
            self.data.shard_sizes,
            seed=order.seed,
            epoch=epoch,
            canonical_nodes=self.canonical_nodes,
            shuffle_block_size=self.block_size,
            affinity=order.affinity,
        )

    def world(self, host: int) -> World:
        """Return the world as the first rank of a host sees it."""
        ranks = self.fleet.ranks
        return World.of_blocks(host * ranks, self.fleet.hosts * ranks, self.fleet.hosts)

    @cached_property
    def num_steps(self) -> int:
        """Steps of an epoch, equal for all ranks."""
        return Division(self.data.samples, 0, self.fleet.batch_size, self.world(0)).num_steps

    @cached_property
    def bounds(self) -> Ints:
        """First steps of the stretches of an epoch, and its end."""
        fleet = self.fleet
        shard_samples = float(self.data.shard_sizes.mean())
        first, later = lookahead_spans(fleet.batch_size, shard_samples, fleet.workers, fleet.predownload)
        return np.array([0, *range(first, self.num_steps, later), self.num_steps], np.int64)

    @property
    def num_stretches(self) -> int:
        """Stretches of an epoch."""
        return self.bounds.size - 1


class Needs(ABC):
    """The shards that one host needs, epoch by epoch."""

    def __init__(self, plan: Plan, host: int) -> None:
        self.plan, self.host = plan, host

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Stretch]:
        """Yield the stretches of an epoch."""

    def since(self, epoch: int) -> Iterator[Stretch]:
        """Yield the stretches of an epoch and of all after it, endlessly."""
        while True:
            yield from self.epoch(epoch)
            epoch += 1


@dataclass(frozen=True)
class Visits:
    """The host's times at shards: in `steps` [first, last] it reads from a shard; a shard may be visited twice."""

    shards: Ints
    first: Ints
    last: Ints


class PieceNeeds(Needs):
    """By shards: for any size of set."""

    def __init__(self, plan: Plan, host: int) -> None:
        super().__init__(plan, host)
        self._visits: dict[int, Visits] = {}

    def epoch(self, epoch: int) -> Iterator[Stretch]:
        """Yield the stretches of an epoch."""
        bounds, visits = self.plan.bounds, self.visits(epoch)
        begins = np.searchsorted(bounds, visits.first, side="right") - 1
        ends = np.searchsorted(bounds, visits.last, side="right") - 1
        before = epoch * self.plan.num_stretches
        for low in range(0, self.plan.num_stretches, _STRETCHES):
            high = min(low + _STRETCHES, self.plan.num_stretches)
            here = np.flatnonzero((begins < high) & (ends >= low))
            counts = np.minimum(ends[here], high - 1) - np.maximum(begins[here], low) + 1
            visit = np.repeat(here, counts)
            offset = np.arange(visit.size) - np.repeat(np.cumsum(counts) - counts, counts)
            stretch = np.maximum(begins[visit], low) + offset
            steps = np.maximum(visits.first[visit], bounds[stretch])
            order = np.lexsort((steps, stretch))
            cuts = np.searchsorted(stretch[order], np.arange(low, high + 1))
            for number, (start, stop) in zip(range(low, high), pairwise(cuts.tolist()), strict=True):
                at = order[start:stop]
                shards, first_steps = _first_of_each(visits.shards[visit[at]], steps[at])
                yield Stretch(before + number, epoch, int(bounds[number]), int(bounds[number + 1]), shards, first_steps)

    def visits(self, epoch: int) -> Visits:
        """Return the host's times at shards in an epoch, in no particular order."""
        if epoch not in self._visits:
            self._visits = {number: known for number, known in self._visits.items() if number >= epoch - 1}
            self._visits[epoch] = self._visits_of(epoch)
        return self._visits[epoch]

    def _visits_of(self, epoch: int) -> Visits:
        rng = np.random.default_rng([self.plan.order.seed, epoch, self.host])
        shards, samples, begin, end, counts = self._spread(epoch, rng)
        taken = rng.binomial(samples, counts)
        is_read = taken > 0
        shards, begin, end, taken = shards[is_read], begin[is_read], end[is_read], taken[is_read]
        # The first of n samples spread evenly over a stretch stands at the least of n uniform draws; so does the last.
        width = end - begin
        least = 1 - rng.random(taken.size) ** (1 / taken)
        most = np.maximum(rng.random(taken.size) ** (1 / taken), least)
        to_step = 1 / self.plan.fleet.host_batch
        last_step = self.plan.num_steps - 1
        first = np.minimum(((begin + least * width) * to_step).astype(np.int64), last_step)
        last = np.clip(((begin + most * width) * to_step).astype(np.int64), first, last_step)
        repeated = self._repeated(shards, begin, end, taken, rng)
        at_end = np.full(repeated.size, last_step, np.int64)
        return Visits(*map(np.concatenate, ((shards, repeated), (first, at_end), (last, at_end))))

    def _repeated(self, shards: Ints, begin: Floats, end: Floats, taken: Ints, rng: np.random.Generator) -> Ints:
        """Return the shards of the samples that fill the last step: they come from the start of the epoch."""
        plan, host_batch = self.plan, self.plan.fleet.host_batch
        repeats = self.plan.num_steps * host_batch - plan.data.samples / plan.fleet.hosts
        if plan.order.is_mosaic or repeats < 1:
            return np.zeros(0, np.int64)
        at_start = begin < 1
        drawn = rng.binomial(taken[at_start], np.minimum(1.0, repeats / (end[at_start] - begin[at_start])))
        return shards[at_start][drawn > 0]

    def _spread(self, epoch: int, rng: np.random.Generator) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        """Return shards, their samples in a stretch, where it begins and ends, and the share that this host takes.

        Begin and end count samples of this host.
        """
        return self._spread_mosaic(epoch, rng) if self.plan.order.is_mosaic else self._spread_window(epoch)

    def _spread_window(self, epoch: int) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        plan, hosts = self.plan, self.plan.fleet.hosts
        nodes, block = plan.canonical_nodes, plan.block_size
        ordered = plan.window(epoch)
        runs = ordered.runs_of_host(self.host, hosts)
        parts = []
        for run in runs:
            starts, ends = ordered.pieces(run)
            begins = np.concatenate(([0], ends[:-1]))
            windows = (ends - 1) // block - begins // block + 1  # that each piece lies in
            piece = np.repeat(np.arange(ends.size), windows)
            offset = np.arange(piece.size) - np.repeat(np.cumsum(windows) - windows, windows)
            window = begins[piece] // block + offset
            low, high = np.maximum(begins[piece], window * block), np.minimum(ends[piece], (window + 1) * block)
            parts.append((starts[piece], high - low, window * block, np.minimum((window + 1) * block, ends[-1])))
        first_ids, samples, low, high = map(np.concatenate, zip(*parts, strict=True))
        to_host = nodes / hosts
        shares = np.full(samples.size, min(1.0, nodes / (hosts * len(runs))))
        return first_ids // plan.data.shard_samples, samples, low * to_host, high * to_host, shares

    def _spread_mosaic(self, epoch: int, rng: np.random.Generator) -> tuple[Ints, Ints, Floats, Floats, Floats]:
        plan, seed = self.plan, self.plan.order.seed
        nodes, hosts = plan.canonical_nodes, plan.fleet.hosts
        if nodes != hosts:
            raise ValueError(f"MosaicML's order is simulated with a node for each host, found {nodes} for {hosts}")
        spans = spans_of_epoch(
            plan.data.shard_sizes, nodes, np.random.default_rng(seed), np.random.default_rng(seed + epoch)
        )
        own = slice(spans.bounds[self.host], spans.bounds[self.host + 1])
        starts, sizes = spans.starts[own], spans.sizes[own]
        ends = np.cumsum(sizes)
        total = int(ends[-1])
        moved = [
            moved_by(stop - size, stop, total, plan.block_size, rng)
            for stop, size in zip(ends.tolist(), sizes.tolist(), strict=True)
        ]
        lower, upper = np.array(moved).T
        return starts // plan.data.shard_samples, sizes, ends - sizes + lower, ends + upper, np.ones(sizes.size)


class SampleNeeds(Needs):
    """By samples, with the dataset's own `uses`: for small sets."""

    def epoch(self, epoch: int) -> Iterator[Stretch]:
        """Yield the stretches of an epoch."""
        plan = self.plan
        ends = np.cumsum(plan.data.shard_sizes)
        reading = self._reading(epoch)
        found: list[tuple[Ints, Ints]] = []
        for section in uses(reading, ends):
            found.append((section.shards, section.steps))
            if section.end >= plan.num_steps:
                break
        shards, steps = map(np.concatenate, zip(*found, strict=True))
        order = np.argsort(steps, kind="stable")
        shards, steps = shards[order], steps[order]
        cuts = np.searchsorted(steps, plan.bounds)
        for number, (start, stop) in enumerate(pairwise(cuts.tolist())):
            needed, first = _first_of_each(shards[start:stop], steps[start:stop])
            at = epoch * plan.num_stretches + number
            yield Stretch(at, epoch, int(plan.bounds[number]), int(plan.bounds[number + 1]), needed, first)

    def _reading(self, epoch: int) -> Reading:
        plan, order = self.plan, self.plan.order
        world, sizes = plan.world(self.host), [plan.data.shard_sizes]
        start = Cursor(
            digest="0" * 64,
            split=None,
            epoch_size=plan.data.samples,
            canonical_nodes=plan.canonical_nodes,
            block_size=plan.block_size,
            seed=order.seed,
            shuffle=True,
            epoch=epoch,
            samples=0,
            initial_hosts=plan.fleet.hosts,
            affinity=order.affinity,
        )
        this_pass, batch_size = Pass(start, world), plan.fleet.batch_size
        if not order.is_mosaic:
            return Reading(this_pass, sizes, batch_size, OrderOptions())
        options = MosaicOptions(
            plan.canonical_nodes, order.seed, shuffle=True, block_size=plan.block_size, initial_hosts=plan.fleet.hosts
        )
        shape = WorldShape(world.num_hosts, world.ranks_on_host, 1, batch_size)
        run = MosaicRun(weigh_streams(sizes), shape, options)
        return MosaicReading(this_pass, sizes, batch_size, OrderOptions(tail="short"), run=run)


def _first_of_each(shards: Ints, steps: Ints) -> tuple[Ints, Ints]:
    """Return each shard once, with the first step that needs it; `steps` ascend."""
    each, first = np.unique(shards, return_index=True)
    order = np.argsort(first, kind="stable")
    return each[order], steps[first[order]]
