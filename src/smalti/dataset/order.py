"""One rank's part of an epoch, step by step, and the options and mixtures that it is planned from. Pure: no I/O.

`Reading` hides what differs between the orders: the `window` order is the same in every world and ends where its
samples end; MosaicML's orders are planned for a world, add repeats to make all parts equal, and begin at a multiple of
the hosts.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import WINDOW, Cursor, MixedStream, Mixture, Weights
from smalti.errors import ArgumentError, CursorError, WorldMismatch
from smalti.order import Division, GlobalOrder, StepBatch, plan_epoch
from smalti.order.arrangement import check_affinity
from smalti.order.mixture import (
    MIXTURE_VERSION,
    ChangingMixture,
    MixtureOptions,
    StreamWeight,
    Weighting,
    check_not_empty,
    portions_of,
    samples_taken,
)
from smalti.order.mosaic import MosaicOptions, MosaicPlan, MosaicStream, WorldShape, plan_mosaic_epoch, weigh_streams
from smalti.order.mosaic.partition import Partition, make_partition
from smalti.world import World

DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that code without a seed keeps its meaning

Ints = NDArray[np.int64]
Sizes = Sequence[NDArray[np.int64] | Sequence[int]]
"""Of every stream, the samples of each of its shards."""
Planned = tuple[StepBatch, Ints]
"""A step, and the ids of the samples to read at it."""


@dataclass(frozen=True)
class OrderOptions:
    """The user's choices about the order; None takes the value of the saved cursor, or else the default."""

    shuffle: bool = False
    seed: int = DEFAULT_SEED
    canonical_nodes: int | None = None
    block_size: int | None = None
    tail: str | None = None
    """Treatment of an incomplete last step; None for `pad`, or with MosaicML's orders for `short`."""
    algorithm: str = WINDOW
    """`window`, or one of MosaicML's orders."""
    partition: str = "relaxed"
    """Partition of MosaicML's orders over hosts."""
    replication: int = 1
    """Consecutive ranks that read the same samples."""
    affinity: float | None = None
    """Part of its shards that a run keeps from epoch to epoch; None for all of them."""

    def __post_init__(self) -> None:
        if self.affinity is None:
            return
        check_affinity(self.affinity)
        if self.algorithm != WINDOW and self.affinity != 1:
            raise ArgumentError(
                f"`affinity` must be left out with `shuffle_algo={self.algorithm!r}`, found {self.affinity}: in "
                "MosaicML's orders a canonical node has the same shards in every epoch."
            )

    @property
    def last_step(self) -> str:
        """`tail`, or its default."""
        return self.tail or ("pad" if self.algorithm == WINDOW else "short")

    def explicit(self, name: str) -> Any:
        """Return the user's explicit choice of an option; None without one, and for the default seed."""
        value = getattr(self, name)
        return None if name == "seed" and value == DEFAULT_SEED else value


@dataclass(frozen=True)
class MixingOptions:
    """The user's choices about mixing streams, and about how much of each an epoch takes."""

    weights: tuple[StreamWeight, ...] = (StreamWeight(),)
    """One for each stream."""
    epoch_size: int | None = None
    """Samples of an epoch; None for what the weights take."""
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    change_weights: bool = False
    """Continue a state that was saved with other weights with these ones; otherwise refuse it."""

    def __post_init__(self) -> None:
        # Contradictions that do not depend on the data set are reported before it is opened.
        samples_taken([1] * len(self.weights), self.weights, epoch_size=self.epoch_size, seed=0)

    @property
    def is_plain(self) -> bool:
        """True if an epoch is every sample of one stream once."""
        return self.weights == (StreamWeight(),) and self.epoch_size is None

    def mixture(self, streams: Sequence[MixedStream]) -> Mixture:
        """Return the mixture that a run beginning with these options saves."""
        return Mixture(
            streams=tuple(streams),
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            batching_method=self.batching_method,
            global_batch=None,
            local_batch=None,
            history=(Weights(0, 0, tuple(map(_saved, self.weights)), self.epoch_size),),
            version=MIXTURE_VERSION,
        )


@dataclass(frozen=True)
class Pass:
    """One iteration over an epoch or the rest of one: its start, and the ranks that divide it."""

    start: Cursor
    world: World
    """All ranks, including those that read the same samples."""


