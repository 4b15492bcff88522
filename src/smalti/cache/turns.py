"""Who needs what first: the readers of a host that go through one order side by side, some steps apart. Pure.

Intended behaviour; anything else is a bug:
1. A place is a step and, within it, a shard. What a reader needs at places before its own is over for that reader, and
   for nobody else: what it has read already may be what a slower one reads next.
2. Over the steps that readers are apart, each one's own needs are told one by one; behind those, all that any needs.
3. Two readers of one seat are two jobs that read the same order: what either needs counts, and nobody is waited for.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from smalti.cache.agenda import NEVER, Agenda

Ints = NDArray[np.int64]
Place = tuple[int, int]
"""A step, and the lowest shard of it that is not over; -1 for one who does not tell, and may be over with some."""
MOST_APART = 256
"""Steps between readers that are looked at: who is further away does not take its steps with us."""
_AT_ONCE = 64  # steps that are looked up together


@dataclass(frozen=True)
class Seat:
    """Which reader of a host's this is."""

    rank: int
    """Of the host."""
    worker: int = 0
    """Of the rank; it reads every step t with t mod `num_workers` equal to it."""
    num_workers: int = 1


@dataclass(frozen=True, eq=False)
class Side:
    """A reader among those of its host that go through the same order."""

    seat: Seat
    needed: Callable[[int, int], Sequence[Sequence[Ints]]]
    """For each step of [first, stop) by rank of the host the shards that it needs, in any order."""
    is_single: bool = True
    """Whether one thread reads, so that its place within a step is known."""


class Turns:
    """The needs of all readers of one order, near the steps that they are at. Not thread-safe."""

    def __init__(self, side: Side, agenda: Agenda) -> None:
        self.side = side
        self._agenda = agenda
        self._steps: dict[int, tuple[Ints, Ints]] = {}  # by step: ranks, shards

    def standing(self, places: Iterable[tuple[Seat, Place]], own: Place) -> "Standing | None":
        """What is needed first by anybody, of those who read beside this one; None where nobody does."""
        near = [(seat, place) for seat, place in places if abs(place[0] - own[0]) <= MOST_APART]
        if not near:
            return None
        everyone = [(self.side.seat, own), *near]
        first, last = min(place for _, place in everyone)[0], max(place for _, place in everyone)[0]
        seats = {seat for seat, _ in everyone}
        found = self._open_uses(self._between(first, last), _by_seat(everyone), own)
        is_exact = all(shard >= 0 for _, (_, shard) in everyone)
        return Standing(found, last, self._agenda, is_one_job=len(seats) == len(everyone), is_exact=is_exact)

    def _between(self, first: int, last: int) -> tuple[Ints, Ints, Ints]:
        """Steps, ranks and shards of all that is needed at the steps [first, last]."""
        for step in [step for step in self._steps if step < first]:
            del self._steps[step]
        missing = [step for step in range(first, last + 1) if step not in self._steps]
        if missing:
            begin, end = missing[0], max(missing[-1] + 1, missing[0] + _AT_ONCE)
            for step, of_ranks in enumerate(self.side.needed(begin, end), start=begin):
                ranks = np.repeat(np.arange(len(of_ranks)), [len(shards) for shards in of_ranks])
                self._steps[step] = ranks, np.concatenate(of_ranks) if of_ranks else ranks
        known = [(step, *self._steps[step]) for step in range(first, last + 1) if step in self._steps]
        if not known:
            none = np.zeros(0, np.int64)
            return none, none, none
        steps = np.repeat([step for step, _, _ in known], [ranks.size for _, ranks, _ in known])
        return steps, np.concatenate([ranks for _, ranks, _ in known]), np.concatenate([ids for _, _, ids in known])

    def _open_uses(
        self, needs: tuple[Ints, Ints, Ints], places: dict[int, dict[Seat, Place]], own: Place
    ) -> tuple[Ints, Ints]:
        """The shards that somebody needs still and the steps, by shard and step."""
        steps, ranks, shards = needs
        # Of a rank that nobody has heard of yet: that it is where we are.
        at_step, at_shard = np.full(steps.shape, own[0]), np.full(steps.shape, -1)
        for rank, seats in places.items():
            for seat, (step, shard) in seats.items():
                is_its = (ranks == rank) & (steps % seat.num_workers == seat.worker)
                at_step[is_its], at_shard[is_its] = step, shard
        is_open = (steps > at_step) | ((steps == at_step) & (shards >= at_shard))
        steps, shards = steps[is_open], shards[is_open]
        order = np.lexsort((steps, shards))
        return shards[order], steps[order]


class Standing:
    """Where all readers of one order are at one moment, as what they need.

    Args:
        near: Shards and steps of what is needed up to `last`, by shard and step.
        last: The last step that any is at.
        agenda: What is needed behind it.
        is_one_job: Whether each seat is taken once.
        is_exact: Whether all tell where they are within their step.
    """

    def __init__(self, near: tuple[Ints, Ints], last: int, agenda: Agenda, *, is_one_job: bool, is_exact: bool) -> None:
        self.is_one_job, self.is_exact = is_one_job, is_exact
        self._shards, self._steps = near
        self._last, self._agenda = last, agenda

    def uses(self, shards: Sequence[int], after: Place = (-1, -1)) -> list[int]:
        """For each shard the first step at which somebody needs it, behind a place; NEVER where none is known."""
        wanted = np.array(shards, np.int64)
        is_later = (self._steps > after[0]) | ((self._steps == after[0]) & (self._shards > after[1]))
        near, steps = self._shards[is_later], self._steps[is_later]
        at = np.searchsorted(near, wanted)
        found = np.full(wanted.shape, NEVER)
        is_near = at < near.size
        is_near[is_near] = near[at[is_near]] == wanted[is_near]
        found[is_near] = steps[at[is_near]]
        if not is_near.all():
            behind = after if after[0] > self._last else (self._last, NEVER)
            found[~is_near] = self._agenda.use_from(wanted[~is_near], *behind)
        return cast("list[int]", found.tolist())

    def needed_before(self, place: Place) -> list[int]:
        """The shards that somebody needs before this place, first needed first."""
        is_before = (self._steps < place[0]) | ((self._steps == place[0]) & (self._shards < place[1]))
        pairs = sorted(zip(self._steps[is_before].tolist(), self._shards[is_before].tolist(), strict=True))
        found = list(dict.fromkeys(shard for _, shard in pairs))
        if place[0] > self._last:
            found += sorted(self._agenda.needed_between(self._last + 1, place).difference(found))
        return found


def _by_seat(everyone: Iterable[tuple[Seat, Place]]) -> dict[int, dict[Seat, Place]]:
    """By rank the place of each of its seats: the slowest one's, where several have the same."""
    places: dict[int, dict[Seat, Place]] = {}
    for seat, place in everyone:
        of_rank = places.setdefault(seat.rank, {})
        of_rank[seat] = min(place, of_rank.get(seat, place))
    return places
