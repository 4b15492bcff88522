"""The next use of each shard: in other processes, by their leases, and in this one, by the order that it reads.

What is needed last is evicted. Intended behaviour; anything else is a bug:
1. A turn is a step and, within it, a shard: a batch requests its shards by number, the lowest first.
2. Steps are looked up when the next use of a shard is requested and not known yet, `MAX_LOOKAHEAD` uses ahead at most.
   For later ones the outline of the order is used, which says between which steps a shard is needed, to the end of the
   next epoch. A shard that is not there either, or has no outline, counts as needed last.
3. Past uses are dropped. No clock is involved: distances are counted in steps.
4. A lease is a file in which a process announces the shards that it will read soon, so that others do not evict them.
   The process holds an exclusive lock on it, which the kernel releases when the process dies: an unlocked lease is
   stale.
"""

import fcntl
import json
import operator
import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smalti.cache.files import LEASES, held_locks, is_held
from smalti.regular_files import read_regular

Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
"""The step of a shard that has no further use, as far as is known."""
MAX_LOOKAHEAD = 1 << 22
"""Uses that are looked up ahead at most: 60 MB and about a second, spread over as many samples read."""
_STEP_BITS = 40  # 10^12 steps; 8 million shards
_MAX_CREATE_ATTEMPTS = 5  # a sweep by another process may remove the new file before this one locks it


@dataclass(frozen=True)
class Uses:
    """A section of the order to come."""

    shards: Ints
    """Shards that are needed, in the order of their steps; any may occur often."""
    steps: Ints
    """The step that needs each."""
    end: int
    """The first step after them."""


@dataclass(frozen=True)
class Outline:
    """The order of one epoch, or of the rest of one, by shard; each array is int64, shape (pieces,)."""

    shards: Ints
    """Shards, or parts of them, that are needed."""
    begins: Ints
    """The first step that may need each."""
    ends: Ints
    """The first step after those that may need it."""
    end: int
    """The first step after the epoch."""


