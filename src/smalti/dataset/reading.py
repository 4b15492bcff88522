"""One rank's part of an epoch, step by step, in our order or in one of MosaicML's. Pure: nothing is read here.

What differs between the two stays in here: our order is the same in every world, and ends where its samples end;
MosaicML's is planned for a world, adds repeats to make its parts equal, and begins at a multiple of the hosts.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import WINDOW, Cursor
from smalti.dataset.mixing import Sizes, changing_mixture, mosaic_streams
from smalti.dataset.passes import OrderOptions, Pass
from smalti.order import Division, GlobalOrder, StepBatch, plan_epoch
from smalti.order.mosaic import MosaicOptions, MosaicPlan, WorldShape, plan_mosaic_epoch
from smalti.order.mosaic.partition import Partition, make_partition
from smalti.world import World

Ints = NDArray[np.int64]
Planned = tuple[StepBatch, Ints]
"""A step, and the ids of the samples to read at it."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What one rank reads in one pass.

    Ranks that replicate each other read the same; positions that were read before the pass began, or that repeat a
    sample, are marked with -1.
    """

    this_pass: Pass
    """The epoch, where in it, and who reads."""
    shard_sizes: Sizes
    """Of every stream, the samples of each of its shards."""
    batch_size: int
    """Samples per rank and step."""
    options: OrderOptions
    """Only how it is divided; what fixes the order is in the pass."""

    @cached_property
    def division(self) -> Division:
        """Which positions this rank takes at which step."""
        start, world, tail = self.this_pass.start, self._groups, self.options.last_step
        if start.algorithm == WINDOW:
            return Division(start.epoch_size, start.samples, self.batch_size, world, tail)
        if self._batching != "random":
            plan = self._mosaic_plan
            return Division(len(plan), plan.start, self.batch_size, world, tail)
        partition = self._partition()
        end = max(len(partition), partition.start)
        return Division(end, partition.start, self.batch_size, world, tail)

    @property
    def plan(self) -> GlobalOrder:
        """The order of the epoch; O(shards) for ours, O(samples) for MosaicML's."""
        return self._window_plan if self.this_pass.start.algorithm == WINDOW else self._mosaic_plan

    @cached_property
    def _window_plan(self) -> GlobalOrder:
        return window_plan(self.this_pass.start, self.shard_sizes)

    @cached_property
    def _mosaic_plan(self) -> MosaicPlan:
        start, mixture = self.this_pass.start, self.this_pass.start.mixture
        options = MosaicOptions(
            canonical_nodes=start.canonical_nodes,
            seed=start.seed,
            shuffle=start.shuffle,
            shuffle_algo=start.algorithm,
            block_size=start.block_size,
            partition_algo=self.options.partition,
            initial_hosts=start.initial_hosts,
        )
        if mixture is not None:
            options = replace(
                options,
                sampling_method=mixture.sampling_method,
                sampling_granularity=mixture.sampling_granularity,
                batching_method=mixture.batching_method,
            )
        return plan_mosaic_epoch(
            mosaic_streams(mixture, self.shard_sizes, start.seed),
            self._shape,
            options=options,
            epoch=start.epoch,
            start=start.samples,
        )

    def cursor_after(self, steps: int) -> Cursor:
        """Where the run stands after so many steps of all ranks; after the last one: the next epoch's start."""
        return cursor_after(self.this_pass.start, self.division, steps)

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Steps range(first, stop, stride), as far as the epoch goes, with the sample ids of each."""
        steps = self.division.steps(first, stop, stride)
        if not steps:
            return []
        plan = self.plan
        lookup = np.concatenate([step.lookup for step in steps])
        cuts = np.cumsum([step.lookup.size for step in steps])[:-1]
        planned = zip(steps, np.split(plan.ids_at(lookup), cuts), strict=True)
        if isinstance(plan, MosaicPlan):
            return [self._marked(plan, step, ids) for step, ids in planned]
        return list(planned)

    def _marked(self, plan: MosaicPlan, step: StepBatch, ids: Ints) -> Planned:
        """The step with its repeats marked, and without the positions that are nobody's."""
        again = plan.is_repeat(step.lookup) | (step.lookup < self.this_pass.start.samples)
        held = ids >= 0
        if not held.any():  # all ranks take equally many steps: one that has nothing reads a sample again
            return StepBatch(step.step, np.zeros(1, np.int64), np.full(1, -1)), plan.sample_ids(0, 1)
        positions = np.where(again, -1, step.positions)
        return StepBatch(step.step, step.lookup[held], positions[held]), ids[held]

    @property
    def _groups(self) -> World:
        return reading_world(self.this_pass.world, self.options)

    @property
    def _batching(self) -> str:
        mixture = self.this_pass.start.mixture
        return "random" if mixture is None else mixture.batching_method

    @property
    def _shape(self) -> WorldShape:
        return WorldShape.of(self._groups, workers=1, batch_size=self.batch_size)

    def _partition(self) -> Partition:
        start = self.this_pass.start
        return make_partition(
            self.options.partition,
            start.epoch_size,
            self._shape,
            canonical_nodes=start.canonical_nodes,
            start=start.samples,
            initial_hosts=start.initial_hosts,
        )


def reading_world(world: World, options: OrderOptions) -> World:
    """The world of those who read different samples: all ranks, or the groups that replicate each other."""
    if options.algorithm == WINDOW or options.replication == 1:
        return world.replicated(options.replication)
    # MosaicML counts the groups' hosts in its own way, and its orders depend on them.
    shape = WorldShape.of(world, workers=1, batch_size=1).replicated(options.replication)
    return World.of_blocks(world.rank // options.replication, shape.num_ranks, shape.hosts)


def cursor_after(start: Cursor, division: Division, steps: int) -> Cursor:
    """Where the run stands after so many steps of all ranks since `start`; after the last one, the next epoch."""
    if steps >= division.num_steps:
        return start.next_epoch()
    return replace(start, samples=division.start + steps * division.global_batch) if steps else start


def window_plan(start: Cursor, shard_sizes: Sizes) -> GlobalOrder:
    """The order of a cursor's epoch, if it is ours.

    Args:
        start: the epoch, and what fixes its order.
        shard_sizes: of every stream, the samples of each of its shards.

    Raises:
        ValueError: the cursor's mixture does not fit the streams.
    """
    if start.mixture is None:
        return plan_epoch(
            shard_sizes[0],
            seed=start.seed,
            epoch=start.epoch,
            canonical_nodes=start.canonical_nodes,
            shuffle_block_size=start.block_size,
            shuffle=start.shuffle,
        )
    return changing_mixture(start.mixture, shard_sizes, start.seed).plan(
        start.epoch,
        canonical_nodes=start.canonical_nodes,
        shuffle_block_size=start.block_size,
        shuffle=start.shuffle,
    )
