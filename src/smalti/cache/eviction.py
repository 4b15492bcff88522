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
5. The same holds on a disk that is nearly full, limit or not: a fetch ahead leaves room for one more shard, which
   somebody may be waiting for. For that one, everything goes but what its own step needs, which is mapped: unlinking
   it would free nothing.
6. Nothing but files in the cache's own folders can go.

The fewest bytes that a row of shards can cost under a limit. Pure.

Whose a file in the cache's folders is, told by its name; and what each shard takes there.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smalti.cache.files import BUDGET_LOCK, Contents, Known, is_held, lock_of, reap, scan, target_of
from smalti.cache.leases import Lease, Needs, needed_by_others
from smalti.cache.locking import FileLock
from smalti.cache.next_use import NEVER, Agenda
from smalti.cache.stats import Counters
from smalti.catalog.table.shard_table import ShardTable
from smalti.errors import StoreTimeout
from smalti.format import ShardInfo
from smalti.storage.retry import Deadline


def least_bytes(
    needed: Sequence[int], held: Sequence[int], costs: Sequence[int], limit: int | None, *, is_warm: bool = False
) -> int:
    """Bytes fetched when each time what is needed last makes room (Belady).

    Exact for shards of one size; where sizes differ nobody can compute the least quickly, and this is the measure
    that is used for it.

    Args:
        needed: Shards, in the order in which they are needed.
        held: By shard, the bytes that it takes here.
        costs: By shard, the bytes that it takes to fetch.
        limit: Bytes that may be held; a single shard is held however large it is.
        is_warm: Whether the best that the limit allows is there already: what is needed first. Otherwise nothing is.
    """
    if limit is None and is_warm:
        return 0
    if limit is None:
        return sum(costs[shard] for shard in set(needed))
    following = [NEVER] * len(needed)
    seen: dict[int, int] = {}
    for place in range(len(needed) - 1, -1, -1):
        following[place] = seen.get(needed[place], NEVER)
        seen[needed[place]] = place
    next_use: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    used = total = 0
    for shard, place in reversed(seen.items()) if is_warm else ():
        if used + held[shard] > limit:
            break
        next_use[shard] = place
        heappush(latest, (-place, shard))
        used += held[shard]
    for place, shard in enumerate(needed):
        if shard not in next_use:
            total += costs[shard]
            while next_use and used + held[shard] > limit:
                use, victim = heappop(latest)
                if next_use.get(victim) == -use:
                    del next_use[victim]
                    used -= held[victim]
            used += held[shard]
        next_use[shard] = following[place]
        heappush(latest, (-following[place], shard))
    return total


Ints = NDArray[np.int64]


class Owners:
    """Shards by the names of their uncompressed files.

    Args:
        shards: Of one source.
        first: The number of its first one.
    """

    def __init__(self, shards: Sequence[ShardInfo], first: int) -> None:
        self._shards, self._first = shards, first
        self._known: dict[str, list[int]] = {}

    def of(self, name: str) -> list[int]:
        """The numbers of the shards that have a file of this name."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = [self._first + place for place in self._named(name)]
        return found

    def _named(self, name: str) -> list[int]:
        return self._shards.named(name) if isinstance(self._shards, ShardTable) else self._table.get(name, [])

    @cached_property
    def _table(self) -> dict[str, list[int]]:
        table: dict[str, list[int]] = {}
        for place, info in enumerate(self._shards):
            for file in info.raw_files:
                table.setdefault(file.basename, []).append(place)
        return table


def owners_in(path: Path, roots: Sequence[tuple[Path, Owners]]) -> list[int]:
    """The shards whose file this is, over sources and the folders of their copies."""
    text, found = str(path), list[int]()
    for root, owners in roots:
        folder = f"{root}/"
        if text.startswith(folder):
            found += owners.of(text[len(folder) :])
    return sorted(set(found))


_LONGEST_PAUSE = 0.004  # seconds between two tries to get a folder's lock, which nobody holds for long
AMPLE_SHARDS = 64
"""With room on the disk for so many shards, nobody looks closer: more than one process fetches at once."""


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
    fetched: Callable[[int], int]
    """Bytes that a shard takes while it is fetched: compressed and unpacked."""


def free_bytes(folder: Path) -> int:
    """Return the bytes that can still be written to the disk of a folder; very many where it does not say."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else sys.maxsize


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


