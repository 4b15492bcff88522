"""The samples that an epoch takes of each stream, by the streams' weights, and the order of an epoch, a `MixturePlan`.

`ChangingMixture` returns the epochs of a run.

The number of samples that each stream gives to an epoch is exact arithmetic on the weights as written. `repeat=0.7` of
10 samples is 7, although the float nearest to 0.7 is below it. Proportions divide the epoch exactly: each stream gets
its share rounded down, and some of the streams with a fraction left, chosen by key, get one more.

Weights may change during a run. What is read then is determined by the list of changes:

    epoch 0  |========= w0 ==========|
    epoch 1  |==== w0 ====|=== w1 ===|      w1 from position 600 of epoch 1 on
    epoch 2  |========= w1 ==========|

The rest of an epoch is divided by the new weights, and ordered as a mixture of its own. Each stream continues where the
arcs drawn before ended: no sample is drawn a second time before all of the stream were drawn. Samples that the old
weights had planned for the rest of the epoch are not read; they are drawn again on the circle's next turn.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.attributes import check_choice
from smalti.cursor import WEIGHT_NAMES, Mixture, Weight
from smalti.errors import ArgumentError, CursorError, WorldMismatch
from smalti.order.keys import Purpose, keyed_permutation, raw_keys
from smalti.order.mixture.weave import MAX_LENGTH, OneStream, Stratified, Units, Weave, joined, portions_of, units_of
from smalti.order.window import EpochPlan, GlobalOrder, Ids, check_range, checked_sizes, plan_epoch

MIXTURE_VERSION = 1
"""Version of what an epoch takes of each stream, and of its batches. The order of samples is versioned as `window`."""
MAX_EPOCH = (1 << 62) - 1
"""Samples that an epoch may take, inclusive: places and their sums stay numbers of 64 bits."""
SAMPLINGS = ("balanced", "fixed")
BATCHINGS = ("random", "stratified", "per_stream", "device_per_stream")
_BATCHES, _REST, _WITHIN = range(3)  # uses of `Purpose.BATCHES` keys
_Stretch = tuple[int, list[int], list[int]]
"""The positions of one epoch that one weighting fills: the first of them, the samples of each stream that it takes, and
those that were planned before."""


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


class ChangingMixture:
    """The epochs of a run over several streams, by shard sizes and the mixture. Pure.

    Args:
        shard_sizes: of every stream, the samples in each of its shards, in stored order.
        mixture: the weights over the run, and how streams are drawn from and batched.
        seed: base seed of the run.

    Raises:
        ValueError: methods, sizes or weights are out of range or contradict each other.
        CursorError: weights that change inside an epoch would change its size.
    """

    def __init__(self, shard_sizes: Sequence[Sequence[int] | NDArray[Any]], mixture: Mixture, *, seed: int) -> None:
        check_methods(mixture)
        if not shard_sizes:
            raise ArgumentError("`streams` must hold at least one stream, found none.")
        self._sizes = [
            checked_sizes(sizes, what=f"`shard_sizes` of stream {number}", most=MAX_LENGTH)
            for number, sizes in enumerate(shard_sizes)
        ]
        self._mixture, self._seed = mixture, seed
        self._totals = [int(stream.sum()) for stream in self._sizes]
        self._places = [(each.epoch, each.samples) for each in mixture.history]
        self._weights = [tuple(map(StreamWeight.of_saved, each.values)) for each in mixture.history]
        # By number of the weights, the samples of each stream that a whole epoch takes.
        self._taken = [
            samples_taken(self._totals, weights, epoch_size=each.epoch_size, seed=seed)
            for weights, each in zip(self._weights, mixture.history, strict=True)
        ]
        for number, (epoch, begin) in enumerate(self._places):
            if not begin:
                continue
            size, new = self.epoch_size(epoch), sum(self._taken[number])
            if new != size:
                raise CursorError(
                    f"weights that change at sample {begin} of epoch {epoch}: an epoch has {size} samples "
                    f"with the old ones and {new} with the new ones. Inside an epoch its size must stay: give "
                    f"`proportion` and `epoch_size={size}`, or change weights at an epoch's start.",
                    saved=size,
                    found=new,
                )
            if begin >= size:
                raise ArgumentError(f"weights change at position {begin} of an epoch of {size}.")

    def epoch_size(self, epoch: int) -> int:
        """Return the samples of an epoch."""
        return sum(self.samples_of(epoch))

    def samples_of(self, epoch: int) -> tuple[int, ...]:
        """Return the samples of each stream that an epoch takes with the weights at its start."""
        return tuple(self._taken[self._base(epoch)])

    def plan(
        self,
        epoch: int,
        *,
        canonical_nodes: int,
        shuffle_block_size: int | None = None,
        shuffle: bool = True,
        affinity: float = 1.0,
    ) -> GlobalOrder:
        """Return the global order of one epoch, with the samples that the weights take of each stream.

        With `random` batching, a stretch without a change is `plan_epoch` over the copies and parts of shards that it
        takes. With `shuffle=False` streams, copies and shards come in stored order, and a drawn part in the order of
        the draw.

        Raises:
            ValueError: an argument is out of range.
            WorldMismatch: a stream is too small a part of the mixture to be in each batch of `stratified`.
        """
        check_range(0, seed=self._seed, epoch=epoch)
        check_range(1, canonical_nodes=canonical_nodes)
        order = partial(
            plan_epoch,
            epoch=epoch,
            canonical_nodes=canonical_nodes,
            shuffle_block_size=shuffle_block_size,
            shuffle=shuffle,
            affinity=affinity,
        )
        # Planned when first needed: a resumed run reads only the last stretches.
        plans = {
            stretch[0]: cache(partial(self._planned, stretch, epoch, order, shuffle=shuffle))
            for stretch in self._stretches(epoch)
        }
        return plans[0]() if len(plans) == 1 else ChangedPlan(plans, self.epoch_size(epoch))

    def _planned(self, stretch: _Stretch, epoch: int, order: Callable[..., EpochPlan], *, shuffle: bool) -> MixturePlan:
        """Return the order of the samples that a stretch takes of each stream; `order` plans units of given sizes."""
        begin, taken, drawn = stretch
        mixture, seed, units = self._mixture, self._seed, []
        if begin:
            # Weights that return to former values must not repeat the order that was read with them.
            seed = int(raw_keys(1, Purpose.CHANGES, seed=seed, epoch=epoch, window=begin)[0] >> np.uint64(1))
        for number, stream in enumerate(self._sizes):
            first = drawn[number] if mixture.sampling_method == "balanced" else 0
            first_id, granularity = sum(self._totals[:number]), mixture.sampling_granularity
            units.append(units_of(stream, taken[number], first_id, number, self._seed, first, granularity))
        # The batching method has no effect on a single stream.
        if mixture.batching_method == "random" or sum(count > 0 for count in taken) < 2:
            whole = joined(units)
            return MixturePlan([(order(whole.sizes, seed=seed), whole)], taken)
        seeds = (raw_keys(len(units), Purpose.STREAMS, seed=seed) >> np.uint64(1)).tolist()
        parts = [(order(part.sizes, seed=own_seed), part) for part, own_seed in zip(units, seeds, strict=True)]
        keys = partial(raw_keys, purpose=Purpose.BATCHES, seed=seed, epoch=epoch)
        batches = self._batches(taken, keys, shuffle=shuffle)
        rest = np.array(taken, dtype=np.int64) - batches.used
        if int(rest.max()) > MAX_LENGTH:
            raise ArgumentError(
                f"a stream must have at most {MAX_LENGTH} samples beyond whole batches, found {rest.max()}."
            )
        return MixturePlan(parts, taken, (batches, Weave(rest, keys(rest.size, run=_REST))))

    def _batches(
        self, taken: list[int], keys: Callable[..., NDArray[np.uint64]], *, shuffle: bool
    ) -> Stratified | OneStream:
        method, global_batch = self._mixture.batching_method, self._mixture.global_batch or 0
        if method == "stratified":  # until one stream is used up
            portions = portions_of(taken, global_batch)
            steps = min(count // portion for count, portion in zip(taken, portions, strict=True) if portion)
            key = keys(1, run=_WITHIN) if shuffle else None
            return Stratified(np.array(portions, dtype=np.int64), steps, key)
        batch = self._mixture.local_batch or 0 if method == "device_per_stream" else global_batch
        whole = np.array(taken, dtype=np.int64) // batch
        if int(whole.max()) > MAX_LENGTH:
            raise ArgumentError(f"a stream must give at most {MAX_LENGTH} batches to an epoch, found {whole.max()}.")
        return OneStream(Weave(whole, keys(whole.size, run=_BATCHES)), batch, global_batch // batch)

    def _stretches(self, epoch: int) -> list[_Stretch]:
        base, size = self._base(epoch), self.epoch_size(epoch)
        taken, drawn = self._taken[base], self._drawn_before(epoch)
        stretches = [(0, taken, drawn)]
        for number in range(base + 1, len(self._places)):
            its_epoch, begin = self._places[number]
            if its_epoch != epoch:
                break
            drawn = [before + count for before, count in zip(drawn, taken, strict=True)]
            taken = self._rest(number, size - begin)
            stretches.append((begin, taken, drawn))
        return stretches

    def _drawn_before(self, epoch: int) -> list[int]:
        """Return the samples of each stream that earlier epochs were planned with; O(changes)."""
        drawn = [0] * len(self._sizes)
        for number, (its_epoch, begin) in enumerate(self._places):
            if its_epoch >= epoch:
                break
            rest = self._rest(number, self.epoch_size(its_epoch) - begin) if begin else [0] * len(drawn)
            end = epoch  # before which the own epochs of these weights end
            if number + 1 < len(self._places):
                next_epoch, next_begin = self._places[number + 1]
                end = min(epoch, next_epoch + (next_begin > 0))
            times = end - its_epoch - (begin > 0)
            counts = zip(drawn, rest, self._taken[number], strict=True)
            drawn = [before + part + times * whole for before, part, whole in counts]
        return drawn

    def _base(self, epoch: int) -> int:
        """Return the number of the weights that apply at an epoch's start."""
        return bisect_right(self._places, (epoch, 0)) - 1

    def _rest(self, number: int, samples: int) -> list[int]:
        return shared_out(samples, parts_of(self._totals, self._weights[number]), self._seed)


class ChangedPlan(GlobalOrder):
    """One epoch in which weights changed: the orders of its stretches, one after the other."""

    def __init__(self, plans: Mapping[int, Callable[[], MixturePlan]], size: int) -> None:
        """Take the plans by the position at which each begins; they are made when they are first needed."""
        self._plans, self._size = list(plans.values()), size
        self._begins = np.array(list(plans), dtype=np.int64)

    def __len__(self) -> int:
        return self._size

    def ids_at(self, positions: Ids) -> Ids:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        stretches: Ids = np.searchsorted(self._begins, positions, side="right") - 1
        ids = np.empty(positions.shape, dtype=np.int64)
        for stretch in np.unique(stretches).tolist():
            here = stretches == stretch
            ids[here] = self._plans[stretch]().ids_at(positions[here] - self._begins[stretch])
        return ids
