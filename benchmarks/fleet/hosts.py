"""One host: its cache, which shards it fetches ahead, and when each of them arrives.

Which copies are evicted is decided by `UpcomingUses` and `eviction_order` of `smalti.cache`, in the unit of the
stretches that the reader plans together. The victims of a large cache are ranked anew whenever a hundredth of it was
replaced, and not at every fetch.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.fleet.needs import Needs, PieceNeeds, Stretch
from benchmarks.fleet.setting import Fleet, Ints
from benchmarks.fleet.store import HostLink
from smalti.cache import Outline, Uses
from smalti.cache.eviction import eviction_order
from smalti.cache.leases import MAX_LOOKAHEAD, UpcomingUses

_PARTS = 100  # of a cache, after the replacement of one of which victims are ranked anew
_SECTION = 16  # stretches in one section of the upcoming uses


class HostCache:
    """The copies of one host, as its ranks decide about them together."""

    def __init__(self, needs: Needs, limit: int | None) -> None:
        plan = needs.plan
        self._sizes = plan.data.shard_sizes * plan.data.sample_bytes
        self._needs, self._limit = needs, limit
        self.is_present: NDArray[np.bool_] = np.zeros(self._sizes.size, np.bool_)
        self._last_used = np.zeros(self._sizes.size, np.int64)
        self._last_needed = np.full(self._sizes.size, -1, np.int64)
        self.used = self.most_used = 0
        steps = max(1, int(np.diff(plan.bounds).max()))  # a use is a shard in a step; here, in a stretch of steps
        self._upcoming = UpcomingUses(max_lookahead=MAX_LOOKAHEAD // steps)
        self._victims: Ints = np.zeros(0, np.int64)
        self._num_opened = 0
        self._replaced = 0

    def begin_epoch(self, epoch: int) -> None:
        """Plan what will be read, as a pass does."""
        if self._limit is not None:
            self._upcoming.plan(_sections(self._needs, epoch), outline=_outlines(self._needs, epoch))
        self._first = epoch * self._needs.plan.num_stretches
        self._victims, self._replaced = np.zeros(0, np.int64), 0

    def admit(self, stretch: Stretch, current: int) -> tuple[Ints, Ints]:
        """Return the places of the shards in a stretch that are fetched ahead of it, and of those that find no space.

        `current` is the number of the stretch that is being read.
        """
        self._last_needed[stretch.shards] = stretch.number
        missing = np.flatnonzero(~self.is_present[stretch.shards])
        sizes = self._sizes[stretch.shards[missing]]
        room = None if self._limit is None else self._limit - self.used
        if room is not None and int(sizes.sum()) > room:
            room += self._evict(int(sizes.sum()) - room, current)
        has_room = np.cumsum(sizes) <= room if room is not None else np.ones(sizes.size, np.bool_)
        admitted = missing[has_room]
        self._insert(stretch.shards[admitted])
        return admitted, missing[~has_room]

    def size(self, shards: Ints) -> list[int]:
        """Return the bytes of each of these shards."""
        return self._sizes[shards].tolist()  # type: ignore[no-any-return]

    def _insert(self, shards: Ints) -> None:
        self.is_present[shards] = True
        self._last_used[shards] = self._num_opened + np.arange(shards.size)
        self._num_opened += shards.size
        self.used += int(self._sizes[shards].sum())
        self.most_used = max(self.most_used, self.used)

    def _evict(self, num_bytes: int, current: int) -> int:
        """Evict so many bytes of what is needed neither now nor in the stretch to come; return how many it were."""
        self._upcoming.current_step = current - self._first
        evicted = 0
        for is_fresh in (False, True):
            if is_fresh:
                self._rank()
            while evicted < num_bytes and self._victims.size and self._replaced >= 0:
                batch = max(1, -(-(num_bytes - evicted) // int(self._sizes.max())))
                victims, self._victims = self._victims[:batch], self._victims[batch:]
                victims = victims[self.is_present[victims] & (self._last_needed[victims] < current)]
                self.is_present[victims] = False
                freed = int(self._sizes[victims].sum())
                evicted, self.used = evicted + freed, self.used - freed
                self._replaced -= victims.size
            if evicted >= num_bytes:
                break
        return evicted

    def _rank(self) -> None:
        copies = np.flatnonzero(self.is_present)
        copies = copies[self._last_needed[copies] < self._first + self._upcoming.current_step]
        uses = self._upcoming.next_use(copies)
        self._victims = copies[eviction_order(uses, copies, self._last_used[copies])]
        self._replaced = max(1, copies.size // _PARTS)


def _sections(needs: Needs, epoch: int) -> Iterator[Uses]:
    """Yield the stretches from an epoch on, in sections; the steps of `Uses` are numbers of stretches since."""
    first = epoch * needs.plan.num_stretches
    held: list[Stretch] = []
    for stretch in needs.since(epoch):
        held.append(stretch)
        if len(held) == _SECTION:
            shards = np.concatenate([each.shards for each in held])
            steps = np.repeat([each.number - first for each in held], [each.shards.size for each in held])
            yield Uses(shards, steps, int(held[-1].number) - first + 1)
            held = []


def _outlines(needs: Needs, epoch: int) -> Iterator[Outline]:
    """Yield the outlines of an epoch and of all after it, in stretches; MosaicML's orders have none."""
    count, bounds = needs.plan.num_stretches, needs.plan.bounds
    pieces = PieceNeeds(needs.plan, needs.host)
    for number in itertools.count(epoch) if not needs.plan.order.is_mosaic else ():
        visits, before = pieces.visits(number), (number - epoch) * count
        begins = np.searchsorted(bounds, visits.first, side="right") - 1
        ends = np.searchsorted(bounds, visits.last, side="right")
        yield Outline(visits.shards, before + begins, before + ends, before + count)


class Host:
    """A host in the course of an epoch: for the stretch that is read, when each of its steps has its shards."""

    def __init__(self, needs: Needs, fleet: Fleet, link: HostLink) -> None:
        self.needs, self.link = needs, link
        self.cache = HostCache(needs, fleet.cache_bytes)
        self._stretches: Iterator[Stretch] = iter(())
        self.fetches = self.late = self.bytes = 0
        self._ready: dict[int, float] = {}
        self._late: dict[int, list[int]] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: the first stretch is planned, and nothing is fetched yet."""
        self.cache.begin_epoch(epoch)
        self._stretches = self.needs.epoch(epoch)
        self.fetches = self.late = self.bytes = 0
        self._ready, self._late = {}, {}

    def plan_next(self, now: float, *, is_first: bool = False) -> None:
        """Queue what the next stretch needs; its steps are asked for by `ready`."""
        stretch = next(self._stretches, None)
        if stretch is None:
            return
        ahead, late = self.cache.admit(stretch, stretch.number - (0 if is_first else 1))
        sizes = self.cache.size(stretch.shards[ahead])
        for step, done in zip(stretch.steps[ahead].tolist(), self.link.fetch(now, sizes, is_ahead=True), strict=True):
            self._ready[step] = max(self._ready.get(step, 0.0), done)
        for step, size in zip(stretch.steps[late].tolist(), self.cache.size(stretch.shards[late]), strict=True):
            self._late.setdefault(step, []).append(size)
            sizes.append(size)
        self.late += late.size
        self.fetches, self.bytes = self.fetches + len(sizes), self.bytes + sum(sizes)

    def ready(self, step: int, now: float) -> float:
        """Return when a step has its shards; what found no space ahead is fetched now."""
        done = self._ready.pop(step, 0.0)
        if step in self._late:
            done = max(done, *self.link.fetch(now, self._late.pop(step), is_ahead=False))
        return done
