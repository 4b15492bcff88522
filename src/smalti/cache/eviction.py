"""The limit on the bytes of copies: space for fetches, and which shards are evicted, over all processes of the host.

Intended behaviour; anything else is a bug:
1. Copies, quarantined files included, never take more than the limit. What is being fetched comes on top, and space is
   freed before it is fetched wherever something can be evicted.
2. The account is what lies on disk, scanned under one lock for each folder. There are no counters that could be wrong,
   so a process that is killed at any moment leaves nothing to repair; what it was fetching is removed.
3. The shard whose next use is furthest in the future is evicted first; a shard that no reader is known to need counts
   as furthest. The next use is that of this process or of another one that reads from the folder. Files are unlinked: a
   process that has one open keeps it.
4. No shard that is needed sooner is evicted for one that is fetched ahead. If the shard that is needed last is still in
   use, another one is evicted that is needed nearly as late; if there is none, the fetch waits for its turn. A shard
   that is needed now is fetched whatever space there is.
5. The same holds on a disk that is nearly full, limit or not: a fetch ahead leaves space for one more shard, which a
   reader may be waiting for. For that one, everything is evicted but what its own step needs, which is mapped:
   unlinking it would free nothing.
6. Nothing but files in the cache's own folders is evicted, and where copies lie in a folder of the user (`mirror`),
   nothing but files of the shards. Eviction does not depend on clocks.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from smalti.cache.files import (
    BUDGET_LOCK,
    NETWORK,
    Contents,
    FileLock,
    SeenFiles,
    filesystem_of,
    folders_of,
    is_held,
    lock_of,
    remove_stale,
    scan,
    target_of,
)
from smalti.cache.leases import NEVER, Ints, Lease, LeaseContents, UpcomingUses, read_leases
from smalti.cache.mapping import OpenShards
from smalti.cache.sources import ShardSource, ShardSources, shards_of_file
from smalti.cache.stats import Counters
from smalti.catalog.table.shard_table import bytes_of
from smalti.errors import StoreTimeout
from smalti.storage.retry import Deadline

AMPLE_SHARDS = 64
"""With free disk space for so many shards, the folder is not scanned: more than one process fetches at once."""
DEFAULT_SHARE = 0.5
"""Share of the free space that copies may take by default; the rest is for other jobs, and for what grows later."""
_SUBSTITUTE_SHARE = 0.75
"""If what is needed last is still in use, another copy is evicted if its next use is at least this far away, as a share
of the other's distance. With a smaller share more is fetched; with 1, fetches ahead stop at the end of each window of
the order, and training waits."""
_LONGEST_PAUSE = 0.004  # seconds between two attempts at a folder's lock, which is never held for long


class NoSpaceYet(Exception):  # noqa: N818 -- a signal to the thread that fetches ahead
    """There is no space yet to fetch a shard ahead."""


def default_cache_limit(
    source: ShardSource,
    *,
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    filesystem: Callable[[Path], str] = filesystem_of,
) -> int | None:
    """Return the bytes that copies of `source` may take where the user has chosen no limit.

    Half of what is free on the disk of the cache folder. Copies of this version that exist already count as free, so
    that a job that is started again keeps its limit. At least the largest shard.

    Returns:
        None where nothing is copied, because shards are read where they lie, and on a network file system, where no
        limit can be kept.
    """
    sizes = bytes_of(source.shards)
    is_in_place = len(source.shards) > 0 and source.store.local_path(source.shards[0].raw.basename) is not None
    if not len(source.shards) or (is_in_place and not sizes.zipped.any()):
        return None
    folder = source.cache_folder
    existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if filesystem(existing) in NETWORK:
        return None
    kept = sum(scan(copies).kept_bytes for copies in folders_of(folder, source.digest))
    return max(int(DEFAULT_SHARE * (free_bytes(existing) + kept)), int(sizes.raw.max()))


def free_disk_bytes(folder: Path) -> int:
    """Return the bytes that can still be written to the disk of a folder; `sys.maxsize` where it reports no size."""
    usage = shutil.disk_usage(folder)
    return usage.free if usage.total else sys.maxsize


def eviction_order(next_uses: Ints, shards: Ints, last_used: Ints) -> Ints:
    """Return the places of copies in the order in which they are evicted: what is needed last comes first.

    Of those without a known use, files of no shard (-1 in `shards`) come first, then the least recently opened. Within
    a step, shards are read by number, so that the largest number is needed last.
    """
    is_unknown = next_uses == NEVER
    within = np.where(is_unknown, -last_used, shards)
    return np.lexsort((-within, ~(is_unknown & (shards < 0)), -next_uses))


@dataclass
class _Candidate:
    """Files that are evicted together: those of a shard, or one file that belongs to none."""

    shards: list[int]
    files: dict[Path, int]
    next_use_by_others: int = NEVER
    """Step at which another process needs it, counted as in this process."""
    own_next_use: int = NEVER
    """Step at which this process needs it."""

    @property
    def next_use(self) -> int:
        """Step at which any process needs it."""
        return min(self.own_next_use, self.next_use_by_others)


class SpaceManager:
    """The limit of one cache in one process: admits fetches and evicts copies; thread-safe.

    Evicted shards that this process has mapped are unmapped, as their files take space until then.
    """

    def __init__(self, limit: int | None, sources: ShardSources, counters: Counters, opened: OpenShards) -> None:
        self.limit = limit
        self.is_disk_tight = False
        """True once the disk was too small for a fetch."""
        self.upcoming = UpcomingUses()
        """The shards that this process will read."""
        self.retry_step = 0
        """The step before which admission is not retried after it was refused."""
        self.free_bytes = free_disk_bytes
        self.sources, self.counters, self.opened = sources, counters, opened
        self._lock = threading.Lock()
        self._leases: dict[Path, Lease] = {}
        self._seen: dict[Path, SeenFiles] = {}
        self._announced: dict[int, tuple[Path, ...]] = {}
        """Shards in the leases of this process, with their files."""
        self._num_uses = 0
        self._last_used: dict[int, int] = {}

    @property
    def is_evicting(self) -> bool:
        """True if copies are evicted to free space for others."""
        return self.limit is not None or self.is_disk_tight

    def admit(self, shard: int, num_bytes: int, lock: FileLock, deadline: Deadline, *, is_ahead: bool) -> None:
        """Reserve the bytes that a fetch will keep, and free disk space for it.

        `lock` is that of the fetch, whose file holds the reservation; with `is_ahead`, no reader waits for the shard
        yet.

        Raises:
            NoSpaceYet: it is fetched ahead, and what lies in the cache is needed sooner.
            StoreTimeout: another process held the folder's lock until the deadline.
        """
        staged, free = self.sources.shard(shard).staged_bytes, self.free_bytes(lock.path.parent)
        if not is_ahead:  # comes on top of the limit while it is fetched; `publishing` evicts for it
            lock.reserve(num_bytes)
            if free < staged:
                self.free_disk(shard, staged - free, deadline)
            return
        if self.limit is None and free >= AMPLE_SHARDS * staged:
            lock.reserve(num_bytes)
            return
        step, current = self._step_of(shard)
        with self._locked(deadline, f"space for shard {shard}"):
            contents = self._scan()
            turn = step, shard
            excess = self._over_disk(contents, lock.path, staged, turn)
            if self.limit is not None:
                kept = sum(each.kept_bytes for each in contents)
                incoming = self._incoming_bytes(contents, lock.path, turn)
                excess = max(excess, kept + incoming + num_bytes - self.limit)
            victims = []
            if excess > 0 and not self._is_sooner_missing(turn, contents):
                candidates = self._candidates(contents, step, shard, but=shard)
                for victim in self._free_victims(candidates, step, current):
                    victims.append(victim)
                    excess -= sum(victim.files.values())
                    if excess <= 0:
                        break
            if excess > 0:
                raise self._no_space(step, current)
            for victim in victims:
                self._evict(victim)
            lock.reserve(num_bytes)

    @contextmanager
    def publishing(self, shard: int, num_bytes: int, lock: FileLock, deadline: Deadline) -> Iterator[None]:
        """Evict down to the limit, and keep other processes from evicting while files of a shard are published."""
        if self.limit is None:
            yield
            return
        step, current = self._step_of(shard)
        # Within the current step, the shard that is read now, if it is known to be this one.
        after = shard if step == current and not self.upcoming.is_of_many else -1
        with self._locked(deadline, f"space for shard {shard}"):
            contents = self._scan()
            excess = sum(each.kept_bytes for each in contents) + num_bytes - self.limit
            if excess > 0:
                self._evict_bytes(self._candidates(contents, current, after, but=shard), excess)
            lock.reserve(0)
            yield

    def free_disk(self, shard: int, num_bytes: int, deadline: Deadline) -> int | None:
        """Evict so many bytes on a full disk, for a shard that is needed now; return how many were evicted.

        None if the disk holds fewer bytes than that when it is empty; 0 if there are no copies of other shards, or all
        of them are needed as soon as this one.
        """
        self.is_disk_tight = True
        step, current = self._step_of(shard)
        with self._locked(deadline, f"space for shard {shard}"):
            # A disk that reports no size counts as large enough.
            if all(0 < shutil.disk_usage(root).total < num_bytes for root in self.sources.roots()):
                return None
            candidates = self._candidates(self._scan(), current, -1, but=shard)
            return self._evict_bytes([each for each in candidates if each.next_use > step], num_bytes)

    def defer(self, shard: int) -> NoSpaceYet:
        """Return the error for a fetch ahead that found the disk full: it is retried at a later step."""
        self.is_disk_tight = True
        return self._no_space(*self._step_of(shard))

    def are_others_fetched(self, shard: int) -> bool:
        """Return whether any other shard is being fetched into these folders, by any process."""
        tables = self.sources.tables()
        locks = [lock for root in self.sources.roots() for lock in scan(root).locks]
        return any(shard not in shards_of_file(target_of(lock), tables) and is_held(lock) for lock in locks)

    def evict(self, shard: int, deadline: Deadline) -> int:
        """Evict the copies of one shard, whenever it is needed next; return their bytes."""
        found, files = self.sources.shard(shard), dict[Path, int]()
        for file in () if found.in_place() else found.files:
            for copy in (file.raw, file.zip):
                if copy is not None:
                    files[found.root(file) / copy.basename] = copy.num_bytes
        with self._locked(deadline, f"evicting shard {shard}"):
            return self._evict(_Candidate([shard], files))

    def evict_last_needed(self, deadline: Deadline) -> int:
        """Evict the copies that are needed last; return their bytes, 0 if there are none."""
        with self._locked(deadline, "evicting a shard"):
            return self._evict_bytes(self._candidates(self._scan(), self.upcoming.current_step, -1, but=-1), 1)

    def kept_bytes(self, deadline: Deadline) -> int:
        """Return the bytes of all copies, whichever process fetched them."""
        with self._locked(deadline, "listing copies"):
            return sum(contents.kept_bytes for contents in self._scan())

    def record_use(self, shard: int) -> None:
        """Record that a shard was opened: where no order is known, the least recently opened is evicted first."""
        self._num_uses += 1
        self._last_used[shard] = self._num_uses

    def renew_leases(self, shards: list[int]) -> None:
        """Announce to other processes the shards that this one will read soon."""
        if not self.is_evicting or not shards:
            return
        uses = self.upcoming.next_use(np.array(shards, np.int64))
        self._announced = {shard: self.sources.shard(shard).copies() for shard in shards}  # creates the folders
        next_use: dict[Path, dict[str, int]] = {root: {} for root in self.sources.roots()}
        for shard, use in zip(shards, uses.tolist(), strict=True):
            for path in self._announced[shard]:
                for root, names in next_use.items():
                    if path.is_relative_to(root):
                        names[str(path.relative_to(root))] = self.upcoming.current_step if use == NEVER else use
        with self._lock:
            for root, names in next_use.items():
                contents = LeaseContents(self.upcoming.order, self.upcoming.current_step, names)
                self._leases.setdefault(root, Lease(root)).renew(contents)

    def advance(self, step: int) -> None:
        """Record that every step before this one is over."""
        self.upcoming.current_step = step
        for lease in list(self._leases.values()):
            lease.advance(step)

    def close(self) -> None:
        """Release all leases."""
        with self._lock:
            for lease in self._leases.values():
                lease.release()
            self._leases.clear()

    def _no_space(self, step: int, current: int) -> NoSpaceYet:
        # Half of the way to the shard's step: a retry at every step would keep the folder's lock busy.
        self.retry_step = current + max(1, (step - current) // 2)
        return NoSpaceYet()

    def _over_disk(self, contents: list[Contents], own: Path, staged: int, turn: tuple[int, int]) -> int:
        """Return the bytes that the disk lacks for a fetch, for the fetches that are under way, and for one more."""
        tables, outstanding = self.sources.tables(), 0
        for each in contents:
            for lock, reserved in each.locks.items():
                ids = shards_of_file(target_of(lock), tables) if lock != own else []
                if ids and (reserved or self._is_due_before(ids, turn)):
                    outstanding += max(0, self.sources.shard(ids[0]).staged_bytes - each.partial_bytes.get(lock, 0))
        excess = 2 * staged + outstanding - self.free_bytes(own.parent)
        self.is_disk_tight |= excess > 0
        return excess

    def _incoming_bytes(self, contents: list[Contents], own: Path, turn: tuple[int, int]) -> int:
        """Return the bytes of what is being fetched into the folders, except under the lock `own`.

        A fetch without a reservation counts with the bytes of its shard, as it may have none yet or never make one;
        unless its turn is later, so that it will be refused until this one is done.
        """
        tables, total = self.sources.tables(), 0
        present = {path for each in contents for path in each.copies}
        for each in contents:
            for lock, size in each.incoming_bytes.items():
                ids = shards_of_file(target_of(lock), tables) if lock != own else []
                if each.locks.get(lock) == 0 and ids and target_of(lock) not in present:
                    kept = sum(file.kept_bytes for file in self.sources.shard(ids[0]).files)
                    total += max(size, kept) if self._is_due_before(ids, turn) else size
                elif lock != own:
                    total += size
        return total

    def _is_due_before(self, shards: list[int], turn: tuple[int, int]) -> bool:
        """Return whether a fetch without a reservation may take space before this turn; a later one will wait."""
        use = int(self.upcoming.next_use(np.array(shards, np.int64)).min())
        return use == NEVER or (use, shards[0]) < turn

    def _is_sooner_missing(self, turn: tuple[int, int], contents: list[Contents]) -> bool:
        """Return whether an announced shard is needed sooner and neither present nor fetched: it has precedence."""
        announced = dict(self._announced)
        if not announced:
            return False
        present = {path for each in contents for path in each.copies}
        fetched = {lock for each in contents for lock in each.locks}
        uses = self.upcoming.next_use(np.array(list(announced), np.int64)).tolist()
        for (other, files), use in zip(announced.items(), uses, strict=True):
            is_sooner = (use, other) < turn
            if is_sooner and files and not (present.issuperset(files) or lock_of(files[0]) in fetched):
                return True
        return False

    def _step_of(self, shard: int) -> tuple[int, int]:
        """Return the step that needs a shard, and the current one; they are the same if its next use is unknown."""
        current = self.upcoming.current_step
        use = int(self.upcoming.next_use(np.array([shard]))[0]) if self.upcoming.is_known else NEVER
        return (current if use == NEVER else use), current

    @contextmanager
    def _locked(self, deadline: Deadline, what: str) -> Iterator[None]:
        if not self._lock.acquire(timeout=max(0.001, deadline.left())):
            raise StoreTimeout(f"{what}: other threads were freeing space for more than {deadline.seconds:.0f} s")
        try:
            with ExitStack() as locks:
                for root in sorted(self.sources.roots()):
                    if not root.is_dir():
                        root.mkdir(mode=0o700, parents=True, exist_ok=True)
                    lock = FileLock(root / BUDGET_LOCK, deadline, what, longest_pause=_LONGEST_PAUSE)
                    locks.enter_context(lock)
                yield
        finally:
            self._lock.release()

    def _scan(self) -> list[Contents]:
        """Return the contents of all folders, after removing what dead processes left there."""
        roots = self.sources.roots()
        found = [scan(root, self._seen.setdefault(root, {})) for root in roots]
        for root, contents in zip(roots, found, strict=True):
            remove_stale(contents)
            self.sources.keep_copies(root, contents)
        return found

    def _candidates(self, contents: list[Contents], step: int, shard: int, *, but: int) -> list[_Candidate]:
        """Return what can be evicted, all `but` one shard, with its next use after that of `shard` at `step`."""
        tables = self.sources.tables()
        candidates: dict[object, _Candidate] = {}
        for root, found in zip(self.sources.roots(), contents, strict=True):
            lease = self._leases.get(root)
            next_use = self._next_use_by_others(read_leases(root, lease.name if lease else None))
            prefix = len(f"{root}/")
            for path, size in {**found.copies, **found.bad}.items():
                ids = shards_of_file(path, tables)
                if but in ids:
                    continue
                candidate = candidates.setdefault(tuple(ids) or path, _Candidate(ids, {}))
                candidate.files[path] = size
                by_others = next_use.get(str(path)[prefix:], NEVER)
                candidate.next_use_by_others = min(candidate.next_use_by_others, by_others)
        known = [(candidate, shard_id) for candidate in candidates.values() for shard_id in candidate.shards]
        if known and self.upcoming.is_known:
            uses = self.upcoming.next_use_after(np.array([shard_id for _, shard_id in known], np.int64), step, shard)
            for (candidate, _), use in zip(known, uses.tolist(), strict=True):
                candidate.own_next_use = min(candidate.own_next_use, use)
        return list(candidates.values())

    def _next_use_by_others(self, leases: list[LeaseContents]) -> dict[str, int]:
        """Return by file name the step of its next use in any other process, counted as in this process."""
        soonest: dict[str, int] = {}
        for lease in leases:
            is_same_order = lease.order == self.upcoming.order
            shift = 0 if is_same_order else self.upcoming.current_step - lease.current_step
            for name, step in lease.next_use.items():
                if step >= lease.current_step:
                    soonest[name] = min(soonest.get(name, NEVER), step + shift)
        return soonest

    def _in_eviction_order(self, candidates: list[_Candidate]) -> Iterator[_Candidate]:
        """Yield the candidates, the one to be evicted first at first."""
        uses = np.array([each.next_use for each in candidates], np.int64)
        first_shards = np.array([min(each.shards, default=-1) for each in candidates], np.int64)
        last_used = [max((self._last_used.get(shard, 0) for shard in each.shards), default=0) for each in candidates]
        for place in eviction_order(uses, first_shards, np.array(last_used, np.int64)).tolist():
            yield candidates[place]

    def _free_victims(self, candidates: list[_Candidate], step: int, current: int) -> Iterator[_Candidate]:
        """Yield the candidates that are not needed until `step`, what is needed last first.

        Ends before one that is needed much sooner than one that is passed over: to evict that one in its place
        would cost a fetch soon, to wait costs none.
        """
        nearest_allowed = 0
        for victim in self._in_eviction_order(candidates):
            if victim.next_use < nearest_allowed:
                return
            if not self._is_needed_until(victim, step, current):
                yield victim
            elif not nearest_allowed:
                nearest_allowed = current + int(_SUBSTITUTE_SHARE * (victim.next_use - current))

    def _is_needed_until(self, candidate: _Candidate, step: int, current: int) -> bool:
        """Return whether a candidate whose next use is after `step` may also be needed from now until then."""
        if candidate.next_use_by_others <= step:
            return True
        if not candidate.shards:
            return False
        if not self.upcoming.is_known:
            return True
        uses = self.upcoming.next_use_after(np.array(candidate.shards, np.int64), current, -1)
        return bool(uses.min() != candidate.own_next_use)

    def _evict_bytes(self, candidates: list[_Candidate], num_bytes: int) -> int:
        """Evict so many bytes, or all there are; return how many were evicted."""
        evicted = 0
        for victim in self._in_eviction_order(candidates):
            if evicted >= num_bytes:
                break
            evicted += self._evict(victim)
        return evicted

    def _evict(self, candidate: _Candidate) -> int:
        evicted = 0
        for path, size in candidate.files.items():
            with suppress(FileNotFoundError):  # removed by others
                path.unlink()
                evicted += size
        self.opened.drop(candidate.shards)
        self.counters.add(evictions=1, bytes_evicted=evicted)
        return evicted
