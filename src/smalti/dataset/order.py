"""One rank's part of an epoch, step by step, in our order or in one of MosaicML's. Pure: nothing is read here.

What differs between the two stays in here: our order is the same in every world, and ends where its samples end;
MosaicML's is planned for a world, adds repeats to make its parts equal, and begins at a multiple of the hosts.

Between what a saved cursor holds of a mixture and the orders that are planned from it. Pure.

What a dataset and the loaders' views of it share: the chosen order, where iterations stand, what was opened.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import WINDOW, Cursor, MixedStream, Mixture, Weights
from smalti.errors import CursorError, WorldMismatch
from smalti.order import Division, GlobalOrder, StepBatch, plan_epoch
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
from smalti.stream import OpenStreams, Version
from smalti.world import World

Sizes = Sequence[NDArray[np.int64] | Sequence[int]]
"""Of every stream, the samples of each of its shards."""


@dataclass(frozen=True)
class MixingOptions:
    """What the user chose about several streams, or about how much of one an epoch takes."""

    weights: tuple[StreamWeight, ...] = (StreamWeight(),)
    """One for each stream."""
    epoch_size: int | None = None
    """Samples of an epoch; None for what the weights take."""
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    change_weights: bool = False
    """Whether a state that was saved with other weights is continued with these."""

    def __post_init__(self) -> None:
        # What contradicts itself in any data set, said before one is opened.
        samples_taken([1] * len(self.weights), self.weights, epoch_size=self.epoch_size, seed=0)

    @property
    def is_plain(self) -> bool:
        """Whether an epoch is every sample of one stream once."""
        return self.weights == (StreamWeight(),) and self.epoch_size is None

    def mixture(self, streams: Sequence[MixedStream]) -> Mixture:
        """What of it is saved, for a run that begins with it."""
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


def plain_mixture(stream: MixedStream) -> Mixture:
    """The mixture that a cursor without one stands for."""
    return MixingOptions().mixture([stream])


def digest_of(streams: Sequence[MixedStream]) -> str:
    """One digest for all streams; a single one has its own."""
    if len(streams) == 1:
        return streams[0].digest
    told = json.dumps([[stream.digest, stream.split] for stream in streams])
    return hashlib.sha256(told.encode()).hexdigest()


def begun(start: Cursor, readers: World, batch_size: int | None) -> Cursor:
    """The start of a pass, which fixes the batches that its epoch is made of, if it is the epoch's start.

    Raises:
        ValueError: batches of streams, and nobody says how large.
        CursorError: one of MosaicML's orders, whose batches of streams cannot change inside an epoch.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method == "random":
        return start
    if start.samples and mixture.global_batch and start.algorithm == WINDOW:
        return start
    if batch_size is None:
        raise ValueError(
            f"`batch_size` is needed: batching_method={mixture.batching_method!r} makes an epoch of batches."
        )
    global_batch = batch_size * readers.num_ranks
    then, here = (mixture.global_batch, mixture.local_batch), (global_batch, batch_size)
    decisive = 2 if mixture.batching_method == "device_per_stream" else 1
    if start.samples and mixture.global_batch and then[:decisive] != here[:decisive]:
        raise CursorError(
            f"cannot resume inside an epoch of {mixture.batching_method!r} batches in MosaicML's order "
            f"{start.algorithm!r}: it was begun with batches of {then[0]} samples over all ranks, {then[1]} on each, "
            f"and here are {here[0]} and {here[1]}. Choose `batch_size` so that they are the same, call `set_epoch`, "
            "or use the `window` order, which goes on with any.",
            what="batch",
            saved=then,
            found=here,
        )
    return replace(start, mixture=replace(mixture, global_batch=global_batch, local_batch=batch_size))