class UpcomingUses:
    """The uses to come of one reader; thread-safe."""

    def __init__(self, max_lookahead: int = MAX_LOOKAHEAD) -> None:
        self._lock, self._max_lookahead = threading.Lock(), max_lookahead
        self.plan(None)

    def plan(
        self,
        future: Iterator[Uses] | None,
        order: str = "",
        *,
        is_of_many: bool = False,
        outline: Iterator[Outline] | None = None,
    ) -> None:
        """Set what will be read from step 0 on; None where it is unknown. `outline` is of the same order, by epochs."""
        with self._lock:
            self.current_step = 0
            """The first step that is not over."""
            self.order = order
            """Identifies the order that is read; readers of the same order count the same steps."""
            self.is_of_many = is_of_many
            """True if several readers take each step together; within one step, each reads a different shard."""
            self._future, self._num_ahead, self._end, self._full_until = future, 0, 0, 0
            self._keys = np.zeros(0, np.int64)
            """Uses that were looked up, sorted: shard << _STEP_BITS | step."""
            self._epochs = outline
            # Of the outlines of the epoch in which the looked-up uses end, and of the one after it:
            self._outlines: list[Outline] = []
            self._later_keys = self._later_begins = np.zeros(0, np.int64)
            """Sorted: shard << _STEP_BITS | end; and the first step of each."""

    @property
    def is_known(self) -> bool:
        """True if there is an order."""
        return self._future is not None or bool(self._keys.size)

    def next_use(self, shards: Ints) -> Ints:
        """Return for each shard the first step from the current one on that needs it, or NEVER.

        Returns:
            int64, the shape of `shards`.
        """
        return self.next_use_after(shards, self.current_step, -1)

    def next_use_after(self, shards: Ints, step: int, shard: int) -> Ints:
        """Return for each shard the step of its first use after the turn of `shard` at `step`, or NEVER.

        Returns:
            int64, the shape of `shards`.
        """
        with self._lock:
            begin = np.where(shards > shard, step, step + 1)
            found = self._lookup(shards, begin)
            while self._future is not None and (found == NEVER).any() and self._extend():
                found = self._lookup(shards, begin)
            unknown = found == NEVER
            if self._future is not None and unknown.any():
                found[unknown] = self._later_use(shards[unknown], np.maximum(begin[unknown], self._end))
            return found

    def _lookup(self, shards: Ints, begin: Ints) -> Ints:
        keys = (shards << _STEP_BITS) + begin
        at = np.searchsorted(self._keys, keys)
        found = self._keys[np.minimum(at, self._keys.size - 1)] if self._keys.size else np.full(shards.shape, -1)
        is_of_shard = (at < self._keys.size) & (found >> _STEP_BITS == shards)
        return np.where(is_of_shard, found & ((1 << _STEP_BITS) - 1), NEVER)

    def _extend(self) -> bool:
        """Look up another section; return False at the end of the order, or when enough is known."""
        if self._num_ahead > self._max_lookahead:
            if self.current_step < self._full_until:
                return False
            is_past = (self._keys & ((1 << _STEP_BITS) - 1)) < self.current_step
            self._keys = self._keys[~is_past]
            self._num_ahead = int(self._keys.size)
            if self._num_ahead > self._max_lookahead:
                # Going through all uses takes milliseconds: not again before a part of them is past.
                self._full_until = self.current_step + max(1, (self._end - self.current_step) // 16)
                return False
        future = self._future
        uses = None if future is None else next(future, None)
        if uses is None:
            self._future = None
            return False
        new = np.unique((uses.shards << _STEP_BITS) + uses.steps)
        self._keys = np.concatenate((self._keys, new))
        self._keys.sort(kind="stable")
        self._num_ahead += int(new.size)
        self._end = uses.end
        return True

    def _later_use(self, shards: Ints, steps: Ints) -> Ints:
        """Return for each shard the first of the steps from that of `steps` on that may need it by the outlines.

        NEVER if there is none. Both arrays are int64, of shape (shards,).
        """
        known = [outline for outline in self._outlines if outline.end > self._end]
        while len(known) < 2 and self._epochs is not None:
            following = next(self._epochs, None)
            if following is None:
                self._epochs = None
            elif following.end > self._end:
                known.append(following)
        if len(known) != len(self._outlines) or not all(map(operator.is_, known, self._outlines)):
            self._outlines, none = known, np.zeros(0, np.int64)
            keys = np.concatenate([none, *((outline.shards << _STEP_BITS) + outline.ends for outline in known)])
            order = np.argsort(keys, kind="stable")
            self._later_keys = keys[order]
            self._later_begins = np.concatenate([none, *(outline.begins for outline in known)])[order]
        at = np.searchsorted(self._later_keys, (shards << _STEP_BITS) + steps + 1)
        is_of_shard = at < self._later_keys.size
        is_of_shard[is_of_shard] = self._later_keys[at[is_of_shard]] >> _STEP_BITS == shards[is_of_shard]
        found = np.full(shards.shape, NEVER)
        found[is_of_shard] = np.maximum(self._later_begins[at[is_of_shard]], steps[is_of_shard])
        return found


def least_bytes(
    needed: Sequence[int], held: Sequence[int], costs: Sequence[int], limit: int | None, *, is_warm: bool = False
) -> int:
    """Return the bytes that are fetched when what is needed last is evicted each time (Belady's algorithm).

    Exact for shards of one size. Where sizes differ, computing the least is intractable, and this is the usual measure.

    Args:
        needed: Shards, in the order in which they are needed.
        held: By shard, the bytes of its copies.
        costs: By shard, the bytes that are fetched.
        limit: Bytes that copies may take; a single shard may exceed it. None for no limit.
        is_warm: Whether the cache is filled at the start, with what is needed first; otherwise it is empty.
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


@dataclass(frozen=True)
class LeaseContents:
    """The shards that one process will read soon."""

    order: str = ""
    """Identifies the order that it reads; processes that read the same one count the same steps."""
    current_step: int = 0
    """Step that it is reading; updated at every step."""
    next_use: Mapping[str, int] = field(default_factory=dict)
    """Step of the next use by file name, relative to the cache folder; updated occasionally, so entries may be past."""


class Lease:
    """The lease of this process on one cache folder; its file is created by the first `renew`."""

    def __init__(self, root: Path) -> None:
        self._folder = root / LEASES
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        self._descriptor = -1
        self._pid = os.getpid()

    def renew(self, contents: LeaseContents) -> None:
        """Write the lease. Best effort: a failed write is ignored and leaves the shards evictable."""
        body = json.dumps({"order": contents.order, "soon": dict(contents.next_use)}).encode()
        text = _step_line(contents.current_step) + body + b"\n"
        with suppress(OSError):
            if self._descriptor < 0 or not (self._folder / self.name).exists():
                self._create()
            os.pwrite(self._descriptor, text, 0)  # a concurrent reader stops at the end of the line
            os.ftruncate(self._descriptor, len(text))

    def advance(self, step: int) -> None:
        """Record the current step without rewriting the rest. Best effort."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                os.pwrite(self._descriptor, _step_line(step), 0)

    def release(self) -> None:
        """Remove the lease file and release its lock."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                (self._folder / self.name).unlink(missing_ok=True)
                read_leases(self._folder.parent)  # removes stale ones
                self._folder.rmdir()
            held_locks.discard(self._descriptor)
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def _create(self) -> None:
        self.release()
        for _ in range(_MAX_CREATE_ATTEMPTS):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            read_leases(self._folder.parent)  # removes stale ones
            self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
            path, flags = self._folder / self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.stat()
            except OSError as error:
                os.close(descriptor)
                if not isinstance(error, BlockingIOError | FileNotFoundError):  # removed as stale in between
                    raise
            else:
                held_locks.add(descriptor)
                self._descriptor = descriptor
                return


def read_leases(root: Path, own: str | None = None) -> list[LeaseContents]:
    """Return the leases of other living processes on a cache folder, and remove stale ones.

    `own` is the file name of this process's own lease, which is left out.
    """
    found = []
    for path in lease_paths(root):
        if path.name == own:
            continue
        if not is_held(path):
            with suppress(OSError):  # a folder is not a lease, and may stay
                path.unlink(missing_ok=True)
            continue
        contents = LeaseContents()  # empty while it is being renewed, and for a file that is not a lease
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            first, body, *_ = read_regular(path).split(b"\n", 2)
            step, entries = int(first), json.loads(body)
            order, next_use = entries["order"], entries["soon"]
            if type(order) is str and isinstance(next_use, dict):
                uses = {name: use for name, use in next_use.items() if type(use) is int}
                contents = LeaseContents(order, step, uses)
        found.append(contents)
    return found


def lease_paths(root: Path) -> list[Path]:
    """Return the files of all leases on a cache folder, stale ones included."""
    try:
        return sorted((root / LEASES).iterdir())
    except OSError:
        return []


def _step_line(step: int) -> bytes:
    return b"%020d\n" % step  # of constant length: it is overwritten in place
