"""One rank's part of an epoch, step by step, in our order or in one of MosaicML's. Pure: nothing is read here.

What differs between the two stays in here: our order is the same in every world, and ends where its samples end;
MosaicML's is planned for a world, adds repeats to make its parts equal, and begins at a multiple of the hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import ORDER_VERSIONS, WINDOW, Cursor
from smalti.dataset.passes import OrderOptions, Pass, check_same_order
from smalti.order import (
    Division,
    EpochPlan,
    StepBatch,
    default_block_size,
    default_canonical_nodes,
    plan_epoch,
)
from smalti.order.mosaic import (
    SHUFFLES,
    MosaicOptions,
    MosaicPlan,
    WorldShape,
    default_mosaic_nodes,
    plan_mosaic_epoch,
    weigh_streams,
)
from smalti.order.mosaic.partition import Partition, make_partition
from smalti.world import World

ALGORITHMS = (WINDOW, *SHUFFLES)
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
    shard_sizes: Ints | Sequence[int]
    """Samples of every shard."""
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
        partition = self._partition()
        end = max(len(partition), partition.start)
        return Division(end, partition.start, self.batch_size, world, tail)

    @cached_property
    def plan(self) -> EpochPlan | MosaicPlan:
        """The order of the epoch; O(shards) for ours, O(samples) for MosaicML's."""
        start = self.this_pass.start
        if start.algorithm == WINDOW:
            return plan_epoch(
                self.shard_sizes,
                seed=start.seed,
                epoch=start.epoch,
                canonical_nodes=start.canonical_nodes,
                shuffle_block_size=start.block_size,
                shuffle=start.shuffle,
            )
        return plan_mosaic_epoch(
            weigh_streams([self.shard_sizes], seed=start.seed),
            self._shape,
            options=MosaicOptions(
                canonical_nodes=start.canonical_nodes,
                seed=start.seed,
                shuffle=start.shuffle,
                shuffle_algo=start.algorithm,
                block_size=start.block_size,
                partition_algo=self.options.partition,
                initial_hosts=start.initial_hosts,
            ),
            epoch=start.epoch,
            start=start.samples,
        )

    def cursor_after(self, steps: int) -> Cursor:
        """Where the run stands after so many steps of all ranks; after the last one: the next epoch's start."""
        start, division = self.this_pass.start, self.division
        if steps >= division.num_steps:
            return start.next_epoch()
        return replace(start, samples=division.start + steps * division.global_batch) if steps else start

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Steps range(first, stop, stride), as far as the epoch goes, with the sample ids of each."""
        steps = self.division.steps(first, stop, stride)
        if not steps:
            return []
        plan = self.plan
        lookup = np.concatenate([step.lookup for step in steps])
        cuts = np.cumsum([step.lookup.size for step in steps])[:-1]
        planned = zip(steps, np.split(plan.ids_at(lookup), cuts), strict=True)
        if isinstance(plan, EpochPlan):
            return list(planned)
        return [self._marked(plan, step, ids) for step, ids in planned]

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


def first_cursor(options: OrderOptions, world: World, **data: Any) -> Cursor:
    """The start of a run's first epoch.

    Args:
        options: what the user chose.
        world: those who read different samples.
        data: the cursor's `digest`, `split` and `epoch_size`.
    """
    if options.algorithm == WINDOW:
        nodes = options.canonical_nodes or default_canonical_nodes(data["epoch_size"])
    else:
        nodes = options.canonical_nodes or default_mosaic_nodes(options.algorithm, world.num_hosts)
    return Cursor(
        epoch=0,
        samples=0,
        seed=options.seed,
        canonical_nodes=nodes,
        initial_hosts=world.num_hosts,
        shuffle=options.shuffle,
        block_size=options.block_size or default_block(options.algorithm, nodes),
        algorithm=options.algorithm,
        algorithm_version=ORDER_VERSIONS.get(options.algorithm, 1),
        **data,
    )


def saved_cursor(state: Any, fresh: Cursor, options: OrderOptions, num_ranks: int) -> Cursor:
    """The cursor of a saved state, ours or MosaicML's, to be continued with `options`.

    Args:
        state: what `state_dict` returned.
        fresh: a cursor of the data set at hand.
        options: what the user chose.
        num_ranks: ranks that read different samples.

    Raises:
        CursorError: it is damaged, or belongs to another data set or order.
    """
    if isinstance(state, Mapping) and "smalti" not in state:
        saved = Cursor.from_mosaic_state(state, fresh, num_ranks=num_ranks)
        block = options.block_size or default_block(options.algorithm, saved.canonical_nodes)
        saved = replace(saved, block_size=block)
    else:
        saved = Cursor.from_state(state)
    check_same_order(saved, fresh, options)
    return saved


def default_block(algorithm: str, canonical_nodes: int) -> int:
    """Samples within which an order shuffles, where nobody chose."""
    if algorithm == WINDOW:
        return default_block_size(canonical_nodes)
    return MosaicOptions(canonical_nodes).shuffle_block
