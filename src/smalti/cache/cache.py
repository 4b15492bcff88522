"""The shards of data set versions as open, verified maps.

Intended behaviour; anything else is a bug:
1. A raw shard in a local folder is mapped where it lies, also where the index names a compressed one for it;
   everything else is fetched to `<local>/<digest>/<basename>`. What has no checksum goes to `<digest>.<address>`.
   The two files of a text shard (CSV, JSONL and the like) come under one lock, and each is verified by itself.
2. No byte is read before the file has its declared size and hashes: checked while it streams, or once for a file
   that was there already, by this process or one that it was forked from or with. Mapped files are compared with what
   they were before each batch (`changes.py`); one that was changed since is verified again, a copy fetched again.
   The first bytes of a file on its way may be read before it is whole, once they have the declared hash of theirs.
3. A file appears under its name whole, by rename; a process killed at any moment leaves temporaries that the next one
   removes, and nothing else.
4. One process of a host fetches a shard, the others wait for it with a deadline; the lock of a dead process is free.
5. A file that does not verify is put aside and fetched again. What stays wrong is an error on every consumer that asks
   for that shard, with shard, key, version and cause; the next request tries again.
6. With a limit, copies never take more bytes than that, beside what is being fetched; what is needed last goes first.
   Who has a shard open keeps it. See `keeping.py`.
7. Nothing is opened, started or locked before the first use; a forked or unpickled copy makes its own.
8. A cache that nobody refers to any more lets go of its maps, leases and threads at once, without the garbage
   collector. When a process has no descriptors left, all of its caches let go of some.
"""

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from smalti.cache.descriptors import detect_most_held, is_exhausted, num_held, register, shed
from smalti.cache.early import Arriving, may_be_first
from smalti.cache.eviction import Keeper, Owners, Places
from smalti.cache.fetch import Fetcher
from smalti.cache.mapping import CheckBudget, Known, Opening
from smalti.cache.next_use import Uses
from smalti.cache.options import CacheOptions, detect_open_limit
from smalti.cache.prefetch import Jobs, Pace
from smalti.cache.stats import Counters
from smalti.cache.wanted import Wanted, most_seconds_for, num_bytes_fetched, num_bytes_held
from smalti.cache.weak import weakly, when_dropped
from smalti.catalog.manifest import has_write_id
from smalti.catalog.table.shard_table import bytes_of
from smalti.errors import CacheLimitError, ChecksumMismatch, SmaltiError, StoreError, StoreTimeout
from smalti.format import AnyShard, Shard, ShardInfo, open_shard
from smalti.storage import Store
from smalti.storage.process import PerProcess

GRACE_SECONDS = 5.0
"""How much longer than the fetching thread a waiting one waits: the former has the better message."""


@dataclass(frozen=True, eq=False)
class Source:
    """One version of a shard set, and how its shards come here."""

    store: Store
    """The root of the set."""
    digest: str
    """The manifest's digest; names the folder of the copies."""
    shards: Sequence[ShardInfo]
    """The manifest's shards, or some of them."""
    options: CacheOptions
    """Where copies lie, how often and how long to try."""
    allow_unsafe_types: bool = False
    """Whether columns that run code when decoded may be opened."""
    is_own: bool = False
    """Whether Smalti wrote the shards, so that what they say of themselves must be what the manifest says."""

    def opener(self, info: ShardInfo) -> Callable[[Sequence[Path]], AnyShard]:
        """Return what opens the files of one of the shards."""

        def open_files(paths: Sequence[Path]) -> AnyShard:
            unsafe = self.allow_unsafe_types
            return open_shard(paths, info, allow_unsafe_types=unsafe, check_config=self._is_own(info))

        return open_files

    def first_opener(self, info: ShardInfo, last: int) -> Callable[[Path], Shard | None]:
        """Return what opens one of the shards over its first bytes, up to sample `last`."""

        def open_first(path: Path) -> Shard | None:
            unsafe = self.allow_unsafe_types
            return Shard.open_first(path, info, last, allow_unsafe_types=unsafe, check_config=self._is_own(info))

        return open_first

    def _is_own(self, info: ShardInfo) -> bool:
        return self.is_own or has_write_id(info.raw.basename)


