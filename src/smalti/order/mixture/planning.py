"""`plan_mixture`: from the streams' shards and weights to the order of one epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.order.keys import Purpose, raw_keys
from smalti.order.mixture.batches import Batches, Layout, OneStream, stratified
from smalti.order.mixture.options import MixtureOptions, StreamShare
from smalti.order.mixture.plan import MixturePlan, OrderedUnits
from smalti.order.mixture.shares import samples_taken
from smalti.order.mixture.units import Drawing, Units, joined, units_of
from smalti.order.mixture.weave import MAX_LENGTH, Weave
from smalti.order.window import Ids, plan_epoch

_BATCHES, _REST, _WITHIN = range(3)  # uses of `Purpose.BATCHES` keys
_BATCHES, _REST, _WITHIN = range(3)  # which keys of `Purpose.BATCHES`


def plan_mixture(
    streams: Sequence[StreamShare],
    *,
    seed: int,
    epoch: int,
    canonical_nodes: int,
    shuffle_block_size: int | None = None,
    shuffle: bool = True,
    options: MixtureOptions | None = None,
) -> MixturePlan:
    """Return the global order of one epoch over several streams, with the samples that the weights take of each. Pure.

    With `random` batching it is `plan_epoch` over the copies and parts of shards that the epoch takes, and so equal to
    `plan_epoch` for one stream without a weight. With `shuffle=False` streams, copies and shards come in stored order,
    and a drawn part in the order of the draw.

    Raises:
        ValueError: a size, weight, seed, epoch, block size or number of canonical nodes is out of range, weights
            contradict each other, or an epoch takes too many copies of a stream.
        WorldMismatch: a stream is too small a part of the mixture to be in each batch of `stratified`.
    """
    options = MixtureOptions() if options is None else options
    window = Window(seed, epoch, canonical_nodes, shuffle_block_size, shuffle)
    sizes = checked_sizes([share.shard_sizes for share in streams])
    totals = [int(stream.sum()) for stream in sizes]
    taken = samples_taken(totals, [share.weight for share in streams], epoch_size=options.epoch_size, seed=seed)
    return plan_shares(sizes, taken, [epoch * count for count in taken], window, options, draw_seed=seed)


@dataclass(frozen=True)
class Window:
    """Options of the `window` order of samples that are ordered together."""

    seed: int
    epoch: int
    canonical_nodes: int
    block_size: int | None
    shuffle: bool

    def __post_init__(self) -> None:
        for name, low in (("seed", 0), ("epoch", 0), ("canonical_nodes", 1)):
            value = getattr(self, name)
            if not low <= value < 1 << 63:
                raise ValueError(f"`{name}` must lie in [{low}, 2^63), found {value}.")

    def order(self, units: Units, seed: int) -> OrderedUnits:
        """Return units with their order."""
        order = plan_epoch(
            units.sizes,
            seed=seed,
            epoch=self.epoch,
            canonical_nodes=self.canonical_nodes,
            shuffle_block_size=self.block_size,
            shuffle=self.shuffle,
        )
        return OrderedUnits(order, units)

    def keys(self, count: int, use: int) -> NDArray[np.uint64]:
        """Return keys of the epoch for one use in batches."""
        return raw_keys(count, Purpose.BATCHES, seed=self.seed, epoch=self.epoch, run=use)


def plan_shares(
    sizes: Sequence[Ids],
    taken: Sequence[int],
    drawn: Sequence[int],
    window: Window,
    options: MixtureOptions,
    *,
    draw_seed: int,
) -> MixturePlan:
    """Return the order of an epoch that takes the given numbers of samples of each stream.

    Args:
        sizes: of every stream, the samples in each of its shards.
        taken: of every stream, the samples to take.
        drawn: of every stream, the samples that were taken before; ignored by `fixed` sampling.
        window: options of the order.
        options: how samples are drawn and batched.
        draw_seed: the run's seed, for each stream's circle; the order's own seed may differ.
    """
    totals = [int(stream.sum()) for stream in sizes]
    units = []
    for number, stream in enumerate(sizes):
        first = drawn[number] if options.sampling_method == "balanced" else 0
        drawing = Drawing(draw_seed, first, number, options.sampling_granularity)
        units.append(units_of(stream, taken[number], sum(totals[:number]), drawing))
    # The batching method has no effect on a single stream.
    if options.batching_method == "random" or sum(count > 0 for count in taken) < 2:
        return MixturePlan([window.order(joined(units), window.seed)], None, taken)
    seeds = (raw_keys(len(sizes), Purpose.STREAMS, seed=window.seed) >> np.uint64(1)).tolist()
    parts = [window.order(part, own_seed) for part, own_seed in zip(units, seeds, strict=True)]
    return MixturePlan(parts, _layout(np.array(taken, dtype=np.int64), window, options), taken)


def _layout(taken: Ids, window: Window, options: MixtureOptions) -> Layout:
    batches = _batches(taken, window, options)
    rest = taken - batches.used
    if int(rest.max()) > MAX_LENGTH:
        raise ValueError(f"a stream must have at most {MAX_LENGTH} samples beyond whole batches, found {rest.max()}.")
    return Layout(batches, Weave(rest, window.keys(taken.size, _REST)))


def _batches(taken: Ids, window: Window, options: MixtureOptions) -> Batches:
    global_batch, local_batch = options.global_batch or 0, options.local_batch or 0
    if options.batching_method == "stratified":
        return stratified(taken, global_batch, window.keys(1, _WITHIN) if window.shuffle else None)
    batch = local_batch if options.batching_method == "device_per_stream" else global_batch
    whole = taken // batch
    if int(whole.max()) > MAX_LENGTH:
        raise ValueError(f"a stream must give at most {MAX_LENGTH} batches to an epoch, found {whole.max()}.")
    return OneStream(Weave(whole, window.keys(taken.size, _BATCHES)), batch, global_batch // batch)


def checked_sizes(shard_sizes: Sequence[Sequence[int] | NDArray[Any]]) -> list[Ids]:
    """Return the shard sizes of every stream, checked; int64, each of shape (shards,).

    Raises:
        ValueError: there is no stream, or a size is no whole number or out of range.
    """
    if not shard_sizes:
        raise ValueError("`streams` must hold at least one stream, found none.")
    return [_checked(number, sizes) for number, sizes in enumerate(shard_sizes)]


def _checked(number: int, shard_sizes: Sequence[int] | NDArray[Any]) -> Ids:
    sizes = np.asarray(shard_sizes)
    if sizes.ndim != 1 or not (sizes.size == 0 or np.issubdtype(sizes.dtype, np.integer)):
        raise ValueError(
            f"`shard_sizes` of stream {number} must be a row of whole numbers, found {sizes.dtype} of shape "
            f"{sizes.shape}."
        )
    outside = np.flatnonzero((sizes < 0) | (sizes > MAX_LENGTH))
    if outside.size:
        raise ValueError(
            f"`shard_sizes` of stream {number} must lie in [0, {MAX_LENGTH}], found {sizes[outside[0]]} for shard "
            f"{outside[0]}."
        )
    return sizes.astype(np.int64)
