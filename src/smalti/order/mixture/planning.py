"""`plan_shares`: from the streams' shards and shares to the order of one epoch, a `MixturePlan`; and the shares.

The number of samples that each stream gives to an epoch is exact arithmetic on the weights as written. `repeat=0.7` of
10 samples is 7, although the float nearest to 0.7 is below it. Proportions divide the epoch exactly: each stream gets
its share rounded down, and some of the streams with a fraction left, chosen by key, get one more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.cursor import WEIGHT_NAMES, Mixture, Weight
from smalti.errors import ArgumentError, WorldMismatch
from smalti.order.keys import Purpose, keyed_permutation, raw_keys
from smalti.order.mixture.batches import Batches, Layout, OneStream, stratified
from smalti.order.mixture.units import Drawing, Units, joined, units_of
from smalti.order.mixture.weave import MAX_LENGTH, Weave
from smalti.order.window import EpochPlan, GlobalOrder, Ids, plan_epoch

MAX_EPOCH = (1 << 62) - 1
"""Samples that an epoch may take, inclusive: places and their sums stay numbers of 64 bits."""
SAMPLINGS = ("balanced", "fixed")
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")
_BATCHES, _REST, _WITHIN = range(3)  # uses of `Purpose.BATCHES` keys


@dataclass(frozen=True)
class StreamWeight:
    """The weight of one stream, as given by the user: one of the fields, or none."""

    proportion: float | None = None
    """Share of the epoch, from 0; all streams have one or none has. They need not sum to 1."""
    repeat: float | None = None
    """Times that the stream is read, from 0."""
    choose: int | None = None
    """Samples that are read, from 0."""

    def __post_init__(self) -> None:
        given = [name for name in WEIGHT_NAMES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ArgumentError(
                f"at most one of {', '.join(WEIGHT_NAMES)} may be given for a stream, found {', '.join(given)}."
            )
        for name in given:
            if not getattr(self, name) >= 0:
                raise ArgumentError(f"`{name}` must be at least 0, found {getattr(self, name)}.")

    @classmethod
    def of_saved(cls, weight: Weight) -> "StreamWeight":
        """Return the weight that cursors hold."""
        return cls() if weight is None else cls(**dict([weight]))  # type: ignore[arg-type]  # a field's name and value

    @property
    def saved(self) -> Weight:
        """The weight as cursors hold it."""
        given = [(name, getattr(self, name)) for name in WEIGHT_NAMES if getattr(self, name) is not None]
        return next(((name, int(value) if name == "choose" else float(value)) for name, value in given), None)


def are_relative(weights: Sequence[StreamWeight]) -> bool:
    """Return whether the weights are proportions.

    Raises:
        ValueError: some are and some are not.
    """
    relative = [weight.proportion is not None for weight in weights]
    if any(relative) and not all(relative):
        raise ArgumentError(
            "`proportion` must be given for all streams or for none: it is relative, `repeat` and `choose` are "
            f"absolute; found it for {sum(relative)} of {len(relative)} streams."
        )
    return all(relative)


def check_methods(mixture: Mixture) -> None:
    """Check the methods of drawing and batching of a mixture, and the sizes of its batches.

    Raises:
        ValueError: this release knows no such method, or batches of streams have no size.
        WorldMismatch: a global batch is no multiple of the batch of one rank.
    """
    check_choice("sampling_method", mixture.sampling_method, SAMPLINGS)
    check_choice("batching_method", mixture.batching_method, BATCHINGS)
    method, whole, local = mixture.batching_method, mixture.global_batch, mixture.local_batch
    if method == "random":
        return
    if whole is None:
        raise ArgumentError(f"`global_batch` must be given with batching {method!r}, found None.")
    if method != "device_per_stream":
        return
    if local is None:
        raise ArgumentError(f"`local_batch` must be given with batching {method!r}, found None.")
    if whole % local:
        raise WorldMismatch(
            f"batching {method!r}: a global batch of {whole} cannot be divided into batches of {local}; choose a "
            "global batch that is a multiple of the local one.",
            global_batch=whole,
            local_batch=local,
        )


def samples_taken(
    totals: Sequence[int], weights: Sequence[StreamWeight], *, epoch_size: int | None, seed: int
) -> list[int]:
    """Return the samples that an epoch takes of each stream. Pure, and the same in every epoch.

    Args:
        totals: Samples of each stream.
        weights: Weight of each stream.
        epoch_size: Samples of an epoch, with proportions or without any weight; None for as many as there are.
        seed: Base seed: it chooses the streams that get one more sample by rounding.

    Raises:
        ValueError: relative and absolute weights are mixed, `epoch_size` is given with absolute ones, a weight is not
            finite, samples are to be taken of a stream that has none, or more than `MAX_EPOCH` altogether.
    """
    is_relative = are_relative(weights)
    if not is_relative and epoch_size is not None and any(weight != StreamWeight() for weight in weights):
        raise ArgumentError(f"`epoch_size` must not be given with `repeat` or `choose`, found {epoch_size}.")
    parts = parts_of(totals, weights)
    if is_relative or epoch_size is not None:
        taken = shared_out(sum(totals) if epoch_size is None else epoch_size, parts, seed)
    else:
        taken = [int(part) for part in parts]
    for stream, (total, count) in enumerate(zip(totals, taken, strict=True)):
        check_not_empty(stream, count, total)
    if sum(taken) > MAX_EPOCH:
        raise ArgumentError(
            f"the streams' weights take {sum(taken)} samples in an epoch, expected at most {MAX_EPOCH}: give smaller "
            "ones, and read more epochs."
        )
    return taken


def check_not_empty(stream: int, count: int, total: int) -> None:
    """Check that `count` samples can be taken of a stream that has `total`.

    Raises:
        ValueError: the stream has none.
    """
    if count and not total:
        raise ArgumentError(f"stream {stream} has no samples, and {count} are to be taken of it: leave it out.")


def parts_of(totals: Sequence[int], weights: Sequence[StreamWeight]) -> list[Fraction]:
    """Return the shares by which an epoch, or the rest of one, is divided: proportions, or else samples."""
    return [_part(total, weight) for total, weight in zip(totals, weights, strict=True)]


def _part(total: int, weight: StreamWeight) -> Fraction:
    if weight.proportion is not None:
        return _written("proportion", weight.proportion)
    if weight.choose is not None:
        return Fraction(weight.choose)
    return Fraction(total if weight.repeat is None else math.floor(_written("repeat", weight.repeat) * total))


def shared_out(samples: int, parts: Sequence[Fraction], seed: int) -> list[int]:
    """Divide samples in proportion to `parts`: each share is rounded down, and the remainder distributed by key."""
    whole = sum(parts)
    if not whole:
        raise ArgumentError("the streams' weights must sum to more than 0: all streams are empty, or have weight 0.")
    exact = [samples * part / whole for part in parts]
    taken = [math.floor(share) for share in exact]
    lacking = samples - sum(taken)
    order = keyed_permutation(len(parts), Purpose.SHORTFALL, seed=seed).tolist()
    for stream in [stream for stream in order if exact[stream] != taken[stream]][:lacking]:
        taken[stream] += 1
    return taken


def _written(name: str, value: float) -> Fraction:
    """Return the decimal number that the user wrote, not the float nearest to it."""
    if not math.isfinite(value):
        raise ArgumentError(f"`{name}` must be finite, found {value}.")
    return Fraction(repr(float(value)))


@dataclass(frozen=True, eq=False)
class OrderedUnits:
    """Samples that are ordered together: those of one stream, or of all streams."""

    order: EpochPlan
    """The order of the units' samples."""
    units: Units
    """The units that hold the samples."""

    def ids_at(self, places: Ids) -> Ids:
        """Return sample ids at the given places of the order."""
        return self.units.sample_ids(self.order.ids_at(places))

    def spans_of_host(self, host: int, num_hosts: int) -> tuple[Ids, Ids, Ids] | None:
        """As `GlobalOrder.spans_of_host`, if these are all samples of the epoch."""
        spans = self.order.spans_of_host(host, num_hosts)
        if spans is None:
            return None
        places, begins, ends = spans
        shards = self.units.shards[np.searchsorted(self.units.ends, places, side="right")]
        return self.units.first_ids[shards], begins, ends