class ShardCache:
    """Shards by number, here and verified; thread-safe, safe under fork, picklable.

    Args:
        sources: Where the shards come from; a shard's id is its place in all of them, laid end to end. They share what
            is open at once, the threads that fetch, and the limit.
        limit: Bytes that the copies of all of them may take, whoever made them; None for no bound.

    Raises:
        CacheLimitError: the limit is less than the largest shard needs.
    """

    _tally: threading.Lock
    _asked: int

    def __init__(self, *sources: Source, limit: int | None = None) -> None:
        self._sources, self._limit = sources, limit
        self.counters = Counters()
        """What was done, over this process and its workers."""
        self._reset()
        if limit is not None:
            self._check_limit(limit)

    def shard(self, shard_id: int, last: int | None = None) -> AnyShard:
        """The open shard; blocks until it is here and verified, within the deadline of `CacheOptions`.

        Args:
            shard_id: Its id.
            last: The last of its samples that is needed. Where these lie in its first bytes, and the manifest has a
                hash of them, they are waited for alone: other samples of the result raise `FormatError`.

        Raises:
            ShardNotFound: the store no longer has it.
            ChecksumMismatch: its bytes are not those of the manifest, on every attempt.
            FormatError: it verifies, but is not a shard as its manifest describes it.
            StoreTimeout: it did not arrive in time.
            StoreAuthError: the store refused the credentials.
            StoreError: the store, or the cache's own disk, failed.
        """
        with self._tally:
            self._asked += 1
        if self._checks.allows_one():
            self._drop_changed((shard_id,))
        return self._take(shard_id, last)

    def _take(self, shard_id: int, last: int | None = None) -> AnyShard:
        found = self._open.get(shard_id)
        if found is not None:
            self._used[shard_id] = True
            return found
        return self._obtain(shard_id, last)

    def shards(self, shard_ids: Sequence[int], last: Callable[[], Iterable[int]] | None = None) -> list[AnyShard]:
        """The open shards that one batch needs; as `shard` for each. `last` gives the last sample needed of each."""
        with self._tally:
            self._asked += len(shard_ids)
        if self._checks.allows(len(shard_ids)):
            self._drop_changed(shard_ids)
        begin, waits = time.perf_counter(), not all(map(self._open.__contains__, shard_ids))
        found = list(map(self._take, shard_ids, last() if waits and last is not None else repeat(None)))
        self.counters.waited(time.perf_counter() - begin if waits else 0.0)
        return found

    def done(self, shard_ids: list[int]) -> None:
        """A batch was read. On a full disk its maps go: what is evicted under a map takes room until nobody has one."""
        keeper = self._keeper.peek()
        if keeper is not None and keeper.is_tight:
            self._forget(shard_ids)

    def plan(self, future: Iterator[Uses] | None, order: str = "", *, is_of_many: bool = False) -> None:
        """What will be asked for from now on, here and by other ranks of this host, counted in steps.

        None where nobody knows. Looked up when needed. `order` names it: who reads the same counts the same steps.
        """
        keeper = self._keeper.get()
        keeper.agenda.plan(future, order, is_of_many=is_of_many)
        keeper.full_until = 0

    def reached(self, step: int) -> None:
        """All steps of the plan before this one are over."""
        keeper = self._keeper.get()
        keeper.reached(step)
        if keeper.is_bounded:
            self._forget_gone()
        if step < keeper.full_until:
            return
        jobs = self._jobs.peek()
        later = jobs.later() if jobs is not None else []
        if jobs is not None and later:
            jobs.ahead([shard_id for shard_id in later if shard_id not in self._open])

    def settle(self, step: int = 0) -> None:
        """Adds what this process counted for itself to what all have counted; `step` is the first not over."""
        with self._tally:
            asked, self._asked = self._asked, 0
        self.counters.add(hits=asked, reached=step)

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """Start to bring these shards, in this order, on background threads; returns at once.

        A shard that fails is tried again when it is asked for, and raises then if it fails still.
        """
        if self._keeper.get().is_bounded:
            shard_ids = self._in_turn(shard_ids)
        wanted = [shard_id for shard_id in shard_ids if shard_id not in self._open]
        if wanted:
            self._jobs.get().ahead(wanted)

    def _in_turn(self, shard_ids: Iterable[int]) -> list[int]:
        """These and what had no room before, first needed first. Others are told of them, and maps of what went go."""
        keeper = self._keeper.get()
        self._forget_gone()
        wanted = sorted({*shard_ids, *self._jobs.get().later()})
        uses = keeper.agenda.next_use(np.array(wanted, np.int64)) if keeper.agenda.is_known else np.zeros(len(wanted))
        keeper.renew(wanted, self._copies)
        return [wanted[place] for place in np.argsort(uses, kind="stable").tolist()]

    def _copies(self, shard_id: int) -> tuple[Path, ...]:
        number, source, place = self._find(shard_id)
        return self._fetchers[number].copies(source.shards[place])

    def rest(self) -> None:
        """End the threads that fetch ahead as soon as nothing is queued: a pass is over."""
        jobs = self._jobs.peek()
        if jobs is not None:
            jobs.rest()

    def _drop_changed(self, shard_ids: Sequence[int]) -> None:
        """Let go of maps of files that were changed: their pages may be gone, and their contents be others."""
        self._forget(
            [shard_id for shard_id in shard_ids if shard_id in self._open and self._known.is_changed(shard_id)]
        )

    def _forget_gone(self) -> None:
        """An unlinked file takes room for as long as somebody maps it."""
        for shard_id in list(self._open):
            if not all(map(os.path.exists, (state.path for state in self._known.states(shard_id)))):
                self._forget([shard_id])

    def _forget(self, shard_ids: list[int]) -> None:
        for shard_id in shard_ids:
            self._open.pop(shard_id, None)

    def close(self) -> None:
        """Give up what is queued and let go of all maps; shards handed out stay usable. The cache can be used again."""
        jobs = self._jobs.peek()
        if jobs is not None:
            jobs.close()
        keeper = self._keeper.peek()
        if keeper is not None:
            keeper.close()
        self.settle()
        self._reset()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"_sources": self._sources, "_limit": self._limit, "counters": self.counters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        # A fork copies these: maps are read-only and stay valid in the child.
        self._open: dict[int, AnyShard] = {}
        self._used: dict[int, bool] = {}
        self._ends = list(accumulate(len(source.shards) for source in self._sources))
        self._known, self._checks = Known(len(self)), CheckBudget()
        self._pace: PerProcess[Pace] = PerProcess(Pace)
        self._fetchers = [
            Fetcher((source.store, source.digest, source.options), self.counters, self._pace, self._limit)
            for source in self._sources
        ]
        self._tables: list[Owners] | None = None
        self._asked, self._tally = 0, threading.Lock()
        self._keeper: PerProcess[Keeper] = PerProcess(weakly(self._make_keeper))
        self._jobs: PerProcess[Jobs[AnyShard]] = PerProcess(weakly(self._make_jobs))
        self._max_open: int | None = None
        register(self)

    @property
    def max_open(self) -> int:
        """How many shards are kept mapped at once; each holds a file descriptor."""
        if self._max_open is None:
            self._max_open = detect_open_limit()
        return self._max_open

    def _make_keeper(self) -> Keeper:
        places = Places(weakly(self._roots), weakly(self._owners), weakly(self._held), weakly(self._fetched))
        keeper = Keeper(self._limit, places, self.counters, weakly(self._forget))
        when_dropped(self, keeper.close)
        return keeper

    def _roots(self) -> list[Path]:
        return sorted({root for fetcher in self._fetchers for root in fetcher.roots()})

    def _owners(self) -> list[tuple[Path, Owners]]:
        if self._tables is None:
            begins = (end - len(source.shards) for end, source in zip(self._ends, self._sources, strict=True))
            self._tables = [Owners(source.shards, begin) for begin, source in zip(begins, self._sources, strict=True)]
        both = zip(self._fetchers, self._tables, strict=True)
        return [(root, table) for fetcher, table in both for root in fetcher.roots()]

    def _held(self, shard_id: int) -> int:
        _, source, place = self._find(shard_id)
        return num_bytes_held(source.shards[place], source.options)

    def _fetched(self, shard_id: int) -> int:
        _, source, place = self._find(shard_id)
        return num_bytes_fetched(source.shards[place])

    @property
    def limit(self) -> int | None:
        """Bytes that the copies may take; None for no bound."""
        return self._limit

    def costs(self) -> tuple[list[int], list[int]]:
        """By shard, the bytes that its copies take, and those that it takes to fetch; 0 for what is read in place."""
        held, costs = [], []
        for fetcher, source in zip(self._fetchers, self._sources, strict=True):
            is_copied = _are_copied(fetcher, source)
            held.append(np.where(is_copied, _held_each(source), 0))
            costs.append(np.where(is_copied, bytes_of(source.shards).stored, 0))
        return np.concatenate(held).tolist(), np.concatenate(costs).tolist()

    def _check_limit(self, limit: int) -> None:
        needs = np.concatenate([_held_each(source) for source in self._sources])
        if needs.size and (need := int(needs.max())) > limit:
            raise CacheLimitError(
                f"`cache_limit` is {limit} bytes, and {self._name(int(needs.argmax()))} alone takes {need}: give at "
                "least that; what a few batches need, and those that are fetched meanwhile, is better.",
                limit=limit,
                needed=need,
            )

    def _make_jobs(self) -> Jobs[AnyShard]:
        jobs: Jobs[AnyShard] = Jobs(weakly(self._bring), self._pace.get())
        when_dropped(self, jobs.close)
        return jobs

    def _obtain(self, shard_id: int, last: int | None) -> AnyShard:
        if not 0 <= shard_id < len(self):
            urls = ", ".join(source.store.url for source in self._sources)
            raise IndexError(f"shard {shard_id} is not one of the {len(self)} shards of {urls}")
        _, source, place = self._find(shard_id)
        timeout = most_seconds_for(source.shards[place], source.options)
        begin, missing = time.perf_counter_ns(), self._is_missing(shard_id)
        try:
            early = self._early(shard_id, last) if missing and last is not None else None
            return self._jobs.get().obtain(shard_id, timeout + GRACE_SECONDS, early)
        except SmaltiError as error:
            # A fresh one for each consumer: threads that raise one object mix up their tracebacks.
            raise type(error)(error.message, **error.facts) from error
        except TimeoutError as error:
            raise StoreTimeout(
                f"{self._name(shard_id)}: another thread has been fetching it for more than "
                f"{timeout:.0f} s; the disk of the cache does not answer",
                shard=shard_id,
                digest=source.digest,
            ) from error
        finally:
            waited = (time.perf_counter_ns() - begin) // 1000
            self.counters.add(hits=-1 if missing else 0, wait_microseconds=waited)

    def _early(self, shard_id: int, last: int) -> Callable[[], AnyShard | None] | None:
        """Gives the shard as soon as its samples up to `last` are here, if that can be before all of it is."""
        number, source, place = self._find(shard_id)
        info = source.shards[place]
        if not may_be_first(info, last):
            return None
        (target,) = self._fetchers[number].copies(info)
        return Arriving(target, source.first_opener(info, last)).look

    def _is_missing(self, shard_id: int) -> bool:
        return not all(map(os.path.exists, self._copies(shard_id)))

    def _bring(self, shard_id: int, *, ahead: bool = False) -> AnyShard:
        found = self._open.get(shard_id)
        if found is not None:
            return found
        number, source, place = self._find(shard_id)
        info = source.shards[place]
        wanted = Wanted(shard_id, info, _named(info, place, source))
        keeper = self._keeper.get()
        copies = self._copies(shard_id)
        was_here = all(map(os.path.exists, copies))
        opening = Opening(wanted, self._known, source.opener(info), is_copied=bool(copies))

        def bring() -> AnyShard:
            fetcher = self._fetchers[number]
            return cast(
                "AnyShard",
                fetcher.bring(wanted, opening.use, trusted=opening.trusted, keeper=keeper, ahead=ahead),
            )

        try:
            shard = self._with_descriptors(bring)
        except ChecksumMismatch as error:
            explained = opening.explained(error)
            if explained is error:
                raise
            raise explained from error
        if was_here:
            self.counters.add(bytes_from_disk=sum(file.num_bytes for file in info.raw_files))
        keeper.used(shard_id)
        self._make_room()
        self._open[shard_id] = shard
        return shard

    def _with_descriptors(self, bring: Callable[[], AnyShard]) -> AnyShard:
        """Bring a shard; when no descriptor is left, let go of maps of other caches, then of our own, and try again."""
        while True:
            try:
                return bring()
            except StoreError as error:  # noqa: PERF203 -- locks and temporaries are files, too
                if not is_exhausted(error) or not (shed(but=self) or self._live_with_fewer()):
                    raise

    def _live_with_fewer(self) -> int:
        """Let go of half of the maps, and keep no more than that open from now on; how many went."""
        before = len(self._open)
        self._max_open = max(1, before // 2)
        self._make_room()
        return before - len(self._open)

    @property
    def num_held(self) -> int:
        """How many shards are mapped."""
        return len(self._open)

    def shed(self) -> int:
        """Let go of half of the maps: other caches of this process have no descriptor left."""
        oldest = self._oldest(-(-len(self._open) // 2))
        self._forget(oldest)
        return len(oldest)

    def _make_room(self) -> None:
        """Let go of maps that were not used since the last look, oldest first; readers that still hold one keep it."""
        excess = len(self._open) + 1 - self.max_open
        if excess > 0:
            self._forget(self._oldest(excess))
        if num_held() >= detect_most_held():
            shed(but=self)

    def _oldest(self, count: int) -> list[int]:
        # A stable sort: not used first, and within each the ones opened first.
        return sorted(self._open, key=lambda i: self._used.pop(i, False))[:count]

    def _find(self, shard_id: int) -> tuple[int, Source, int]:
        """The number of a shard's source, the source, and the shard's place in it."""
        number = bisect_right(self._ends, shard_id)
        return number, self._sources[number], shard_id - (self._ends[number - 1] if number else 0)

    def _name(self, shard_id: int) -> str:
        _, source, place = self._find(shard_id)
        return _named(source.shards[place], place, source)


def _named(info: ShardInfo, place: int, source: Source) -> str:
    return f"shard {place} ({info.stored.basename}) of {source.store.url}, version digest {source.digest[:12]}"


def _held_each(source: Source) -> NDArray[np.int64]:
    """By shard, the bytes that its copies take."""
    sizes = bytes_of(source.shards)
    return sizes.raw + sizes.zipped if source.options.keep_zip else sizes.raw


def _are_copied(fetcher: Fetcher, source: Source) -> NDArray[np.bool_]:
    """By shard, whether it is fetched, not read where it lies."""
    zipped = bytes_of(source.shards).zipped
    if not len(source.shards) or source.store.local_path(source.shards[0].raw.basename) is None:
        return np.ones(zipped.size, np.bool_)
    found = np.zeros(zipped.size, np.bool_)
    for place in np.flatnonzero(zipped).tolist():  # one that was unpacked beside its compressed file is not fetched
        found[place] = bool(fetcher.copies(source.shards[place]))
    return found
