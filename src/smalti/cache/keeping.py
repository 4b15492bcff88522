"""What is kept here and what goes: the bound on the copies' bytes, kept by all processes that share their folders.

Intended behaviour; anything else is a bug:
1. Copies, with what was put aside, never take more than the limit; what is being fetched comes on top, and room is
   made for it before it is fetched wherever there is something that can go.
2. All of it is what lies on disk, looked at under one lock for each folder. There is no account that could be wrong, so
   a process that is killed at any moment leaves nothing to put right; what it was fetching is removed.
3. What is needed last goes first: first of all what nobody is known to need, then by the next step that needs it, here
   or in another process that reads from the folder. It is unlinked: who has it open keeps it.
4. A shard that is fetched ahead gets the room that it would get when its turn comes, and before that none: what is
   needed sooner is never given up for it. A shard that is needed now is fetched whatever there is room for.
5. Nothing but files in the cache's own folders can go.
6. A reader that is ahead of others of its order is as one that fetches ahead: it waits until there is room that nobody
   needs before, for as long as they go on, and fetches what they need meanwhile. Who is furthest behind never waits.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from smalti.cache.agenda import NEVER, Agenda
from smalti.cache.contents import BUDGET_LOCK, Contents, Known, is_held, lock_of, reap, scan, target_of
from smalti.cache.leases import Lease, Needs, first_lines, needed_by_others
from smalti.cache.locking import FileLock
from smalti.cache.owners import Owners, owners_in
from smalti.cache.statistics import Counters
from smalti.cache.turns import MOST_APART, Place, Seat, Side, Standing, Turns
from smalti.errors import StoreTimeout
from smalti.storage.retry import Deadline

_LONGEST_PAUSE = 0.004  # seconds between two tries to get a folder's lock, which nobody holds for long
_PATIENCE_SECONDS = 5.0  # with readers that are behind and stay where they are
_PATIENCE_SHARE = 4  # of the time that a shard has, the part in which its turn is awaited
_LOOK_SECONDS = 0.05  # between two looks whether there is room now, where nobody has moved
_NAP_SECONDS = 0.01  # between two looks whether somebody has


class NoRoom(Exception):  # noqa: N818 -- a signal to the thread that fetches ahead
    """There is no room yet to fetch a shard ahead."""


@dataclass(frozen=True)
class Places:
    """Where copies lie; asked only when something must go."""

    roots: Callable[[], list[Path]]
    """The folders of all sources."""
    owners: Callable[[], list[tuple[Path, Owners]]]
    """Whose the files of each folder are."""
    held: Callable[[int], int]
    """Bytes that a shard's copies take."""
    copies: Callable[[int], tuple[Path, ...]]
    """Where they are; nothing for a shard that is read where it lies."""
    ahead: Callable[[list[int]], None]
    """Has shards fetched ahead."""


@dataclass
class _Group:
    """What goes together: the files of a shard, or one that belongs to none."""

    shards: list[int]
    files: dict[Path, int]
    soonest: int = NEVER
    """The step at which another process needs it."""
    own_use: int = NEVER
    """The step at which this process needs it."""

    @property
    def use(self) -> int:
        """The step at which anybody needs it."""
        return min(self.own_use, self.soonest)


@dataclass(frozen=True)
class _Sight:
    """What is seen under the lock when it is to be decided about a shard."""

    found: list[Contents]
    others: list[list[Needs]]
    """What other processes need; both by folder."""
    standing: Standing | None
    """What the readers of this order need, where there are others near."""
    shard: int
    step: int
    """The step that needs the shard, or the one at hand where nobody knows."""
    floor: int

    @property
    def turn(self) -> Place:
        """When the shard is needed, to compare with what others need."""
        is_rough = self.standing is not None and not self.standing.is_exact
        return self.step, -1 if is_rough else self.shard