class MixturePlan(GlobalOrder):
    """The global order of one epoch: `len(plan)` sample ids, any part of which can be looked up alone.

    Sample ids count over all streams laid end to end; a sample of which the epoch takes several copies occurs that
    often. Memory is O(units) plus the windows in use. Thread-safe, as `EpochPlan`.
    """

    def __init__(self, parts: Sequence[OrderedUnits], layout: Layout | None, stream_samples: Sequence[int]) -> None:
        self.stream_samples = tuple(stream_samples)
        """Samples that the epoch takes of each stream."""
        self.num_batched = sum(stream_samples) if layout is None else layout.num_batched
        """Positions [0, num_batched) hold batches as the batching method defines them; then follow the remaining
        samples of the streams."""
        self._parts = parts
        self._layout = layout

    def __len__(self) -> int:
        return sum(self.stream_samples)

    def spans_of_host(self, host: int, num_hosts: int) -> tuple[Ids, Ids, Ids] | None:
        """As `GlobalOrder.spans_of_host`; None for batches of streams, of which each has an order of its own."""
        return self._parts[0].spans_of_host(host, num_hosts) if self._layout is None else None

    def ids_at(self, positions: Ids) -> Ids:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        flat = positions.reshape(-1)
        if self._layout is None:
            return self._parts[0].ids_at(flat).reshape(positions.shape)
        streams, places = self._layout.locate(flat)
        ids = np.empty(flat.size, dtype=np.int64)
        for stream in np.unique(streams).tolist():
            here = streams == stream
            ids[here] = self._parts[stream].ids_at(places[here])
        return ids.reshape(positions.shape)


