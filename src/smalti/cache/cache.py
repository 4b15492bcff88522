"""The shards of data set versions as open, verified maps.

Intended behaviour; anything else is a bug:
1. A raw shard in a local folder is mapped in place, also where the index file names a compressed one for it; all
   others are fetched to `<local>/<digest>/<basename>`. Files without a checksum go to `<digest>.<address>`. The two
   files of a text shard (CSV, JSONL and the like) are fetched under one lock, and each is verified by itself.
2. No byte is read before the file has its declared size and hashes: checked while it is received, or once for a file
   that existed, by this process or one that it was forked from or with. Mapped files are checked for changes before
   each batch (`mapping.py`); one that was changed is verified again, a copy is fetched again. Blocks of a file, which
   have hashes of their own, may be read before the rest arrives (`blocks.py`).
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

Calls go in one direction: `ShardCache` -> `PartialReads` (`blocks.py`), which reads blocks, and `FetchQueue` ->
`load_shard` (`fetch.py`) -> transfers (`transfer.py`) and the `SpaceManager` (`eviction.py`) -> files,
locks, leases. What they share are plain objects below all of them: `ShardSources`, `OpenShards` and `Counters`.
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from smalti.cache.blocks import PartialReads
from smalti.cache.eviction import NoSpaceYet, SpaceManager
from smalti.cache.fetch import load_shard
from smalti.cache.leases import Outline, Uses
from smalti.cache.mapping import CheckBudget, OpenShards
from smalti.cache.sources import ShardSource, ShardSources
from smalti.cache.stats import Counters
from smalti.cache.transfer import ConcurrencyTuner
from smalti.errors import SampleIndexError, SmaltiError, StoreTimeout
from smalti.format import AnyShard
from smalti.process import PerProcess
from smalti.storage.retry import Deadline

IDLE_SECONDS = 5.0
"""Time after which an idle thread ends."""
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

    def __init__(self, *sources: ShardSource, limit: int | None = None) -> None:
        self._sources = sources
        self.limit = limit
        """Bytes that the copies may take; None for no limit."""
        self.counters = Counters()
        """Figures over this process and its workers."""
        self._reset()
        if limit is not None:
            self._shards.check_limit(limit)

    def shard(self, shard_id: int, row: int | None = None) -> AnyShard:
        """Return the open shard; blocks until it is local and verified, within the deadline of `CacheOptions`.

        `row` is the only one of its samples that is needed. If the shard has a block list, only a part may be waited
        for: other samples of the result raise `FormatError`.

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
        found = self._opened.get(shard_id)
        if found is not None:
            self.parts.release_prefetches()
            return found
        rows = None if row is None else np.array([row])
        return self._take_all((shard_id,), [rows])[0]

    def shards(
        self, shard_ids: Sequence[int], rows: Callable[[], Sequence[NDArray[np.int64]]] | None = None
    ) -> list[AnyShard]:
        """Return the open shards of one batch; as `shard` for each. `rows` returns the needed samples of each."""
        with self._tally:
            self._num_requested += len(shard_ids)
        if self._checks.allows(len(shard_ids)):
            self._opened.drop_changed(shard_ids)
        found = list(map(self._opened.get, shard_ids))
        if None not in found:
            self.parts.release_prefetches()
            self.counters.waited(0.0)
            return cast("list[AnyShard]", found)
        del found  # an evicted shard takes disk space while it is mapped, and this thread may wait for long
        begin = time.perf_counter()
        taken = self._take_all(shard_ids, [None] * len(shard_ids) if rows is None else rows())
        self.counters.waited(time.perf_counter() - begin)
        return taken

    def _take_all(self, shard_ids: Sequence[int], rows: Sequence[NDArray[np.int64] | None]) -> list[AnyShard]:
        """Return the shards of one batch: those that are open, parts of some, and all others once they are local."""
        parts = self.parts.read(dict(zip(shard_ids, rows, strict=True)))
        if parts:
            self.counters.add(hits=-len(parts))
        taken: list[AnyShard] = []
        for shard_id in shard_ids:
            found: AnyShard | None = parts.get(shard_id)
            if found is None:
                found = self._opened.get(shard_id)
            taken.append(self._obtain(shard_id) if found is None else found)
        return taken

    def done(self, shard_ids: list[int]) -> None:
        """Unmap the shards of a batch that was read if the disk is full: an evicted file takes space while mapped."""
        space = self._space.peek()
        if space is not None and space.is_disk_tight:
            self._opened.drop(shard_ids)

    def plan(
        self,
        future: Iterator[Uses] | None,
        order: str = "",
        *,
        is_of_many: bool = False,
        outline: Iterator[Outline] | None = None,
    ) -> None:
        """Set which shards will be requested from now on, here and by other ranks of this host, counted in steps.

        `order` identifies the order: readers of the same order count the same steps. With `is_of_many`, several readers
        take each step together: within one step, each reads a different shard. Without a `future`, the uses are
        unknown. `outline` says of each epoch of it between which steps a shard is needed, for uses that are too far
        ahead to be looked up.
        """
        space = self._space.get()
        space.upcoming.plan(future, order, is_of_many=is_of_many, outline=outline)
        self.parts.begin_pass()
        space.retry_step = 0

    def expect_stored_order(self, *, is_stored: bool) -> None:
        """Set whether the samples of a shard are read in stored order: all of its pages are then loaded ahead."""
        self._opened.is_read_whole = is_stored

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

        Of shards with block lists, those that are prefetched at the begin of a pass wait for its first read.

        A shard that fails is retried when it is requested, and raises then if it fails again.
        """
        space = self._space.get()
        if space.is_evicting:  # with those that had no space before, first needed first
            self._opened.drop_unlinked()
            found = sorted({*shard_ids, *self._queue.get().take_deferred()})
            is_known = space.upcoming.is_known
            uses = space.upcoming.next_use(np.array(found, np.int64)) if is_known else np.zeros(len(found))
            space.renew_leases(found)
            shard_ids = [found[place] for place in np.argsort(uses, kind="stable").tolist()]
        self.parts.prefetch(self._opened.missing(shard_ids))

    def evict(self, shard_id: int) -> int:
        """Evict the copies of a shard and return their bytes; a shard that is read where it lies has none.

        Raises:
            StoreTimeout: another process held the folder's lock until the deadline.
        """
        return self._space.get().evict(shard_id, self._deadline())

    def evict_last_needed(self) -> int:
        """Evict the copies of the shard that is needed last, and return their bytes; 0 if there are none."""
        self._prepare_roots()
        return self._space.get().evict_last_needed(self._deadline())

    def kept_bytes(self) -> int:
        """Return the bytes of all copies, whichever process fetched them."""
        self._prepare_roots()
        return self._space.get().kept_bytes(self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(max(source.options.download_timeout for source in self._sources))

    def _prepare_roots(self) -> None:
        """Create the folders of copies: a process that has not fetched anything does not know them."""
        first = 0
        for source in self._sources:
            if len(source.shards):
                self._shards.shard(first).copies()
            first += len(source.shards)

    def rest(self) -> None:
        """End the threads that fetch ahead as soon as nothing is queued: an epoch is over."""
        self.parts.end_pass()
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
        return {"_sources": self._sources, "limit": self.limit, "counters": self.counters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        # Nothing below refers to the cache itself, so that it is released as soon as its last user drops it.
        self._shards = ShardSources(self._sources, self.limit)
        self._opened, self._checks = OpenShards(len(self._shards)), CheckBudget()
        self._num_requested, self._tally = 0, threading.Lock()
        self._space: PerProcess[SpaceManager] = PerProcess(
            partial(SpaceManager, self.limit, self._shards, self.counters, self._opened)
        )
        space = self._space
        self._queue: PerProcess[FetchQueue] = PerProcess(lambda: FetchQueue(space.get()))
        queue = self._queue
        self.parts = PartialReads(self._shards, self._opened, self.counters, lambda ids: queue.get().ahead(ids))
        """The reads that take parts of shards."""
        self._finalizer = weakref.finalize(self, _release, self._queue, self._space, self._opened)
        self._finalizer.atexit = False

    @property
    def max_open(self) -> int:
        """Number of shards that are kept mapped; each holds a file descriptor."""
        return self._opened.max_open

    def costs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return by shard the bytes of its copies, and the bytes that are fetched; 0 for what is read where it lies."""
        return self._shards.costs()

    def _obtain(self, shard_id: int) -> AnyShard:
        if not 0 <= shard_id < len(self):
            urls = ", ".join(source.store.url for source in self._sources)
            raise SampleIndexError(f"shard {shard_id} is not one of the {len(self)} shards of {urls}")
        shard = self._shards.shard(shard_id)
        timeout = shard.max_seconds
        begin = time.perf_counter_ns()
        is_missing = not all(map(os.path.exists, shard.copies()))
        try:
            return self._queue.get().obtain(shard_id, timeout + GRACE_SECONDS)
        except SmaltiError as error:
            # A new one for each reader: threads that raise one object mix up their tracebacks.
            raise type(error)(error.message, **error.facts) from error
        except TimeoutError as error:
            raise StoreTimeout(
                f"{shard.name}: another thread has been fetching it for more than "
                f"{timeout:.0f} s; the disk of the cache does not answer",
                shard=shard_id,
                digest=shard.source.digest,
            ) from error
        finally:
            waited = (time.perf_counter_ns() - begin) // 1000
            self.counters.add(hits=-1 if is_missing else 0, wait_microseconds=waited)