def check_next_epoch(start: Cursor, sizes: Sizes, global_batch: int) -> None:
    """Return only if the newest weights leave every stream a sample in the batches of the epochs after this one.

    For a run that changes weights inside an epoch. What is left of that epoch is another share than a whole one, and
    keeps the batch that it was begun with, so that it may hold where the epochs after it do not. The user should not
    learn that when the first of them begins.

    Args:
        start: where the run begins, with the weights that it changes to.
        sizes: of every stream, the samples of each of its shards.
        global_batch: samples of a step over all ranks, with which later epochs will begin.

    Raises:
        CursorError: a stream would have no sample in a `stratified` batch.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method != "stratified" or start.algorithm != WINDOW or not start.samples:
        return
    taken = changing_mixture(mixture, sizes, start.seed).samples_of(start.epoch + 1)
    if sum(count > 0 for count in taken) < 2:  # one stream is its own order, whatever the method
        return
    try:
        portions_of(taken, global_batch)
    except WorldMismatch as fault:
        raise CursorError(
            f"weights cannot change to {told(mixture.weights)} at sample {start.samples} of epoch {start.epoch}: with "
            f"them, the epochs after it cannot be read in batches of this size: {fault}",
            what="weights",
            **fault.facts,
        ) from fault


def changing_mixture(mixture: Mixture, sizes: Sizes, seed: int) -> ChangingMixture:
    """All epochs of a run in our order.

    Raises:
        ValueError: weights contradict each other.
        CursorError: weights changed inside an epoch, and its size with them.
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
    """What an epoch in one of MosaicML's orders takes of each stream.

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
    """Samples that the cursor's epoch takes.

    Raises:
        ValueError: weights contradict each other, or take nothing.
    """
    if cursor.mixture is None:
        return sum(int(np.sum(each)) for each in sizes)
    if cursor.algorithm == WINDOW:
        unbatched = replace(cursor.mixture, batching_method="random")  # how large a batch is decides nothing here
        size = changing_mixture(unbatched, sizes, cursor.seed).epoch_size(cursor.epoch)
    else:
        size = sum(stream.choose for stream in mosaic_streams(cursor.mixture, sizes, cursor.seed))
    if not size:
        raise ValueError("the streams' weights must take at least one sample, found none.")
    return size


def told(weights: Weights) -> str:
    """Weights as a message says them."""
    values = ", ".join("-" if value is None else f"{value[0]}={value[1]!r}" for value in weights.values)
    return values if weights.epoch_size is None else f"{values}; epoch_size={weights.epoch_size}"


def _saved(weight: StreamWeight) -> tuple[str, float] | None:
    if weight.choose is not None:
        return "choose", int(weight.choose)
    if weight.repeat is not None:
        return "repeat", float(weight.repeat)
    return None if weight.proportion is None else ("proportion", float(weight.proportion))


def _weight(value: tuple[str, float] | None) -> StreamWeight:
    return StreamWeight() if value is None else StreamWeight(**dict([value]))  # type: ignore[arg-type]  # a name and its number


DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that a notebook that names none means the same


@dataclass(frozen=True)
class OrderOptions:
    """What the user chose about the order; None lets the saved cursor, or else the default, decide."""

    shuffle: bool = False
    seed: int = DEFAULT_SEED
    canonical_nodes: int | None = None
    block_size: int | None = None
    tail: str | None = None
    """What becomes of an incomplete last step; None for `pad`, with MosaicML's orders `short`."""
    algorithm: str = WINDOW
    """Our order, or one of MosaicML's."""
    partition: str = "relaxed"
    """How MosaicML's orders are dealt to hosts."""
    replication: int = 1
    """Consecutive ranks that read the same samples."""

    @property
    def last_step(self) -> str:
        """`tail`, or the default for it."""
        return self.tail or ("pad" if self.algorithm == WINDOW else "short")

    def asked(self, name: str) -> Any:
        """What the user asked for; None for nothing, and for the default seed."""
        value = getattr(self, name)
        return None if name == "seed" and value == DEFAULT_SEED else value


@dataclass(frozen=True)
class RunPlace:
    """Where the iterations of a dataset stand."""

    next_epoch: int = 0
    """Epoch of the next iteration, unless `resume` says another place."""
    resume: Cursor | None = None
    """Where the next iteration begins, after a state was loaded."""
    adopted: Cursor | None = None
    """The loaded state, whose seed, canonical nodes and block size hold for all epochs that follow."""
    begun: Cursor | None = None
    """Where the latest iteration began; None after a state was loaded or an epoch chosen."""
    versions: tuple[Version, ...] = ()
    """The version of each stream that is read; empty before the first use."""

    def at_epoch(self, epoch: int) -> "RunPlace":
        """Return the place after the user chose an epoch."""
        return replace(self, next_epoch=epoch, resume=None, begun=None)

    def resumed(self, cursor: Cursor, versions: tuple[Version, ...]) -> "RunPlace":
        """Return the place after a state was loaded."""
        return replace(self, resume=cursor, adopted=cursor, begun=None, versions=versions)

    def after_begin(self, start: Cursor) -> "RunPlace":
        """Return the place after an iteration began at `start`."""
        return replace(self, next_epoch=start.epoch + 1, resume=None, begun=start)


class RunTracker:
    """The place of a dataset, shared by the dataset and the views that loaders make of it."""

    def __init__(self) -> None:
        self._place = RunPlace()

    def get(self) -> RunPlace:
        """Return the current place."""
        return self._place

    def set(self, place: RunPlace) -> None:
        """Replace the place, as the user asked."""
        self._place = place

    def enter(self) -> int | None:
        """Register an iteration that is about to begin; its number, or None where no number is needed."""
        return None

    def begin(self, settle: Callable[[RunPlace], Cursor], number: int | None = None) -> tuple[Cursor, bool]:
        """Begin an iteration.

        Args:
            settle: returns where the iteration begins, given the place before it.
            number: what `enter` returned.

        Returns:
            Where it begins, and whether this call decided that (and not another worker of the same iteration).
        """
        del number
        start = settle(self._place)
        self._place = self._place.after_begin(start)
        return start, True

    def agree(self, versions: tuple[Version, ...]) -> tuple[Version, ...]:
        """Record the versions that were opened, and return those that were recorded first."""
        if not self._place.versions:
            self._place = replace(self._place, versions=versions)
        return self._place.versions


@dataclass
class Opened:
    """The shard sets of a dataset and of all its views, opened once, by whichever needs them first."""

    stream: OpenStreams | None = None


@dataclass(frozen=True)
class Pass:
    """One iteration over (the rest of) an epoch: where it begins and who divides it."""

    start: Cursor
    world: World
    """Every rank, those included that read the same samples."""


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
