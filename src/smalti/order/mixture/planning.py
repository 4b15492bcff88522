"""The samples that an epoch takes of each stream, by the streams' weights, and the order of an epoch, a `MixturePlan`.

The number of samples that each stream gives to an epoch is exact arithmetic on the weights as written. `repeat=0.7` of
10 samples is 7, although the float nearest to 0.7 is below it. Proportions divide the epoch exactly: each stream gets
its share rounded down, and some of the streams with a fraction left, chosen by key, get one more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.cursor import WEIGHT_NAMES, Mixture, Weight
from smalti.errors import ArgumentError, WorldMismatch
from smalti.order.keys import Purpose, keyed_permutation, raw_keys
from smalti.order.mixture.weave import OneStream, Stratified, Units, Weave
from smalti.order.window import EpochPlan, GlobalOrder, Ids, check_range, plan_epoch

MIXTURE_VERSION = 1
"""Version of what an epoch takes of each stream, and of its batches. The order of samples is versioned as `window`."""
MAX_EPOCH = (1 << 62) - 1
"""Samples that an epoch may take, inclusive: places and their sums stay numbers of 64 bits."""
SAMPLINGS = ("balanced", "fixed")
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")


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
        if count and not total:
            raise ArgumentError(f"stream {stream} has no samples, and {count} are to be taken of it: leave it out.")
    if sum(taken) > MAX_EPOCH:
        raise ArgumentError(
            f"the streams' weights take {sum(taken)} samples in an epoch, expected at most {MAX_EPOCH}: give smaller "
            "ones, and read more epochs."
        )
    return taken


def parts_of(totals: Sequence[int], weights: Sequence[StreamWeight]) -> list[Fraction]:
    """Return the shares by which an epoch, or the rest of one, is divided: proportions, or else samples."""
    parts = []
    for total, weight in zip(totals, weights, strict=True):
        part = Fraction(total if weight.choose is None else weight.choose)
        if weight.proportion is not None:
            part = _written("proportion", weight.proportion)
        elif weight.repeat is not None:
            part = Fraction(math.floor(_written("repeat", weight.repeat) * total))
        parts.append(part)
    return parts


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


class MixturePlan(GlobalOrder):
    """The global order of one epoch: `len(plan)` sample ids, any part of which can be looked up alone.

    Sample ids count over all streams laid end to end; a sample of which the epoch takes several copies occurs that
    often. Memory is O(units) plus the windows in use. Thread-safe, as `EpochPlan`.

    Args:
        parts: Units that are ordered together, those of each stream or of all streams, and the order of their samples.
        stream_samples: Samples that the epoch takes of each stream.
        batching: Whole batches, and the streams' samples that remain after them; None where all streams are one part.
    """

    def __init__(
        self,
        parts: Sequence[tuple[EpochPlan, Units]],
        stream_samples: Sequence[int],
        batching: tuple[Stratified | OneStream, Weave] | None = None,
    ) -> None:
        self.stream_samples = tuple(stream_samples)
        """Samples that the epoch takes of each stream."""
        self.num_batched = sum(stream_samples) if batching is None else int(batching[0].used.sum())
        """Positions [0, num_batched) hold batches as the batching method defines them; then follow the remaining
        samples of the streams."""
        self._parts, self._batching = parts, batching

    def __len__(self) -> int:
        return sum(self.stream_samples)

    def spans_of_host(self, host: int, num_hosts: int) -> tuple[Ids, Ids, Ids] | None:
        """As `GlobalOrder.spans_of_host`; None for batches of streams, of which each has an order of its own."""
        order, units = self._parts[0]
        spans = order.spans_of_host(host, num_hosts) if self._batching is None else None
        if spans is None:
            return None
        places, begins, ends = spans
        shards = units.shards[np.searchsorted(units.ends, places, side="right")]
        return units.first_ids[shards], begins, ends

    def ids_at(self, positions: Ids) -> Ids:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        flat = positions.reshape(-1)
        if self._batching is None:
            order, units = self._parts[0]
            return units.sample_ids(order.ids_at(flat)).reshape(positions.shape)
        batches, rest = self._batching
        # The stream of each position, and the place in that stream's order.
        streams, places = np.empty_like(flat), np.empty_like(flat)
        late = flat >= self.num_batched
        if not late.all():
            streams[~late], places[~late] = batches.locate(flat[~late])
        if late.any():
            stream, place = rest.locate(flat[late] - self.num_batched)
            streams[late], places[late] = stream, place + batches.used[stream]
        ids = np.empty(flat.size, dtype=np.int64)
        for number in np.unique(streams).tolist():
            here = streams == number
            order, units = self._parts[number]
            ids[here] = units.sample_ids(order.ids_at(places[here]))
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
        check_range(0, seed=self.seed, epoch=self.epoch)
        check_range(1, canonical_nodes=self.canonical_nodes)

    def order(self, sizes: Ids, seed: int) -> EpochPlan:
        """Return the order of units of these sizes."""
        return plan_epoch(
            sizes,
            seed=seed,
            epoch=self.epoch,
            canonical_nodes=self.canonical_nodes,
            shuffle_block_size=self.block_size,
            shuffle=self.shuffle,
            affinity=self.affinity,
        )

    def keys(self, count: int, use: int) -> NDArray[np.uint64]:
        """Return keys of the epoch for one use in batches."""
        return raw_keys(count, Purpose.BATCHES, seed=self.seed, epoch=self.epoch, run=use)
