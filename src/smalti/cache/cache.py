"""The shards of data set versions as open, verified maps.

Intended behaviour; anything else is a bug:
1. A raw shard in a local folder is mapped in place, also where the index file names a compressed one for it; all
   others are fetched to `<local>/<digest>/<basename>`. Files without a checksum go to `<digest>.<address>`. The two
   files of a text shard (CSV, JSONL and the like) are fetched under one lock, and each is verified by itself.
2. No byte is read before the file has its declared size and hashes: checked while it is received, or once for a file
   that existed, by this process or one that it was forked from or with. Mapped files are checked for changes before
   each batch (`mapping.py`); one that was changed is verified again, a copy is fetched again. The first bytes of a
   file may be read before the rest arrives, once they have their own declared hash.
3. A file is published complete, by rename; a process killed at any moment leaves temporaries, which the next one
   removes, and nothing else.
4. One process of a host fetches a shard, the others wait for it with a deadline; the lock of a dead process is free.
5. A file that does not verify is quarantined and fetched again. If it stays wrong, every reader that requests that
   shard gets an error with shard, key, version and cause; the next request tries again.
6. With a limit, copies never take more bytes than that, on top of which comes what is being fetched; what is needed
   last is evicted first. A process that has a shard open keeps it. See `eviction.py`.
7. Nothing is opened, started or locked before the first use; a forked or unpickled copy has its own state.
8. A cache without references releases its maps, leases and threads at once, without the garbage collector. When a
   process has no descriptors left, all of its caches unmap some shards.

Calls go in one direction: `ShardCache` -> `FetchQueue` (`prefetch.py`) -> `ShardLoader` and `Fetcher` (`fetch.py`) ->
transfers (`transfer.py`) and the `SpaceManager` (`eviction.py`) -> files, locks, leases. What they share are plain
objects below all of them: `ShardSources`, `OpenShards` and `Counters`.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, cast

import numpy as np

from smalti.cache.eviction import SpaceManager
from smalti.cache.fetch import ShardLoader
from smalti.cache.mapping import CheckBudget, OpenShards
from smalti.cache.next_use import Uses
from smalti.cache.prefetch import FetchQueue
from smalti.cache.sources import ShardSources, Source
from smalti.cache.stats import Counters
from smalti.cache.transfer import ConcurrencyTuner, EarlyReader, may_be_early
from smalti.errors import SmaltiError, StoreTimeout
from smalti.format import AnyShard
from smalti.process import PerProcess

GRACE_SECONDS = 5.0
"""Seconds that a waiting thread waits longer than the fetching one, whose error is more precise."""


class ShardCache:
    """Shards by id, local and verified; thread-safe, safe under fork, picklable.

    Args:
        sources: Where the shards come from; a shard's id is its place in all of them, laid end to end. They share the
            number of open shards, the threads that fetch, and the limit.
        limit: Bytes that the copies of all of them may take, whichever process fetched them; None for no limit.

    Raises:
        CacheLimitError: the limit is less than the largest shard needs.
    """

    _tally: threading.Lock
    _num_requested: int

    def __init__(self, *sources: Source, limit: int | None = None) -> None:
        self._sources, self._limit = sources, limit
        self.counters = Counters()
        """Figures over this process and its workers."""
        self._reset()
        if limit is not None:
            self._shards.check_limit(limit)

    def shard(self, shard_id: int, last: int | None = None) -> AnyShard:
        """Return the open shard; blocks until it is local and verified, within the deadline of `CacheOptions`.

        Args:
            shard_id: Its id.
            last: The last of its samples that is needed. If these lie in its first bytes, and the manifest has a hash
                of those, only they are waited for: other samples of the result raise `FormatError`.

        Raises:
            ShardNotFound: the store no longer has it.
            ChecksumMismatch: its bytes are not those of the manifest, on every attempt.
            FormatError: it verifies, but is not a shard as its manifest describes it.
            StoreTimeout: it did not arrive in time.
            StoreAuthError: the store refused the credentials.
            StoreError: the store, or the cache's own disk, failed.
        """
        with self._tally:
            self._num_requested += 1
        if self._checks.allows_one():
            self._opened.drop_changed((shard_id,))
        return self._take(shard_id, last)

    def shards(self, shard_ids: Sequence[int], last: Callable[[], Iterable[int]] | None = None) -> list[AnyShard]:
        """Return the open shards of one batch; as `shard` for each. `last` returns the last needed sample of each."""
        with self._tally:
            self._num_requested += len(shard_ids)
        if self._checks.allows(len(shard_ids)):
            self._opened.drop_changed(shard_ids)
        found = list(map(self._opened.get, shard_ids))
        if None not in found:
            self.counters.waited(0.0)
            return cast("list[AnyShard]", found)
        del found  # an evicted shard takes disk space while it is mapped, and this thread may wait for long
        begin = time.perf_counter()
        taken = list(map(self._take, shard_ids, last() if last is not None else repeat(None)))
        self.counters.waited(time.perf_counter() - begin)
        return taken

    def _take(self, shard_id: int, last: int | None) -> AnyShard:
        found = self._opened.get(shard_id)
        return found if found is not None else self._obtain(shard_id, last)

    def done(self, shard_ids: list[int]) -> None:
        """Unmap the shards of a batch that was read if the disk is full: an evicted file takes space while mapped."""
        space = self._space.peek()
        if space is not None and space.is_disk_tight:
            self._opened.drop(shard_ids)

    def plan(self, future: Iterator[Uses] | None, order: str = "", *, is_of_many: bool = False) -> None:
        """Set which shards will be requested from now on, here and by other ranks of this host, counted in steps.

        Args:
            future: The uses to come, looked up when needed; None where they are unknown.
            order: Identifies the order: readers of the same order count the same steps.
            is_of_many: Whether several readers share each step, each at a shard of its own within it.
        """
        space = self._space.get()
        space.upcoming.plan(future, order, is_of_many=is_of_many)
        space.retry_step = 0

    def reached(self, step: int) -> None:
        """Record that all steps of the plan before this one are over, and retry fetches that had no space."""
        space = self._space.get()
        space.advance(step)
        if space.is_evicting:
            self._opened.drop_unlinked()
        if step < space.retry_step:
            return
        queue = self._queue.peek()
        deferred = queue.take_deferred() if queue is not None else []
        if queue is not None and deferred:
            queue.ahead(self._opened.missing(deferred))

    def settle(self, step: int = 0) -> None:
        """Add what this process counted for itself to the shared counters; `step` is the first that is not over."""
        with self._tally:
            num_requested, self._num_requested = self._num_requested, 0
        self.counters.add(hits=num_requested, reached=step)

    def prefetch(self, shard_ids: Iterable[int]) -> None:
        """Start to fetch these shards, in this order, on background threads; returns at once.

        A shard that fails is retried when it is requested, and raises then if it fails again.
        """
        if self._space.get().is_evicting:
            shard_ids = self._by_next_use(shard_ids)
        missing = self._opened.missing(shard_ids)
        if missing:
            self._queue.get().ahead(missing)

    def _by_next_use(self, shard_ids: Iterable[int]) -> list[int]:
        """Return these shards and those that had no space before, first needed first; renew the leases on them."""
        space = self._space.get()
        self._opened.drop_unlinked()
        found = sorted({*shard_ids, *self._queue.get().take_deferred()})
        is_known = space.upcoming.is_known
        uses = space.upcoming.next_use(np.array(found, np.int64)) if is_known else np.zeros(len(found))
        space.renew_leases(found)
        return [found[place] for place in np.argsort(uses, kind="stable").tolist()]

    def rest(self) -> None:
        """End the threads that fetch ahead as soon as nothing is queued: an epoch is over."""
        queue = self._queue.peek()
        if queue is not None:
            queue.rest()

    def close(self) -> None:
        """Clear the queue and unmap all shards; shards handed out stay usable. The cache can be used again."""
        self._finalizer()
        self.settle()
        self._reset()

    def __len__(self) -> int:
        return len(self._shards)

    def __getstate__(self) -> dict[str, Any]:
        return {"_sources": self._sources, "_limit": self._limit, "counters": self.counters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        # Nothing below refers to the cache itself, so that it is released as soon as its last user drops it.
        self._shards = ShardSources(self._sources, self._limit)
        self._opened, self._checks = OpenShards(len(self._shards)), CheckBudget()
        self._num_requested, self._tally = 0, threading.Lock()
        tuner: PerProcess[ConcurrencyTuner] = PerProcess(ConcurrencyTuner)
        self._space: PerProcess[SpaceManager] = PerProcess(
            partial(SpaceManager, self._limit, self._shards, self.counters, self._opened)
        )
        loader = ShardLoader(self._shards, self._opened, self._space, self.counters, tuner)
        self._queue: PerProcess[FetchQueue] = PerProcess(partial(FetchQueue, loader, tuner))
        self._finalizer = weakref.finalize(self, _release, self._queue, self._space, self._opened)
        self._finalizer.atexit = False

    @property
    def max_open(self) -> int:
        """Number of shards that are kept mapped; each holds a file descriptor."""
        return self._opened.max_open

    @property
    def limit(self) -> int | None:
        """Bytes that the copies may take; None for no limit."""
        return self._limit

    def costs(self) -> tuple[list[int], list[int]]:
        """Return by shard the bytes of its copies, and the bytes that are fetched; 0 for what is read where it lies."""
        return self._shards.costs()

    def _obtain(self, shard_id: int, last: int | None) -> AnyShard:
        if not 0 <= shard_id < len(self):
            urls = ", ".join(source.store.url for source in self._sources)
            raise IndexError(f"shard {shard_id} is not one of the {len(self)} shards of {urls}")
        source, info = self._shards.source_of(shard_id), self._shards.info(shard_id)
        timeout = source.max_seconds(info)
        begin = time.perf_counter_ns()
        copies = self._shards.copies(shard_id)
        is_missing = not all(map(os.path.exists, copies))
        try:
            is_early = is_missing and last is not None and may_be_early(info, last)
            early = EarlyReader(copies[0], source, info, last) if is_early and last is not None else None
            return self._queue.get().obtain(shard_id, timeout + GRACE_SECONDS, early)
        except SmaltiError as error:
            # A new one for each reader: threads that raise one object mix up their tracebacks.
            raise type(error)(error.message, **error.facts) from error
        except TimeoutError as error:
            raise StoreTimeout(
                f"{self._shards.shard(shard_id).name}: another thread has been fetching it for more than "
                f"{timeout:.0f} s; the disk of the cache does not answer",
                shard=shard_id,
                digest=source.digest,
            ) from error
        finally:
            waited = (time.perf_counter_ns() - begin) // 1000
            self.counters.add(hits=-1 if is_missing else 0, wait_microseconds=waited)


def _release(queue: PerProcess[FetchQueue], space: PerProcess[SpaceManager], opened: OpenShards) -> None:
    """Close what this process has made; a fork has none of the threads, and may have copied a lock that was held."""
    if (own_queue := queue.peek()) is not None:
        own_queue.close()
    if (own_space := space.peek()) is not None:
        own_space.close()
    opened.close()
