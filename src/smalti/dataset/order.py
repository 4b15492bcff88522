"""One rank's part of an epoch, step by step, and the options and mixtures that it is planned from. Pure: no I/O.

`Reading` is the seam for other orders: a subclass may override its `plan`, `division` and `steps`, as
`smalti.compat.streaming` does for MosaicML's orders. The rest of the library asks a Reading for nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice, check_flags, whole_number, whole_or_none
from smalti.cursor import MAX_BLOCK, MAX_CANONICAL_NODES, ORDER_VERSIONS, WINDOW, Cursor, MixedStream, Mixture, Weights
from smalti.errors import ArgumentError, ArgumentTypeError, CursorError, WorldMismatch
from smalti.order import TAILS, Division, GlobalOrder, StepBatch, plan_epoch
from smalti.order.mixture.planning import (
    BATCHINGS,
    MIXTURE_VERSION,
    SAMPLINGS,
    ChangingMixture,
    StreamWeight,
    samples_taken,
)
from smalti.order.mixture.weave import portions_of
from smalti.order.window import check_affinity
from smalti.world import World

DEFAULT_SEED = 9176  # MosaicML Streaming's default, so that code without a seed keeps its meaning
MAX_COUNT = (1 << 31) - 1
"""The largest batch, and number of ranks: products of two such numbers are 64-bit integers."""

Ints = NDArray[np.int64]
Sizes = Sequence[NDArray[np.int64] | Sequence[int]]
"""The samples of each shard, by stream."""
Planned = tuple[StepBatch, Ints]
"""A step, and the ids of the samples to read at it."""


@dataclass(frozen=True)
class OrderOptions:
    """Options of the order of an epoch, and of its division over ranks: the argument `order` of a dataset.

    Every field has a good default. To continue a run, give those that it was begun with, or leave them out: the saved
    state has them.

    Raises:
        ValueError: a field is out of range, or none of its choices.

    Examples:
        >>> order = OrderOptions(tail="drop")  # leave out an incomplete last step
        >>> dataset = StreamingDataset(remote="s3://bucket/users", shuffle=True, batch_size=4, order=order)
        >>> len(list(dataset))
        12
    """

    num_canonical_nodes: int | None = None
    """Runs that the order is woven from; by default 64, fewer for small sets."""
    shuffle_block_size: int | None = None
    """Samples within which shuffling mixes; by default `smalti.order.default_block_size`."""
    affinity: float | None = None
    """With `shuffle`, the part of its shards that a host reads again in the following epoch, from 0 to 1; by default 1,
    all of them. With less, the others are exchanged between hosts: samples of all hosts come to be read together, and
    each epoch fetches the rest of 1."""
    tail: str = "pad"
    """Treatment of an incomplete last step: filled with marked repeats (`pad`), left `short`, or left out (`drop`)."""
    replication: int = 1
    """Consecutive ranks that read the same samples, as tensor or sequence parallelism needs it."""
    sampling_method: str = "balanced"
    """For a stream of which an epoch takes a part: `balanced` continues where the last epoch stopped, `fixed` takes the
    same part each time."""
    sampling_granularity: int = 1
    """Samples that are drawn from a shard together, from 1."""
    batching_method: str = "random"
    """`random` mixes all streams; `stratified` gives each global batch the same number of each; `per_stream` and
    `device_per_stream` take each global batch, or each rank's, from one stream."""
    change_weights: bool = False
    """Continue a state that was saved with other weights, and record the change; otherwise such a state is refused."""

    def __post_init__(self) -> None:
        for name, high in (("num_canonical_nodes", MAX_CANONICAL_NODES), ("shuffle_block_size", MAX_BLOCK)):
            object.__setattr__(self, name, whole_or_none(name, getattr(self, name), 1, high))
        for name, high in (("replication", MAX_COUNT), ("sampling_granularity", (1 << 62) - 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1, high))
        for name, allowed in (("tail", TAILS), ("sampling_method", SAMPLINGS), ("batching_method", BATCHINGS)):
            check_choice(name, getattr(self, name), allowed)
        check_flags(change_weights=self.change_weights)
        if self.affinity is not None:
            check_affinity(self.affinity)