class Keeper:
    """The bound of one cache, as one process keeps it; thread-safe.

    Args:
        limit: Bytes; None for no bound.
        places: Where copies lie.
        counters: Told what went.
        drop: Told which shards went, so that their maps here go too: an unlinked file takes room until then.
        free: Bytes that are free on the disk of a folder.
    """

    def __init__(
        self,
        limit: int | None,
        places: Places,
        counters: Counters,
        drop: Callable[[list[int]], None],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.limit = limit
        self.is_tight = False
        """Whether the disk was found too small for what was to be fetched."""
        self.agenda = Agenda()
        self._free_bytes = free
        self._places, self._counters, self._drop = places, counters, drop
        self._turn = threading.Lock()
        self._leases: dict[Path, Lease] = {}
        self._known: dict[Path, Known] = {}
        self.full_until = 0
        """The step before which it is no use to ask again for room that there was not."""
        self._order = 0
        self._soon: dict[int, tuple[Path, ...]] = {}
        self._last_used: dict[int, int] = {}

    @property
    def is_bounded(self) -> bool:
        """Whether copies go to make room for others."""
        return self.limit is not None or self.is_tight

    def admit(self, shard: int, num_bytes: int, lock: FileLock, deadline: Deadline, *, ahead: bool) -> None:
        """Reserve what a fetch will keep, and make room for it on the disk; refuse one ahead of its turn without room.

        Raises:
            NoRoom: it is ahead of its turn, and what is here is needed sooner.
            StoreTimeout: another process held the folder's lock until the deadline.
        """
        needed, free = self._places.fetched(shard), self._free_bytes(lock.path.parent)
        if not ahead:  # comes on top while it is in flight, and what goes for it goes when it is here
            lock.reserve(num_bytes)
            if free < needed:
                self.relieve(shard, needed - free, deadline)
            return
        if self.limit is None and free >= AMPLE_SHARDS * needed:
            lock.reserve(num_bytes)
            return
        step, floor = self._turn_of(shard)
        with self._locked(deadline, f"room for shard {shard}"):
            found = self._look()
            turn = step, shard
            over = max(
                self._over_limit(found, lock.path, num_bytes, turn), self._over_disk(found, lock.path, needed, turn)
            )
            victims = []
            if over > 0 and self._comes_before(step, shard, found):
                raise self._no_room(step, floor)
            if over > 0:
                groups = self._groups(found, step, shard, but=shard)
                while over > 0:
                    victim = max(groups, key=self._rank, default=None)
                    if victim is None or self._is_needed_before(victim, step, floor):
                        raise self._no_room(step, floor)
                    groups.remove(victim)
                    victims.append(victim)
                    over -= sum(victim.files.values())
            for victim in victims:
                self._evict(victim)
            lock.reserve(num_bytes)

    @contextmanager
    def publishing(self, shard: int, num_bytes: int, lock: FileLock | None, deadline: Deadline) -> Iterator[None]:
        """While files of a shard get their names: no copy goes meanwhile, and all of them are within the bound."""
        if self.limit is None:
            yield
            return
        step, after = self._now(shard)
        with self._locked(deadline, f"room for shard {shard}"):
            found = self._look()
            over = sum(each.kept for each in found) + num_bytes - self.limit
            if over > 0:
                self._free(self._groups(found, step, after, but=shard), over)
            if lock is not None:
                lock.reserve(0)
            yield

    def relieve(self, shard: int, num_bytes: int, deadline: Deadline) -> int:
        """Let so many bytes go because the disk is full, for a shard that is needed now; return how many went."""
        self.is_tight = True
        step, floor = self._turn_of(shard)
        with self._locked(deadline, f"room for shard {shard}"):
            groups = self._groups(self._look(), floor, -1, but=shard)
            return self._free([group for group in groups if group.use > step], num_bytes)

    def refused(self, shard: int) -> NoRoom:
        """Return the error for a fetch ahead that found the disk full: it waits for the next step."""
        self.is_tight = True
        return self._no_room(*self._turn_of(shard))

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
        if not self.is_bounded or not shards:
            return
        uses = self.agenda.next_use(np.array(shards, np.int64))
        self._soon = {shard: tuple(files(shard)) for shard in shards}  # the roots are known after that
        needed: dict[Path, dict[str, int]] = {root: {} for root in self._places.roots()}
        for shard, use in zip(shards, uses.tolist(), strict=True):
            for path in self._soon[shard]:
                for root, names in needed.items():
                    if path.is_relative_to(root):
                        names[str(path.relative_to(root))] = self.agenda.floor if use == NEVER else use
        with self._turn:
            for root, names in needed.items():
                needs = Needs(self.agenda.order, self.agenda.floor, names)
                self._leases.setdefault(root, Lease(root)).renew(needs)

    def reached(self, step: int) -> None:
        """Every step before this one is over."""
        self.agenda.reached(step)
        for lease in list(self._leases.values()):
            lease.reached(step)

    def close(self) -> None:
        """Needs nothing any more."""
        with self._turn:
            for lease in self._leases.values():
                lease.close()
            self._leases.clear()

    def _no_room(self, step: int, floor: int) -> NoRoom:
        # Halfway, and halfway again: asking at every step would keep the folder's lock busy.
        self.full_until = floor + max(1, (step - floor) // 2)
        return NoRoom()

    def _over_limit(self, found: list[Contents], own: Path, num_bytes: int, turn: tuple[int, int]) -> int:
        """Bytes by which the limit is passed with so many more; not above 0 if there is none."""
        if self.limit is None:
            return 0
        return sum(each.kept for each in found) + self._coming(found, own, *turn) + num_bytes - self.limit

    def _over_disk(self, found: list[Contents], own: Path, needed: int, turn: tuple[int, int]) -> int:
        """Bytes that are missing on the disk for a fetch, for what is fetched already, and for one more."""
        owners, to_come = self._places.owners(), 0
        for each in found:
            for lock, reserved in each.locks.items():
                ids = owners_in(target_of(lock), owners) if lock != own else []
                if ids and (reserved or self._is_due_before(ids, turn)):
                    to_come += max(0, self._places.fetched(ids[0]) - each.brought.get(lock, 0))
        over = 2 * needed + to_come - self._free_bytes(own.parent)
        self.is_tight |= over > 0
        return over

    def _coming(self, found: list[Contents], own: Path, step: int, shard: int) -> int:
        """Bytes of what is being fetched into the folders, beside what has the lock `own`.

        A fetch that has not asked for room yet, or never will, takes what its shard takes; unless it is ahead of its
        turn, and will be asked to wait for this one.
        """
        owners, total = self._places.owners(), 0
        here = {path for each in found for path in each.copies}
        for each in found:
            for lock, size in each.coming.items():
                ids = owners_in(target_of(lock), owners) if lock != own else []
                if each.locks.get(lock) == 0 and ids and target_of(lock) not in here:
                    is_due = self._is_due_before(ids, (step, shard))
                    total += max(size, self._places.held(ids[0])) if is_due else size
                elif lock != own:
                    total += size
        return total

    def _is_due_before(self, shards: list[int], turn: tuple[int, int]) -> bool:
        """Whether a fetch that has not asked for room yet may take it all the same; one of a later turn will wait."""
        use = int(self.agenda.next_use(np.array(shards, np.int64)).min())
        return use == NEVER or (use, shards[0]) < turn

    def _comes_before(self, step: int, shard: int, found: list[Contents]) -> bool:
        """Whether something that is needed sooner is neither here nor on its way: the room is for that."""
        soon = dict(self._soon)
        if not soon:
            return False
        here = {path for each in found for path in each.copies}
        coming = {lock for each in found for lock in each.locks}
        for other, use in zip(soon, self.agenda.next_use(np.array(list(soon), np.int64)).tolist(), strict=True):
            files = soon[other]
            if (use, other) < (step, shard) and files and not (here.issuperset(files) or lock_of(files[0]) in coming):
                return True
        return False

    def _now(self, shard: int) -> tuple[int, int]:
        """The step at hand, and the shard whose turn it is in it: this one, or nobody knows which."""
        step, floor = self._turn_of(shard)
        return floor, shard if step == floor and not self.agenda.is_of_many else -1

    def _turn_of(self, shard: int) -> tuple[int, int]:
        """The step that needs a shard, and the one at hand; they are the same where nobody knows."""
        floor = self.agenda.floor
        use = int(self.agenda.next_use(np.array([shard]))[0]) if self.agenda.is_known else NEVER
        return (floor if use == NEVER else use), floor

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

    def _groups(self, found: list[Contents], step: int, shard: int, *, but: int) -> list[_Group]:
        """What could go, all `but` one, each with the step that needs it after the turn of `shard` at `step`."""
        owners = self._places.owners()
        groups: dict[object, _Group] = {}
        for root, contents in zip(self._places.roots(), found, strict=True):
            lease = self._leases.get(root)
            others = needed_by_others(root, lease.name if lease else None)
            soonest, inside = self._soonest(others), len(f"{root}/")
            for path, size in {**contents.copies, **contents.bad}.items():
                ids = owners_in(path, owners)
                if but in ids:
                    continue
                group = groups.setdefault(tuple(ids) or path, _Group(ids, {}))
                group.files[path] = size
                group.soonest = min(group.soonest, soonest.get(str(path)[inside:], NEVER))
        known = [(group, shard_id) for group in groups.values() for shard_id in group.shards]
        if known and self.agenda.is_known:
            uses = self.agenda.use_from(np.array([shard_id for _, shard_id in known], np.int64), step, shard)
            for (group, _), use in zip(known, uses.tolist(), strict=True):
                group.own_use = min(group.own_use, use)
        return list(groups.values())

    def _soonest(self, others: list[Needs]) -> dict[str, int]:
        """The step, counted as here, at which any of the others needs a file."""
        soonest: dict[str, int] = {}
        for needs in others:
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

    def _is_needed_before(self, group: _Group, step: int, floor: int) -> bool:
        """Whether something that may go at a later step is needed until then, or there is a doubt."""
        if group.soonest <= step:
            return True
        if not group.shards:
            return False
        if not self.agenda.is_known:
            return True
        return bool(self.agenda.use_from(np.array(group.shards, np.int64), floor, -1).min() != group.own_use)

    def _evict(self, group: _Group) -> int:
        went = 0
        for path, size in group.files.items():
            with suppress(FileNotFoundError):  # somebody cleaned up
                path.unlink()
                went += size
        self._drop(group.shards)
        self._counters.add(evictions=1, bytes_evicted=went)
        return went
