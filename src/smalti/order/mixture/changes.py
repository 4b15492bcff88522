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
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
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
    checked_sizes,
    parts_of,
    plan_shares,
    samples_taken,
    shared_out,
)
from smalti.order.window import GlobalOrder, Ids, Positions


@dataclass(frozen=True)
class _Stretch:
    """The positions of one epoch that one weighting fills, from `begin` on."""

    begin: int
    taken: tuple[int, ...]
    drawn: tuple[int, ...]
    """Samples of each stream that were planned before."""


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
        self._sizes, self._mixture, self._seed = checked_sizes(shard_sizes), mixture, seed
        self._places = [(each.epoch, each.samples) for each in mixture.history]
        self._weights = [tuple(map(StreamWeight.of_saved, each.values)) for each in mixture.history]
        self._check_sizes()

    def epoch_size(self, epoch: int) -> int:
        """Return the samples of an epoch."""
        return sum(self._taken[self._base(epoch)])

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
        return ChangedPlan({stretch.begin: partial(plan, stretch) for stretch in stretches}, self.epoch_size(epoch))

    def _planned(self, stretch: _Stretch, window: Window) -> MixturePlan:
        if stretch.begin:
            # Weights that return to former values must not repeat the order that was read with them.
            own = raw_keys(1, Purpose.CHANGES, seed=self._seed, epoch=window.epoch, window=stretch.begin)
            window = replace(window, seed=int(own[0] >> np.uint64(1)))
        return plan_shares(self._sizes, stretch.taken, stretch.drawn, window, self._mixture, draw_seed=self._seed)

    def _stretches(self, epoch: int) -> list[_Stretch]:
        base = self._base(epoch)
        taken, drawn = self._taken[base], self._drawn_before(epoch)
        stretches = [_Stretch(0, tuple(taken), tuple(drawn))]
        size = self.epoch_size(epoch)
        for number in range(base + 1, len(self._places)):
            its_epoch, begin = self._places[number]
            if its_epoch != epoch:
                break
            drawn = [before + count for before, count in zip(drawn, taken, strict=True)]
            taken = self._rest(number, size - begin)
            stretches.append(_Stretch(begin, tuple(taken), tuple(drawn)))
        return stretches

    def _drawn_before(self, epoch: int) -> list[int]:
        """Return the samples of each stream that earlier epochs were planned with; O(changes)."""
        drawn = [0] * len(self._sizes)

        def add(taken: Sequence[int], times: int) -> None:
            for stream, count in enumerate(taken):
                drawn[stream] += times * count

        for number, (its_epoch, begin) in enumerate(self._places):
            if its_epoch >= epoch:
                break
            if begin:
                add(self._rest(number, self.epoch_size(its_epoch) - begin), 1)
            add(self._taken[number], self._end_of(number, epoch) - its_epoch - (begin > 0))
        return drawn

    def _end_of(self, number: int, epoch: int) -> int:
        """Return the epoch, at most this one, before which the own epochs of some weights end."""
        if number + 1 == len(self._places):
            return epoch
        its_epoch, begin = self._places[number + 1]
        return min(epoch, its_epoch + (begin > 0))

    def _base(self, epoch: int) -> int:
        """Return the number of the weights that apply at an epoch's start."""
        return bisect_right(self._places, (epoch, 0)) - 1

    @cached_property
    def _totals(self) -> list[int]:
        return [int(stream.sum()) for stream in self._sizes]

    @cached_property
    def _taken(self) -> list[list[int]]:
        """By number of the weights, the samples of each stream that a whole epoch takes."""
        return [
            samples_taken(self._totals, weights, epoch_size=each.epoch_size, seed=self._seed)
            for weights, each in zip(self._weights, self._mixture.history, strict=True)
        ]

    def _rest(self, number: int, samples: int) -> list[int]:
        return shared_out(samples, parts_of(self._totals, self._weights[number]), self._seed)

    def _check_sizes(self) -> None:
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