@dataclass(frozen=True)
class RunOrder(OrderOptions):
    """All choices of the user that determine the order of a run's epochs."""

    shuffle: bool = False
    seed: int = DEFAULT_SEED
    weights: tuple[StreamWeight, ...] = (StreamWeight(),)
    """One for each stream."""
    epoch_size: int | None = None
    """Samples of an epoch; None for what the weights take."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
            history=(Weights(0, 0, tuple(each.saved for each in self.weights), self.epoch_size),),
            version=MIXTURE_VERSION,
        )


def run_order(chosen: OrderOptions | None, **run: Any) -> RunOrder:
    """Return the user's choices together with the run's shuffle, seed, weights and epoch size.

    Raises:
        TypeError: `chosen` is neither None nor an OrderOptions.
        ValueError: choices contradict each other.
    """
    options = OrderOptions() if chosen is None else chosen
    if not isinstance(options, OrderOptions):
        raise ArgumentTypeError(f"`order` must be smalti.OrderOptions(...), found {options!r:.80}.")
    return RunOrder(**{entry.name: getattr(options, entry.name) for entry in fields(OrderOptions)}, **run)


@dataclass(frozen=True)
class Pass:
    """One iteration over an epoch or the rest of one: its start, and the ranks that divide it."""

    start: Cursor
    world: World
    """All ranks, including those that read the same samples."""


@dataclass(frozen=True, eq=False)
class Reading:
    """The steps of one rank in one pass, and their sample ids.

    Ranks of a replica group read the same samples. Positions that repeat a sample are marked with -1.
    """

    this_pass: Pass
    shard_sizes: Sizes
    """The samples of each shard, by stream."""
    batch_size: int
    """Samples per rank and step."""
    options: OrderOptions
    """Used for the division only; the start of the pass holds all that determines the order."""

    @cached_property
    def division(self) -> Division:
        """The positions that this rank takes at each step."""
        start, readers = self.this_pass.start, self.this_pass.world.replicated(self.options.replication)
        return Division(start.epoch_size, start.samples, self.batch_size, readers, self.options.tail, start.epoch)

    @cached_property
    def plan(self) -> GlobalOrder:
        """The order of the epoch; memory is O(shards)."""
        return window_plan(self.this_pass.start, self.shard_sizes)

    def cursor_after(self, steps: int) -> Cursor:
        """Return the cursor after this many steps of all ranks; after the last step, the next epoch's start."""
        start, division = self.this_pass.start, self.division
        if steps >= division.num_steps:
            return start.next_epoch()
        return replace(start, samples=division.start + steps * division.global_batch) if steps else start

    def steps(self, first: int, stop: int, stride: int = 1) -> list[Planned]:
        """Return the steps range(first, stop, stride), up to the epoch's end, each with its sample ids."""
        steps = self.division.steps(first, stop, stride)
        if not steps:
            return []
        lookup = np.concatenate([step.lookup for step in steps])
        cuts = np.cumsum([step.lookup.size for step in steps])[:-1]
        return list(zip(steps, np.split(self.plan.ids_at(lookup), cuts), strict=True))


def window_plan(start: Cursor, shard_sizes: Sizes) -> GlobalOrder:
    """Return the `window` order of a cursor's epoch.

    Raises:
        ValueError: the cursor's mixture does not fit the streams.
        CursorError: the cursor is of another order, or of another version of this one.
    """
    if (start.algorithm, start.algorithm_version) != (WINDOW, ORDER_VERSIONS[WINDOW]):
        raise CursorError(
            f"the run has the order {start.algorithm!r} of version {start.algorithm_version}, and this Smalti plans "
            f"{WINDOW!r} of version {ORDER_VERSIONS[WINDOW]}: use the release of Smalti that made the run",
            what="order",
            saved=start.algorithm,
            found=WINDOW,
        )
    window: dict[str, Any] = {
        "canonical_nodes": start.canonical_nodes,
        "shuffle_block_size": start.block_size,
        "shuffle": start.shuffle,
        "affinity": start.affinity,
    }
    if start.mixture is None:
        return plan_epoch(shard_sizes[0], seed=start.seed, epoch=start.epoch, **window)
    return ChangingMixture(shard_sizes, start.mixture, seed=start.seed).plan(start.epoch, **window)


# ------------------------------------------------------------------ mixtures


def with_batch_sizes(start: Cursor, readers: World, batch_size: int | None) -> Cursor:
    """Return the start of a pass with the batch sizes that its epoch is planned for.

    Only batches of streams (any method but `random`) are planned for a size. It is fixed where an epoch begins.

    Raises:
        ValueError: batches of streams need a size, and `batch_size` is None.
    """
    mixture = start.mixture
    if mixture is None or mixture.batching_method == "random" or (start.samples and mixture.global_batch):
        return start
    if batch_size is None:
        raise ArgumentError(
            f"`batch_size` is needed: batching_method={mixture.batching_method!r} makes an epoch of batches."
        )
    return replace(start, mixture=replace(mixture, global_batch=batch_size * readers.num_ranks, local_batch=batch_size))


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
    if mixture is None or mixture.batching_method != "stratified" or not start.samples:
        return
    taken = ChangingMixture(sizes, mixture, seed=start.seed).samples_of(start.epoch + 1)
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


def epoch_size(cursor: Cursor, sizes: Sizes) -> int:
    """Return the samples of the cursor's epoch.

    Raises:
        ValueError: weights contradict each other, or take nothing.
    """
    if cursor.mixture is None:
        return sum(int(np.sum(stream)) for stream in sizes)
    unbatched = replace(cursor.mixture, batching_method="random")  # the size of an epoch does not depend on batches
    size = ChangingMixture(sizes, unbatched, seed=cursor.seed).epoch_size(cursor.epoch)
    if not size:
        raise ArgumentError("the streams' weights must take at least one sample, found none.")
    return size


def describe_weights(weights: Weights) -> str:
    """Return weights as text for a message."""
    values = ", ".join("-" if value is None else f"{value[0]}={value[1]!r}" for value in weights.values)
    return values if weights.epoch_size is None else f"{values}; epoch_size={weights.epoch_size}"