@dataclass(frozen=True, eq=False)
class Reading:
    """The steps of one rank in one pass, and their sample ids.

    Ranks of a replica group read the same samples. Positions that were read before the pass began, or that repeat a
    sample, are marked with -1.
    """

    this_pass: Pass
    shard_sizes: Sizes
    """Of every stream, the samples of each of its shards."""
    batch_size: int
    """Samples per rank and step."""
    options: OrderOptions
    """Used for the division only; the start of the pass holds all that determines the order."""

    @cached_property
    def division(self) -> Division:
        """The positions that this rank takes at each step."""
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
        """The order of the epoch; memory is O(shards) for `window`, O(samples) for MosaicML's orders."""
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
        """Return the cursor after this many steps of all ranks; after the last step, the next epoch's start."""
        return cursor_after(self.this_pass.start, self.division, steps)

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Return the steps range(first, stop, stride), up to the epoch's end, each with its sample ids."""
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
        """Return the step with its repeats marked, without the positions that hold no sample."""
        is_repeat = plan.is_repeat(step.lookup) | (step.lookup < self.this_pass.start.samples)
        has_sample = ids >= 0
        if not has_sample.any():  # all ranks take equally many steps: a rank without samples repeats one
            return StepBatch(step.step, np.zeros(1, np.int64), np.full(1, -1)), plan.sample_ids(0, 1)
        positions = np.where(is_repeat, -1, step.positions)
        return StepBatch(step.step, step.lookup[has_sample], positions[has_sample]), ids[has_sample]

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
    """Return the world of ranks that read different samples: all ranks, or the replica groups."""
    if options.algorithm == WINDOW or options.replication == 1:
        return world.replicated(options.replication)
    # MosaicML's orders depend on the number of hosts, and it counts those of replica groups differently.
    shape = WorldShape.of(world, workers=1, batch_size=1).replicated(options.replication)
    return World.of_blocks(world.rank // options.replication, shape.num_ranks, shape.hosts)


def cursor_after(start: Cursor, division: Division, steps: int) -> Cursor:
    """Return the cursor after this many steps of all ranks since `start`; after the last step, the next epoch's."""
    if steps >= division.num_steps:
        return start.next_epoch()
    return replace(start, samples=division.start + steps * division.global_batch) if steps else start


def window_plan(start: Cursor, shard_sizes: Sizes) -> GlobalOrder:
    """Return the `window` order of a cursor's epoch.

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
            affinity=start.affinity,
        )
    return changing_mixture(start.mixture, shard_sizes, start.seed).plan(
        start.epoch,
        canonical_nodes=start.canonical_nodes,
        shuffle_block_size=start.block_size,
        shuffle=start.shuffle,
        affinity=start.affinity,
    )


# ------------------------------------------------------------------ mixtures


def plain_mixture(stream: MixedStream) -> Mixture:
    """Return the mixture that a cursor without one is equivalent to."""
    return MixingOptions().mixture([stream])


def digest_of(streams: Sequence[MixedStream]) -> str:
    """Return one digest for all streams; a single stream's own digest."""
    if len(streams) == 1:
        return streams[0].digest
    facts = json.dumps([[stream.digest, stream.split] for stream in streams])
    return hashlib.sha256(facts.encode()).hexdigest()


def with_batch_sizes(start: Cursor, readers: World, batch_size: int | None) -> Cursor:
    """Return the start of a pass with the batch sizes that its epoch is planned for.

    Only batches of streams (any method but `random`) are planned for a size. It is fixed where an epoch begins.

    Raises:
        ValueError: batches of streams need a size, and `batch_size` is None.
        CursorError: the sizes changed inside an epoch in one of MosaicML's orders, which does not allow it.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method == "random":
        return start
    if start.samples and mixture.global_batch and start.algorithm == WINDOW:
        return start
    if batch_size is None:
        raise ArgumentError(
            f"`batch_size` is needed: batching_method={mixture.batching_method!r} makes an epoch of batches."
        )
    global_batch = batch_size * readers.num_ranks
    saved, found = (mixture.global_batch, mixture.local_batch), (global_batch, batch_size)
    num_compared = 2 if mixture.batching_method == "device_per_stream" else 1
    if start.samples and mixture.global_batch and saved[:num_compared] != found[:num_compared]:
        raise CursorError(
            f"cannot resume inside an epoch of {mixture.batching_method!r} batches in MosaicML's order "
            f"{start.algorithm!r}: it was begun with batches of {saved[0]} samples over all ranks, {saved[1]} on "
            f"each, and here are {found[0]} and {found[1]}. Choose `batch_size` so that they are the same, call "
            "`set_epoch`, or use the `window` order, which continues with any.",
            what="batch",
            saved=saved,
            found=found,
        )
    return replace(start, mixture=replace(mixture, global_batch=global_batch, local_batch=batch_size))


def check_next_epoch(start: Cursor, sizes: Sizes, global_batch: int) -> None:
    """Check that new weights leave every stream a sample in the `stratified` batches of the following epochs.

    For a run that changes weights inside an epoch. The rest of that epoch has other shares than a whole epoch, and
    keeps the batch size that it was begun with, so it may be valid where the following epochs are not. Without this
    check the run would fail only when the first of them begins. `start` is where the run begins, with the weights that
    it changes to; later epochs will begin with steps of `global_batch` samples over all ranks.

    Raises:
        CursorError: a stream would have no sample in a `stratified` batch.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method != "stratified" or start.algorithm != WINDOW or not start.samples:
        return
    taken = changing_mixture(mixture, sizes, start.seed).samples_of(start.epoch + 1)
    if sum(count > 0 for count in taken) < 2:  # the batching method has no effect on a single stream
        return
    try:
        portions_of(taken, global_batch)
    except WorldMismatch as fault:
        raise CursorError(
            f"weights cannot change to {describe_weights(mixture.weights)} at sample {start.samples} of epoch "
            f"{start.epoch}: with them, the epochs after it cannot be read in batches of this size: {fault}",
            what="weights",
            **fault.facts,
        ) from fault


def changing_mixture(mixture: Mixture, sizes: Sizes, seed: int) -> ChangingMixture:
    """Return the orders of all epochs of a run with a mixture, in the `window` order.

    Raises:
        ValueError: weights contradict each other.
        CursorError: weights changed inside an epoch in a way that changed its size.
    """
    return ChangingMixture(
        sizes,
        [
            Weighting(each.epoch, each.samples, tuple(map(_weight, each.values)), each.epoch_size)
            for each in mixture.history
        ],
        seed=seed,
        options=MixtureOptions(
            sampling_method=mixture.sampling_method,
            sampling_granularity=mixture.sampling_granularity,
            batching_method=mixture.batching_method,
            global_batch=mixture.global_batch,
            local_batch=mixture.local_batch,
        ),
    )


def mosaic_streams(mixture: Mixture | None, sizes: Sizes, seed: int) -> list[MosaicStream]:
    """Return what an epoch in one of MosaicML's orders takes of each stream.

    Raises:
        ValueError: weights contradict each other.
    """
    if mixture is None:
        return weigh_streams(sizes, seed=seed)
    newest = mixture.weights
    streams = weigh_streams(sizes, list(map(_weight, newest.values)), epoch_size=newest.epoch_size, seed=seed)
    for number, stream in enumerate(streams):
        check_not_empty(number, stream.choose, int(stream.shard_sizes.sum()))
    return streams


def epoch_size(cursor: Cursor, sizes: Sizes) -> int:
    """Return the samples of the cursor's epoch.

    Raises:
        ValueError: weights contradict each other, or take nothing.
    """
    if cursor.mixture is None:
        return sum(int(np.sum(each)) for each in sizes)
    if cursor.algorithm == WINDOW:
        unbatched = replace(cursor.mixture, batching_method="random")  # the size of an epoch does not depend on batches
        size = changing_mixture(unbatched, sizes, cursor.seed).epoch_size(cursor.epoch)
    else:
        size = sum(stream.choose for stream in mosaic_streams(cursor.mixture, sizes, cursor.seed))
    if not size:
        raise ArgumentError("the streams' weights must take at least one sample, found none.")
    return size


def describe_weights(weights: Weights) -> str:
    """Return weights as text for a message."""
    values = ", ".join("-" if value is None else f"{value[0]}={value[1]!r}" for value in weights.values)
    return values if weights.epoch_size is None else f"{values}; epoch_size={weights.epoch_size}"


def _saved(weight: StreamWeight) -> tuple[str, float] | None:
    if weight.choose is not None:
        return "choose", int(weight.choose)
    if weight.repeat is not None:
        return "repeat", float(weight.repeat)
    return None if weight.proportion is None else ("proportion", float(weight.proportion))


def _weight(value: tuple[str, float] | None) -> StreamWeight:
    return StreamWeight() if value is None else StreamWeight(**dict([value]))  # type: ignore[arg-type]  # a field's name and value
