"""The queue of fetches of one process: one thread at a time for each shard, others wait; a few threads fetch ahead.

A fetch is queued (a reader will need the shard soon), running (in a reader's thread or in one that fetches ahead), or
failed ahead of time: a failed one is kept, so that it is not fetched ahead again, and the reader that requests the
shard retries it. A shard that has no space yet (`NoSpaceYet`) is deferred with those queued behind it, until they are
queued again. Threads start with the first prefetch, are daemons, and end when they have been idle for a while, when a
pass is over, or when the cache is dropped.
"""

import threading
import time
from collections import deque
from functools import partial
from typing import cast

from smalti.cache.eviction import NoSpaceYet
from smalti.cache.fetch import ShardLoader
from smalti.cache.transfer import ConcurrencyTuner, EarlyReader
from smalti.format import AnyShard
from smalti.process import PerProcess

IDLE_SECONDS = 5.0
"""Time after which an idle thread ends."""
FIRST_POLL_SECONDS, MAX_POLL_SECONDS = 0.001, 0.01
"""Pauses between two looks at the first bytes of a shard that is fetched."""


class _QueueEntry:
    """One shard in the queue, and the outcome of its fetch."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.is_running = False
        self.result: AnyShard | None = None
        self.error: BaseException | None = None


class FetchQueue:
    """The fetches of one process.

    Args:
        loader: Loads a shard; called without the lock, at most once at a time for each shard.
        tuner: How many threads fetch ahead.
    """

    def __init__(self, loader: ShardLoader, tuner: PerProcess[ConcurrencyTuner]) -> None:
        self._loader, self._tuner = loader, tuner.get()
        self._changed = threading.Condition()
        self._fetches: dict[int, _QueueEntry] = {}
        self._queued: deque[int] = deque()
        self._deferred: list[int] = []
        self._num_threads = 0
        self._num_idle = 0
        self._is_closed = self._is_resting = False

    def obtain(self, shard_id: int, timeout: float, early: EarlyReader | None = None) -> AnyShard:
        """Return the shard, loaded by this thread unless another one is at it already.

        Args:
            shard_id: Its id.
            timeout: Seconds that another thread may take.
            early: The first bytes of the shard, which are returned as soon as they have arrived in another thread.

        Raises:
            TimeoutError: the other thread did not finish within `timeout` seconds.
            BaseException: the loader's error, here or in the other thread.
        """
        end = time.monotonic() + timeout
        while True:
            fetch, is_own = self._claim(shard_id)
            if is_own and (early is None or not self._start_thread(shard_id, fetch)):
                self._run(shard_id, fetch, is_ahead=False)
            elif early is not None and (found := _poll(early, fetch, end)) is not None:
                return found
            elif not fetch.done.wait(max(0.0, end - time.monotonic())):
                raise TimeoutError
            if fetch.error is None:
                return cast("AnyShard", fetch.result)
            if isinstance(fetch.error, NoSpaceYet):
                continue  # it was fetched ahead of its turn, which has come now
            self._remove(shard_id, fetch)  # reported: the next request retries
            if is_own or isinstance(fetch.error, Exception):
                raise fetch.error
            # The other thread was interrupted (Ctrl-C reaches one thread only), which says nothing about the shard.

    def _start_thread(self, shard_id: int, fetch: _QueueEntry) -> bool:
        """Run a fetch in a thread of its own; return False where none can be started."""
        work = partial(self._run, shard_id, fetch, is_ahead=False)
        try:
            threading.Thread(target=work, name="smalti-fetch", daemon=True).start()
        except RuntimeError:  # out of memory, or too many threads
            return False
        return True

    def _claim(self, shard_id: int) -> tuple[_QueueEntry, bool]:
        """Return the fetch of a shard, and whether the caller must run it."""
        with self._changed:
            fetch = self._fetches.get(shard_id)
            if fetch is not None and fetch.is_running:
                return fetch, False
            if fetch is None or fetch.done.is_set():
                fetch = _QueueEntry()  # what failed ahead of time is retried: the cause may have passed
            fetch.is_running = True
            self._fetches[shard_id] = fetch
            return fetch, True

    def _remove(self, shard_id: int, fetch: _QueueEntry) -> None:
        with self._changed:
            if self._fetches.get(shard_id) is fetch:
                del self._fetches[shard_id]

    def ahead(self, shard_ids: list[int]) -> None:
        """Queue shards that are not being fetched; returns at once."""
        with self._changed:
            if self._is_closed:
                return
            for shard_id in shard_ids:
                if shard_id not in self._fetches:
                    self._fetches[shard_id] = _QueueEntry()
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
        if not self._deferred:
            return []
        with self._changed:
            deferred, self._deferred = self._deferred, []
            return deferred

    def failed(self) -> list[int]:
        """Return the shards whose fetch ahead failed and that were not requested since."""
        with self._changed:
            return [shard_id for shard_id, fetch in self._fetches.items() if fetch.done.is_set()]

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
                if fetch is not None and not fetch.is_running:
                    del self._fetches[shard_id]
            self._queued.clear()
            self._deferred = []
            self._changed.notify_all()

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Run the next fetch; return False when the thread should end. An idle thread refers to no result."""
        found = self._next()
        if found is None:
            return False
        self._run(*found, is_ahead=True)
        with self._changed:
            num_busy = self._num_threads - self._num_idle
            self._tuner.adjust(is_saturated=bool(self._queued) and num_busy >= self._tuner.max_transfers)
            self._start_threads()
        return True

    def _next(self) -> tuple[int, _QueueEntry] | None:
        """Return the next queued fetch that no reader runs itself; None when this thread should end."""
        end = time.monotonic() + IDLE_SECONDS
        with self._changed:
            while True:
                while self._queued and self._num_threads <= self._tuner.max_transfers:
                    shard_id = self._queued.popleft()
                    fetch = self._fetches.get(shard_id)
                    if fetch is not None and not fetch.is_running and not fetch.done.is_set():
                        fetch.is_running = True
                        return shard_id, fetch
                left = end - time.monotonic()
                is_excess = self._num_threads > self._tuner.max_transfers
                if self._is_closed or self._is_resting or left <= 0 or is_excess:
                    self._num_threads -= 1
                    return None
                self._num_idle += 1
                self._changed.wait(left)
                self._num_idle -= 1

    def _defer(self, shard_id: int) -> None:
        """Defer a shard and all that are queued behind it: what is needed later gets no space before it."""
        queued = [each for each in self._queued if each in self._fetches and not self._fetches[each].is_running]
        for each in queued:
            del self._fetches[each]
        self._deferred = [shard_id, *queued, *self._deferred]
        self._queued.clear()

    def _run(self, shard_id: int, fetch: _QueueEntry, *, is_ahead: bool) -> None:
        """Load a shard; an error is kept for readers, and stays in the queue where the shard was fetched ahead."""
        try:
            fetch.result = self._loader.load(shard_id, is_ahead=is_ahead)
        except BaseException as error:  # noqa: BLE001 -- raised again by every reader, in its own thread
            fetch.error = error
        with self._changed:
            fetch.is_running = False
            has_no_space = isinstance(fetch.error, NoSpaceYet)
            if has_no_space:
                self._defer(shard_id)
            if (fetch.error is None or has_no_space or not is_ahead) and self._fetches.get(shard_id) is fetch:
                del self._fetches[shard_id]
            fetch.done.set()


def _poll(early: EarlyReader, fetch: _QueueEntry, end: float) -> AnyShard | None:
    """Return the first bytes of a shard if they arrive before the fetch is done and before `end`."""
    pause = FIRST_POLL_SECONDS
    while not fetch.done.wait(min(pause, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
        found = early.poll()
        if found is not None:
            return found
        pause = min(1.5 * pause, MAX_POLL_SECONDS)
    return None