class Keeper:
    """The bound of one cache, as one process keeps it; thread-safe.

    Args:
        limit: Bytes; None for no bound.
        places: Where copies lie.
        counters: Told what went.
        drop: Told which shards went, so that their maps here go too: an unlinked file takes room until then.
    """

    def __init__(
        self, limit: int | None, places: Places, counters: Counters, drop: Callable[[list[int]], None]
    ) -> None:
        self.limit = limit
        self.agenda = Agenda()
        self._places, self._counters, self._drop = places, counters, drop
        self._turn = threading.Lock()
        self._leases: dict[Path, Lease] = {}
        self._known: dict[Path, Known] = {}
        self.full_until = 0
        """The step before which it is no use to ask again for room that there was not."""
        self._order = 0
        self._soon: dict[int, tuple[Path, ...]] = {}
        self._last_used: dict[int, int] = {}
        self._turns: Turns | None = None
        self._place: Place | None = None
        self._reads_batches = False
        self._left_behind: list[tuple[Seat, Place]] = []

    def take_seat(self, side: Side | None) -> None:
        """Who it is among the readers of its order; None where nobody knows."""
        self._turns = Turns(side, self.agenda) if side is not None and self.limit is not None else None
        self._place, self._left_behind = None, []

    def admit(self, shard: int, num_bytes: int, lock: FileLock, deadline: Deadline, *, ahead: bool) -> None:
        """Reserves what a fetch will keep; for one that is ahead of its turn, makes room for it or refuses it.

        Raises:
            NoRoom: it is ahead of its turn, and what is here is needed sooner.
            StoreTimeout: another process held the folder's lock until the deadline.
        """
        if self.limit is None:
            return
        if not ahead:  # comes on top while it is in flight, and what goes for it goes when it is here
            lock.reserve(num_bytes)
            return
        with self._locked(deadline, f"room for shard {shard}"):
            sight = self._see(shard)
            over = self._over(sight, num_bytes, lock.path)
            victims = self._victims(sight, over) if over > 0 else []
            if victims is None:
                raise self._no_room(sight)
            for victim in victims:
                self._evict(victim)
            lock.reserve(num_bytes)

    def await_turn(self, shard: int, deadline: Deadline) -> None:
        """Waits while a shard that is asked for would take the room of what slower readers of its order need before."""
        if self._turns is None:
            return
        patience = Deadline(deadline.left() / _PATIENCE_SHARE)
        behind, still = list[tuple[Seat, Place]](), patience
        while not patience.passed():
            with self._locked(deadline, f"room for shard {shard}"):
                sight = self._see(shard)
                others = self._behind(sight) if self._is_early(sight) else []
                missing = self._missing_before(sight) if others else []
            if not others or others == self._left_behind:
                return
            if others != behind:
                behind, still = others, Deadline(min(_PATIENCE_SECONDS, patience.left()))
            if still.passed():
                self._left_behind = others  # nobody waits for them again until they move
                return
            self._places.ahead(missing[:1])  # what comes after it has room when it is on its way
            self._nap()

    @contextmanager
    def publishing(self, shard: int, num_bytes: int, lock: FileLock | None, deadline: Deadline) -> Iterator[None]:
        """While files of a shard get their names: no copy goes meanwhile, and all of them are within the bound."""
        if self.limit is None:
            yield
            return
        with self._locked(deadline, f"room for shard {shard}"):
            sight = self._see(shard)
            over = sum(each.kept for each in sight.found) + num_bytes - self.limit
            if over > 0:
                self._free(self._groups(sight, self._now(sight)), over)
            if lock is not None:
                lock.reserve(0)
            yield

    def relieve(self, shard: int, num_bytes: int, deadline: Deadline) -> int:
        """Lets so many bytes go because the disk is full; how many went."""
        with self._locked(deadline, f"room for shard {shard}"):
            sight = self._see(shard)
            return self._free(self._groups(sight, self._now(sight)), num_bytes)

    def others_fetch(self, shard: int) -> bool:
        """Whether something else is being fetched into these folders now."""
        owners = self._places.owners()
        locks = [lock for root in self._places.roots() for lock in scan(root).locks]
        return any(shard not in owners_in(target_of(lock), owners) and is_held(lock) for lock in locks)

    def used(self, shard: int) -> None:
        """A shard was opened: where no order is known, what was opened last goes last."""
        self._order += 1
        self._last_used[shard] = self._order

    def renew(self, shards: list[int], files: Callable[[int], Iterable[Path]]) -> None:
        """Tells the other processes which shards this one needs soon."""
        if self.limit is None or not shards:
            return
        uses = self.agenda.next_use(np.array(shards, np.int64))
        self._soon = {shard: tuple(files(shard)) for shard in shards}
        needed: dict[Path, dict[str, int]] = {root: {} for root in self._places.roots()}
        for shard, use in zip(shards, uses.tolist(), strict=True):
            for path in self._soon[shard]:
                for root, names in needed.items():
                    if path.is_relative_to(root):
                        names[str(path.relative_to(root))] = self.agenda.floor if use == NEVER else use
        with self._turn:
            for root, names in needed.items():
                seat = self._turns.side.seat if self._turns is not None else None
                needs = Needs(self.agenda.order, self.agenda.floor, names, self._place, seat)
                self._leases.setdefault(root, Lease(root)).renew(needs)

    def reached(self, step: int, own: int | None = None) -> None:
        """Every step before this one is over; this reader is at step `own`, -1 where it reads no more."""
        self.agenda.reached(step)
        if own is not None:
            is_exact = self._reads_batches and self._turns is not None and self._turns.side.is_single
            self._place = None if own < 0 else (own, 0 if is_exact else -1)
        self._tell()

    def at(self, shard: int) -> None:
        """This reader is over with all shards of its step that are before this one."""
        place = self._place
        if place is not None and self._turns is not None and self._turns.side.is_single:
            self._place, self._reads_batches = (place[0], shard), True
            self._tell()

    def _tell(self) -> None:
        for lease in list(self._leases.values()):
            lease.reached(self.agenda.floor, self._place)

    def close(self) -> None:
        """Needs nothing any more."""
        with self._turn:
            for lease in self._leases.values():
                lease.close()
            self._leases.clear()

    def _no_room(self, sight: _Sight) -> NoRoom:
        # Halfway, and halfway again: asking at every step would keep the folder's lock busy.
        self.full_until = sight.floor + max(1, (sight.step - sight.floor) // 2)
        return NoRoom()

    def _see(self, shard: int) -> _Sight:
        others = []
        for root in self._places.roots():
            lease = self._leases.get(root)
            others.append(needed_by_others(root, lease.name if lease else None))
        standing, floor = self._standing(others), self.agenda.floor
        use = NEVER
        if standing is not None:
            use = standing.uses([shard])[0]
        elif self.agenda.is_known:
            use = int(self.agenda.next_use(np.array([shard]))[0])
        return _Sight(self._look(), others, standing, shard, floor if use == NEVER else use, floor)

    def _standing(self, others: list[list[Needs]]) -> Standing | None:
        if self._turns is None or self._place is None:
            return None
        return self._turns.standing(self._beside(others), self._place)

    def _beside(self, others: list[list[Needs]]) -> list[tuple[Seat, Place]]:
        """Who else reads this order, and where it is; a process tells it in each of its folders."""
        each = ([(told.seat, told.place) for told in of_root if self._is_beside(told)] for of_root in others)
        return cast("list[tuple[Seat, Place]]", next((found for found in each if found), []))

    def _is_beside(self, needs: Needs) -> bool:
        return (
            self._turns is not None and self._place is not None and needs.order == self.agenda.order
            and needs.seat is not None and needs.place is not None
            and abs(needs.place[0] - self._place[0]) <= MOST_APART
        )  # fmt: skip

    def _behind(self, sight: _Sight) -> list[tuple[Seat, Place]]:
        """Those that are not at the turn of the shard yet."""
        found = [(seat, place) for seat, place in self._beside(sight.others) if place < sight.turn]
        return sorted(found, key=lambda each: (each[0].rank, each[0].worker))

    def _nap(self) -> None:
        """Until one of the others has moved, or something else may have changed."""
        soon, roots = Deadline(_LOOK_SECONDS), self._places.roots()
        before = [first_lines(root) for root in roots]
        while not soon.passed():
            time.sleep(_NAP_SECONDS)
            if before != [first_lines(root) for root in roots]:
                return

    def _is_early(self, sight: _Sight) -> bool:
        """Whether to fetch the shard now takes the room of something that another reader needs before."""
        standing, copies = sight.standing, self._places.copies(sight.shard)
        if standing is None or not standing.is_one_job or not copies or not standing.needed_before(sight.turn):
            return False
        if any(copies[0] in each.copies or lock_of(copies[0]) in each.locks for each in sight.found):
            return False  # somebody else has fetched it, or is at it
        over = self._over(sight, self._places.held(sight.shard), lock_of(copies[0]))
        return over > 0 and self._victims(sight, over) is None

    def _over(self, sight: _Sight, num_bytes: int, own: Path) -> int:
        """Bytes that have to go before so many more can come."""
        limit = self.limit if self.limit is not None else NEVER
        return sum(each.kept for each in sight.found) + self._coming(sight, own) + num_bytes - limit

    def _victims(self, sight: _Sight, over: int) -> list[_Group] | None:
        """What goes for a shard that is ahead of its turn; None where something would that is needed before."""
        if self._comes_before(sight):
            return None
        groups, victims = self._groups(sight, sight.turn), list[_Group]()
        while over > 0:
            victim = max(groups, key=self._rank, default=None)
            if victim is None or self._is_needed_before(victim, sight):
                return None
            groups.remove(victim)
            victims.append(victim)
            over -= sum(victim.files.values())
        return victims

    def _coming(self, sight: _Sight, own: Path) -> int:
        """Bytes of what is being fetched into the folders, beside what has the lock `own`.

        A fetch that has not asked for room yet, or never will, takes what its shard takes; unless it is ahead of its
        turn, and will be asked to wait for this one.
        """
        owners, total = self._places.owners(), 0
        here = {path for each in sight.found for path in each.copies}
        for each in sight.found:
            for lock, size in each.coming.items():
                ids = owners_in(target_of(lock), owners) if lock != own else []
                if each.locks.get(lock) == 0 and ids and target_of(lock) not in here:
                    use = self._first_use(sight, ids)
                    is_sooner = use == NEVER or (use, ids[0]) < (sight.step, sight.shard)
                    total += max(size, self._places.held(ids[0])) if is_sooner else size
                elif lock != own:
                    total += size
        return total

    def _first_use(self, sight: _Sight, shards: list[int]) -> int:
        if sight.standing is not None:
            return min(sight.standing.uses(shards))
        return int(self.agenda.next_use(np.array(shards, np.int64)).min())

    def _comes_before(self, sight: _Sight) -> bool:
        """Whether something that is needed sooner is neither here nor on its way: the room is for that."""
        return bool(self._missing_before(sight))

    def _missing_before(self, sight: _Sight) -> list[int]:
        """What is needed before this shard, as far as it is known, and is neither here nor on its way."""
        owners = self._places.owners()
        files = [*(path for each in sight.found for path in each.copies)]
        files += [target_of(lock) for each in sight.found for lock in each.locks]
        there = {number for path in files for number in owners_in(path, owners)}
        return [each for each in self._sooner(sight) if each not in there and self._places.copies(each)]

    def _sooner(self, sight: _Sight) -> list[int]:
        """The shards that are needed before this one, as far as they are known, first needed first."""
        if sight.standing is not None:
            return sight.standing.needed_before(sight.turn)
        soon = list(self._soon)
        uses = self.agenda.next_use(np.array(soon, np.int64)).tolist() if soon else []
        places = sorted(zip(uses, soon, strict=True))
        return [shard for use, shard in places if (use, shard) < (sight.step, sight.shard)]

    def _now(self, sight: _Sight) -> Place:
        """The step at hand, and the shard whose turn it is in it: this one, or nobody knows which."""
        if sight.standing is not None:
            return -1, -1  # each tells what is over
        return sight.floor, sight.shard if sight.step == sight.floor and not self.agenda.is_of_many else -1

    @contextmanager
    def _locked(self, deadline: Deadline, what: str) -> Iterator[None]:
        if not self._turn.acquire(timeout=max(0.001, deadline.left())):
            raise StoreTimeout(f"{what}: other threads were making room for more than {deadline.seconds:.0f} s")
        try:
            with ExitStack() as locks:
                for root in sorted(self._places.roots()):
                    if not root.is_dir():
                        root.mkdir(mode=0o700, parents=True, exist_ok=True)
                    lock = FileLock(root / BUDGET_LOCK, deadline, what, longest_pause=_LONGEST_PAUSE)
                    locks.enter_context(lock)
                yield
        finally:
            self._turn.release()

    def _look(self) -> list[Contents]:
        found = [scan(root, self._known.setdefault(root, {})) for root in self._places.roots()]
        for contents in found:
            reap(contents)
        return found

    def _free(self, groups: list[_Group], num_bytes: int) -> int:
        """Lets so many bytes go, or all there are; how many went."""
        went = 0
        while groups and went < num_bytes:
            victim = max(groups, key=self._rank)
            groups.remove(victim)
            went += self._evict(victim)
        return went

    def _groups(self, sight: _Sight, after: Place) -> list[_Group]:
        """What could go, all but the shard in sight, each with the step that needs it behind a place."""
        owners = self._places.owners()
        groups: dict[object, _Group] = {}
        for root, contents, others in zip(self._places.roots(), sight.found, sight.others, strict=True):
            soonest, inside = self._soonest(others), len(f"{root}/")
            for path, size in {**contents.copies, **contents.bad}.items():
                ids = owners_in(path, owners)
                if sight.shard in ids:
                    continue
                group = groups.setdefault(tuple(ids) or path, _Group(ids, {}))
                group.files[path] = size
                group.soonest = min(group.soonest, soonest.get(str(path)[inside:], NEVER))
        known = [(group, shard_id) for group in groups.values() for shard_id in group.shards]
        if known and self.agenda.is_known:
            shards = [shard_id for _, shard_id in known]
            uses = (
                sight.standing.uses(shards, after)
                if sight.standing is not None
                else self.agenda.use_from(np.array(shards, np.int64), *after).tolist()
            )
            for (group, _), use in zip(known, uses, strict=True):
                group.own_use = min(group.own_use, use)
        return list(groups.values())

    def _soonest(self, others: list[Needs]) -> dict[str, int]:
        """The step, counted as here, at which any of the others needs a file."""
        soonest: dict[str, int] = {}
        for needs in others:
            if self._is_beside(needs):
                continue  # its needs are known better than by what it told
            behind = 0 if needs.order == self.agenda.order else self.agenda.floor - needs.floor
            for name, step in needs.soon.items():
                if step >= needs.floor:
                    soonest[name] = min(soonest.get(name, NEVER), step + behind)
        return soonest

    def _rank(self, group: _Group) -> tuple[int, bool, int]:
        """The larger, the sooner it goes."""
        if group.use != NEVER:  # within a step, shards have their turns by number
            return group.use, False, min(group.shards, default=0)
        return NEVER, not group.shards, -max((self._last_used.get(shard, 0) for shard in group.shards), default=0)

    def _is_needed_before(self, group: _Group, sight: _Sight) -> bool:
        """Whether something that may go at a later step is needed until then, or there is a doubt."""
        if group.soonest <= sight.step:
            return True
        if not group.shards:
            return False
        if sight.standing is not None:
            return min(sight.standing.uses(group.shards)) != group.own_use
        if not self.agenda.is_known:
            return True
        return bool(self.agenda.use_from(np.array(group.shards, np.int64), sight.floor, -1).min() != group.own_use)

    def _evict(self, group: _Group) -> int:
        went = 0
        for path, size in group.files.items():
            with suppress(FileNotFoundError):  # somebody cleaned up
                path.unlink()
                went += size
        self._drop(group.shards)
        self._counters.add(evictions=1, bytes_evicted=went)
        return went