class FetchQueue:
    """The fetches of one process: one thread at a time for each shard, others wait; a few threads fetch ahead.

    A fetch is queued (a reader will need the shard soon), running (in a reader's thread or in one that fetches ahead),
    or failed ahead of time: a failed one is kept, so that it is not fetched ahead again, and the reader that requests
    the shard retries it. A shard that has no space yet (`NoSpaceYet`) is deferred with those queued behind it, until
    they are queued again. Threads start with the first prefetch, are daemons, and end when they have been idle for a
    while, when a pass is over, or when the cache is dropped.
    """

    def __init__(self, space: SpaceManager) -> None:
        self._space, self._tuner = space, ConcurrencyTuner()
        self._changed = threading.Condition()
        self._fetches: dict[int, Future[AnyShard]] = {}
        self._queued: deque[int] = deque()
        self._deferred: list[int] = []
        self._num_threads = 0
        self._num_idle = 0
        self._is_closed = self._is_resting = False

    def obtain(self, shard_id: int, timeout: float) -> AnyShard:
        """Return the shard, loaded by this thread unless another one is at it already.

        `timeout` is the seconds that another thread may take.

        Raises:
            TimeoutError: the other thread did not finish within `timeout` seconds.
            BaseException: the loader's error, here or in the other thread.
        """
        end = time.monotonic() + timeout
        while True:
            with self._changed:
                known = self._fetches.get(shard_id)
                is_own = known is None or not known.running()
                # What failed ahead of time is retried: the cause may have passed.
                fetch = Future[AnyShard]() if known is None or (is_own and known.done()) else known
                if is_own:
                    fetch.set_running_or_notify_cancel()
                    self._fetches[shard_id] = fetch
            if is_own:
                self._run(shard_id, fetch, is_ahead=False)
            elif not wait([fetch], max(0.0, end - time.monotonic())).done:
                raise TimeoutError
            if fetch.exception() is None:
                return fetch.result()
            if isinstance(fetch.exception(), NoSpaceYet):
                continue  # it was fetched ahead of its turn, which has come now
            with self._changed:  # reported: the next request retries
                if self._fetches.get(shard_id) is fetch:
                    del self._fetches[shard_id]
            if is_own or isinstance(fetch.exception(), Exception):
                return fetch.result()  # raises the error
            # The other thread was interrupted (Ctrl-C reaches one thread only), which says nothing about the shard.

    def ahead(self, shard_ids: Sequence[int]) -> None:
        """Queue shards that are not being fetched; returns at once."""
        with self._changed:
            if self._is_closed:
                return
            for shard_id in shard_ids:
                if shard_id not in self._fetches:
                    self._fetches[shard_id] = Future()
                    self._queued.append(shard_id)
            self._is_resting = False
            self._start_threads()
            self._changed.notify_all()

    def _start_threads(self) -> None:
        for _ in range(min(len(self._queued) - self._num_idle, self._tuner.max_transfers - self._num_threads)):
            try:
                threading.Thread(target=self._serve, name="smalti-ahead", daemon=True).start()
            except RuntimeError:  # out of memory, or too many: what is not fetched ahead is fetched when needed
                break
            self._num_threads += 1

    def take_deferred(self) -> list[int]:
        """Return shards that had no space when they were to be fetched ahead, first needed first, and forget them."""
        with self._changed:
            deferred, self._deferred = self._deferred, []
            return deferred

    def rest(self) -> None:
        """End idle threads, now and until something is queued again."""
        with self._changed:
            self._is_resting = True
            self._changed.notify_all()

    def close(self) -> None:
        """Clear the queue; threads end after their present fetch."""
        with self._changed:
            self._is_closed = True
            for shard_id in self._queued:
                fetch = self._fetches.get(shard_id)
                if fetch is not None and not fetch.running():
                    del self._fetches[shard_id]
            self._queued.clear()
            self._deferred = []
            self._changed.notify_all()

    def _serve(self) -> None:
        """Run queued fetches until this thread should end. An idle thread refers to no result."""
        while (claimed := self._next()) is not None:
            self._run(*claimed, is_ahead=True)
            del claimed
            with self._changed:
                num_busy = self._num_threads - self._num_idle
                self._tuner.adjust(is_saturated=bool(self._queued) and num_busy >= self._tuner.max_transfers)
                self._start_threads()

    def _next(self) -> tuple[int, Future[AnyShard]] | None:
        """Return the next queued fetch that no reader runs itself; None when this thread should end."""
        end = time.monotonic() + IDLE_SECONDS
        with self._changed:
            while True:
                while self._queued and self._num_threads <= self._tuner.max_transfers:
                    shard_id = self._queued.popleft()
                    fetch = self._fetches.get(shard_id)
                    if fetch is not None and not fetch.running() and not fetch.done():
                        fetch.set_running_or_notify_cancel()
                        return shard_id, fetch
                left = end - time.monotonic()
                is_excess = self._num_threads > self._tuner.max_transfers
                if self._is_closed or self._is_resting or left <= 0 or is_excess:
                    self._num_threads -= 1
                    return None
                self._num_idle += 1
                self._changed.wait(left)
                self._num_idle -= 1

    def _run(self, shard_id: int, fetch: Future[AnyShard], *, is_ahead: bool) -> None:
        """Load a shard; an error is kept for readers, and stays in the queue where the shard was fetched ahead."""
        try:
            shard = load_shard(self._space, self._tuner, shard_id, is_ahead=is_ahead)
        except BaseException as error:  # noqa: BLE001 -- raised again by every reader, in its own thread
            with self._changed:
                is_deferred = isinstance(error, NoSpaceYet)
                if is_deferred:  # with all queued behind it: what is needed later gets no space before it
                    behind = [other for other in self._queued if other in self._fetches]
                    behind = [other for other in behind if not self._fetches[other].running()]
                    for other in behind:
                        del self._fetches[other]
                    self._deferred = [shard_id, *behind, *self._deferred]
                    self._queued.clear()
                if (is_deferred or not is_ahead) and self._fetches.get(shard_id) is fetch:
                    del self._fetches[shard_id]
                fetch.set_exception(error)
        else:
            with self._changed:
                if self._fetches.get(shard_id) is fetch:
                    del self._fetches[shard_id]
                fetch.set_result(shard)


def _release(queue: PerProcess[FetchQueue], space: PerProcess[SpaceManager], opened: OpenShards) -> None:
    """Close what this process has made; a fork has none of the threads, and may have copied a lock that was held."""
    if (own_queue := queue.peek()) is not None:
        own_queue.close()
    if (own_space := space.peek()) is not None:
        own_space.close()
    opened.close()
