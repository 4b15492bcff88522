"""Reading ahead with threads, and delivery in order. This module knows neither torch nor datasets.

Intended behaviour; anything else is a bug:
1. Threads draw items of work in order, one at a time, and run at most `num_ahead` items ahead of the consumer.
2. Results are delivered in the order of the work. An exception of reading an item, or of drawing the work, is raised
   unchanged when its turn comes.
3. `close`, the end of the work, garbage collection and the interpreter's exit end the threads. A thread that is reading
   an item ends after it; waiting for it is limited to a few seconds.
4. No thread and no lock is shared with another iteration or process. A copy of a running iteration in a forked process
   raises an error, as its threads are in the parent.
5. Every wait has a deadline: a consumer that waits too long gets an error, and idle threads check regularly whether the
   iteration still exists.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from smalti.errors import SmaltiError

_IDLE_SECONDS = 5.0  # between two checks of an idle thread that the iteration still exists


class ThreadedIterator(Iterator[Any]):
    """An iterator over `read(item)` for every item of `work`, in order; its threads start with the first request.

    Args:
        work: Drawn by one thread at a time.
        read: Called by several threads at once.
        num_threads: Number of threads.
        num_ahead: Items that may be drawn and not yet taken.
        timeout: Longest time that the consumer waits for one item, in seconds.
        join_seconds: Longest time that `close` waits for all threads that are reading an item.
    """

    def __init__(
        self,
        work: Iterator[Any],
        read: Callable[[Any], Any],
        *,
        num_threads: int,
        num_ahead: int,
        timeout: float,
        join_seconds: float = 5.0,
    ) -> None:
        self._relay = _Relay(work, read, num_ahead)
        self._num_threads, self._timeout, self._join_seconds = num_threads, timeout, join_seconds
        self._pid = os.getpid()
        self._finish: weakref.finalize[..., Any] | None = None

    def __next__(self) -> Any:
        """Return the next result.

        Raises:
            SmaltiError: it was not ready within the timeout, or this is a copy in a forked process.
            BaseException: reading this item raised it.
        """
        if os.getpid() != self._pid:
            raise SmaltiError(
                "this iteration over a loader was begun before a fork, and its threads stayed in the parent process; "
                "begin a new one here: `iter(loader)`."
            )
        if self._finish is None:
            self._start()
        outcome = self._relay.take(self._timeout)
        error = outcome.exception()
        if error is not None:
            self.close()
            raise error
        return outcome.result()

    def close(self) -> None:
        """End the threads and drop results that were not taken; blocks for `join_seconds` at most."""
        if self._finish is None:
            self._relay.end((), 0.0)
        elif os.getpid() == self._pid:
            self._finish()

    def _start(self) -> None:
        # Threads refer to the relay and not to this object, so it can be collected while they run, which ends them.
        threads = [
            threading.Thread(
                target=_serve, args=(self._relay, weakref.ref(self)), name=f"smalti-loader-{n}", daemon=True
            )
            for n in range(self._num_threads)
        ]
        self._finish = weakref.finalize(self, _end_here, self._relay, threads, self._join_seconds, self._pid)
        for thread in threads:
            thread.start()


class _Relay:
    """The state that the consumer and the threads of one iteration share."""

    def __init__(self, work: Iterator[Any], read: Callable[[Any], Any], num_ahead: int) -> None:
        self._end: Future[None] = Future()
        """Done when the iteration is closed."""
        self._work, self._read = work, read
        self._places = threading.Semaphore(num_ahead)  # for items ahead, on which threads wait
        self._drawing = threading.Lock()
        self._exhausted = False
        self._drawn: SimpleQueue[Future[Any]] = SimpleQueue()
        """The outcomes of items in order, from the time that each is drawn."""
        self._next: Future[Any] | None = None
        """The outcome that is taken next, once its item is drawn."""
        self._num_taken = 0

    @property
    def closed(self) -> bool:
        """True if no more is read nor delivered."""
        return self._end.done()

    def take(self, timeout: float) -> "Future[Any]":
        """Return the next outcome in order, which is known; the last one is a StopIteration."""
        if self.closed:
            return _failed(StopIteration())
        end, outcome = time.monotonic() + timeout, self._next
        with suppress(Empty):
            outcome = self._next = outcome or self._drawn.get(timeout=timeout)
            if not outcome.done():
                wait((outcome, self._end), max(0.0, end - time.monotonic()), FIRST_COMPLETED)
        if outcome is None or not outcome.done():
            if self._end.done():
                return _failed(StopIteration())
            raise SmaltiError(
                f"batch {self._num_taken} of this iteration was not ready after {timeout:g} s: reading or transforming "
                "it takes longer. Give the loader a longer `timeout`, or find what hangs.",
                batch=self._num_taken,
                timeout=timeout,
            )
        self._next = None
        self._num_taken += 1
        self._places.release()
        return outcome

    def serve_one(self) -> bool:
        """Draw and read one item if a place is free; return False if there is no more to do."""
        if not self._places.acquire(timeout=_IDLE_SECONDS):
            return not self.closed
        with self._drawing:
            if self.closed or self._exhausted:
                return False
            try:
                item = next(self._work)
            except BaseException as error:  # noqa: BLE001 -- raised again by the consumer; StopIteration is one of them
                self._exhausted = True
                self._drawn.put(_failed(error))
                return False
            outcome: Future[Any] = Future()
            self._drawn.put(outcome)
        try:
            outcome.set_result(self._read(item))
        except BaseException as error:  # noqa: BLE001 -- raised again by the consumer when its turn comes
            outcome.set_exception(error)
        return not self.closed

    def end(self, threads: Sequence[threading.Thread], join_seconds: float) -> None:
        """End the threads; wait for all of them for `join_seconds` at most."""
        if not self.closed:
            self._end.set_result(None)
        if threads:
            self._places.release(len(threads))
        self._drawn.put(_failed(StopIteration()))  # for a consumer that waits
        end = time.monotonic() + join_seconds
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        self._drawn, self._next = SimpleQueue(), None  # the iterator must not keep untaken results in memory


def _failed(error: BaseException) -> "Future[Any]":
    outcome: Future[Any] = Future()
    outcome.set_exception(error)
    return outcome


def _serve(relay: _Relay, owner: "weakref.ref[ThreadedIterator]") -> None:
    while owner() is not None and relay.serve_one():
        pass


def _end_here(relay: _Relay, threads: Sequence[threading.Thread], join_seconds: float, pid: int) -> None:
    if os.getpid() == pid:  # a forked process has none of the threads, and may have inherited a locked lock
        relay.end(threads, join_seconds)
