"""Mixtures whose weights change during a run: pure, and determined by the list of changes.

    epoch 0  |========= w0 ==========|
    epoch 1  |==== w0 ====|=== w1 ===|      w1 from position 600 of epoch 1 on
    epoch 2  |========= w1 ==========|

The rest of an epoch is divided by the new weights, and ordered as a mixture of its own. Each stream continues where the
arcs drawn before ended: no sample is drawn a second time before all of the stream were drawn. Samples that the old
weights had planned for the rest of the epoch are not read; they are drawn again on the circle's next turn.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.cursor import Mixture
from smalti.errors import ArgumentError, CursorError
from smalti.order.keys import Purpose, raw_keys
from smalti.order.mixture.planning import (
    MixturePlan,
    StreamWeight,
    Window,
    check_methods,
    parts_of,
    samples_taken,
    shared_out,
)
from smalti.order.mixture.weave import MAX_LENGTH, OneStream, Stratified, Weave, joined, portions_of, units_of
from smalti.order.window import GlobalOrder, Ids, Positions, checked_sizes

_BATCHES, _REST, _WITHIN = range(3)  # uses of `Purpose.BATCHES` keys
_Stretch = tuple[int, list[int], list[int]]
"""The positions of one epoch that one weighting fills: the first of them, the samples of each stream that it takes, and
those that were planned before."""


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
        window = Window(self._seed, epoch, canonical_nodes, shuffle_block_size, shuffle, affinity)
        stretches = self._stretches(epoch)
        if len(stretches) == 1:
            return self._planned(stretches[0], window)
        plan = partial(self._planned, window=window)
        return ChangedPlan({stretch[0]: partial(plan, stretch) for stretch in stretches}, self.epoch_size(epoch))

    def _planned(self, stretch: _Stretch, window: Window) -> MixturePlan:
        """Return the order of the samples that a stretch takes of each stream."""
        begin, taken, drawn = stretch
        if begin:
            # Weights that return to former values must not repeat the order that was read with them.
            own = raw_keys(1, Purpose.CHANGES, seed=self._seed, epoch=window.epoch, window=begin)
            window = replace(window, seed=int(own[0] >> np.uint64(1)))
        mixture, units = self._mixture, []
        for number, stream in enumerate(self._sizes):
            first = drawn[number] if mixture.sampling_method == "balanced" else 0
            first_id, granularity = sum(self._totals[:number]), mixture.sampling_granularity
            units.append(units_of(stream, taken[number], first_id, number, self._seed, first, granularity))
        # The batching method has no effect on a single stream.
        if mixture.batching_method == "random" or sum(count > 0 for count in taken) < 2:
            whole = joined(units)
            return MixturePlan([(window.order(whole.sizes, window.seed), whole)], taken)
        seeds = (raw_keys(len(units), Purpose.STREAMS, seed=window.seed) >> np.uint64(1)).tolist()
        parts = [(window.order(part.sizes, own_seed), part) for part, own_seed in zip(units, seeds, strict=True)]
        batches = self._batches(taken, window)
        rest = np.array(taken, dtype=np.int64) - batches.used
        if int(rest.max()) > MAX_LENGTH:
            raise ArgumentError(
                f"a stream must have at most {MAX_LENGTH} samples beyond whole batches, found {rest.max()}."
            )
        return MixturePlan(parts, taken, (batches, Weave(rest, window.keys(rest.size, _REST))))

    def _batches(self, taken: list[int], window: Window) -> Stratified | OneStream:
        method, global_batch = self._mixture.batching_method, self._mixture.global_batch or 0
        if method == "stratified":  # until one stream is used up
            portions = portions_of(taken, global_batch)
            steps = min(count // portion for count, portion in zip(taken, portions, strict=True) if portion)
            key = window.keys(1, _WITHIN) if window.shuffle else None
            return Stratified(np.array(portions, dtype=np.int64), steps, key)
        batch = self._mixture.local_batch or 0 if method == "device_per_stream" else global_batch
        whole = np.array(taken, dtype=np.int64) // batch
        if int(whole.max()) > MAX_LENGTH:
            raise ArgumentError(f"a stream must give at most {MAX_LENGTH} batches to an epoch, found {whole.max()}.")
        return OneStream(Weave(whole, window.keys(whole.size, _BATCHES)), batch, global_batch // batch)

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
        # Planned when first needed: a resumed run reads only the last stretches.
        self._plans, self._size = [cache(plan) for plan in plans.values()], size
        self._begins = np.array(list(plans), dtype=np.int64)

    def __len__(self) -> int:
        return self._size

    def ids_at(self, positions: Positions) -> Positions:
        """Return sample ids at the given positions, each in [0, len(plan)); int64, the shape of `positions`."""
        stretches: Ids = np.searchsorted(self._begins, positions, side="right") - 1
        ids = np.empty(positions.shape, dtype=np.int64)
        for stretch in np.unique(stretches).tolist():
            here = stretches == stretch
            ids[here] = self._plans[stretch]().ids_at(positions[here] - self._begins[stretch])
        return ids