@dataclass(frozen=True)
class Window:
    """Options of the `window` order of samples that are ordered together."""

    seed: int
    epoch: int
    canonical_nodes: int
    block_size: int | None
    shuffle: bool
    affinity: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("seed", 0), ("epoch", 0), ("canonical_nodes", 1)):
            value = getattr(self, name)
            if not low <= value < 1 << 63:
                raise ArgumentError(f"`{name}` must lie in [{low}, 2^63), found {value}.")

    def order(self, units: Units, seed: int) -> OrderedUnits:
        """Return units with their order."""
        order = plan_epoch(
            units.sizes,
            seed=seed,
            epoch=self.epoch,
            canonical_nodes=self.canonical_nodes,
            shuffle_block_size=self.block_size,
            shuffle=self.shuffle,
            affinity=self.affinity,
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
    mixture: Mixture,
    *,
    draw_seed: int,
) -> MixturePlan:
    """Return the order of an epoch that takes the given numbers of samples of each stream.

    Args:
        sizes: of every stream, the samples in each of its shards.
        taken: of every stream, the samples to take.
        drawn: of every stream, the samples that were taken before; ignored by `fixed` sampling.
        window: options of the order.
        mixture: how samples are drawn and batched.
        draw_seed: the run's seed, for each stream's circle; the order's own seed may differ.
    """
    totals = [int(stream.sum()) for stream in sizes]
    units = []
    for number, stream in enumerate(sizes):
        first = drawn[number] if mixture.sampling_method == "balanced" else 0
        drawing = Drawing(draw_seed, first, number, mixture.sampling_granularity)
        units.append(units_of(stream, taken[number], sum(totals[:number]), drawing))
    # The batching method has no effect on a single stream.
    if mixture.batching_method == "random" or sum(count > 0 for count in taken) < 2:
        return MixturePlan([window.order(joined(units), window.seed)], None, taken)
    seeds = (raw_keys(len(sizes), Purpose.STREAMS, seed=window.seed) >> np.uint64(1)).tolist()
    parts = [window.order(part, own_seed) for part, own_seed in zip(units, seeds, strict=True)]
    return MixturePlan(parts, _layout(np.array(taken, dtype=np.int64), window, mixture), taken)


def _layout(taken: Ids, window: Window, mixture: Mixture) -> Layout:
    batches = _batches(taken, window, mixture)
    rest = taken - batches.used
    if int(rest.max()) > MAX_LENGTH:
        raise ArgumentError(
            f"a stream must have at most {MAX_LENGTH} samples beyond whole batches, found {rest.max()}."
        )
    return Layout(batches, Weave(rest, window.keys(taken.size, _REST)))


def _batches(taken: Ids, window: Window, mixture: Mixture) -> Batches:
    global_batch, local_batch = mixture.global_batch or 0, mixture.local_batch or 0
    if mixture.batching_method == "stratified":
        return stratified(taken, global_batch, window.keys(1, _WITHIN) if window.shuffle else None)
    batch = local_batch if mixture.batching_method == "device_per_stream" else global_batch
    whole = taken // batch
    if int(whole.max()) > MAX_LENGTH:
        raise ArgumentError(f"a stream must give at most {MAX_LENGTH} batches to an epoch, found {whole.max()}.")
    return OneStream(Weave(whole, window.keys(taken.size, _BATCHES)), batch, global_batch // batch)


def checked_sizes(shard_sizes: Sequence[Sequence[int] | NDArray[Any]]) -> list[Ids]:
    """Return the shard sizes of every stream, checked; int64, each of shape (shards,).

    Raises:
        ValueError: there is no stream, or a size is no whole number or out of range.
    """
    if not shard_sizes:
        raise ArgumentError("`streams` must hold at least one stream, found none.")
    return [_checked(number, sizes) for number, sizes in enumerate(shard_sizes)]


def _checked(number: int, shard_sizes: Sequence[int] | NDArray[Any]) -> Ids:
    sizes = np.asarray(shard_sizes)
    if sizes.ndim != 1 or not (sizes.size == 0 or np.issubdtype(sizes.dtype, np.integer)):
        raise ArgumentError(
            f"`shard_sizes` of stream {number} must be a row of whole numbers, found {sizes.dtype} of shape "
            f"{sizes.shape}."
        )
    outside = np.flatnonzero((sizes < 0) | (sizes > MAX_LENGTH))
    if outside.size:
        raise ArgumentError(
            f"`shard_sizes` of stream {number} must lie in [0, {MAX_LENGTH}], found {sizes[outside[0]]} for shard "
            f"{outside[0]}."
        )
    return sizes.astype(np.int64)
