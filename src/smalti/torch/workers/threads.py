"""Batches read by threads of this process, some ahead of the consumer, delivered in order. No torch, no datasets.

Intended behaviour; anything else is a bug:
1. Threads draw the work in order, one item each, and run at most `num_ahead` items ahead of what was taken.
2. Results come in the order of the work, whichever thread is done first. What reading an item raised is raised, as it
   was, when its turn comes, and so is what drawing the work raised.
3. `close`, the end of the work, garbage collection and the interpreter's exit end the threads. A thread that is in the
   middle of an item ends after it; nobody waits for it longer than a few seconds.
4. No thread and no lock is shared with another iteration or another process. A fork's copy of a running iteration
   refuses to go on, as its threads stayed behind.
5. No wait is without a deadline: a consumer that waits too long gets an error, an idle thread looks now and then
   whether anybody still waits for it.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smalti.errors import SmaltiError

_NAP_SECONDS = 5.0  # an idle thread looks this often whether it is still wanted


@dataclass(frozen=True)
class ThreadOptions:
    """How many threads read, how far ahead, and how long a consumer waits."""

    num_threads: int
    num_ahead: int
    """Items that may be drawn and not yet taken."""
    timeout: float
    """Seconds that a consumer waits for one item."""
    join_seconds: float = 5.0
    """How long `close` waits, in all, for threads that are in the middle of an item."""


class ThreadedIterator(Iterator[Any]):
    """`read(item)` for every item of `work`, in order, read by threads that start with the first request.

    Args:
        work: what to read; drawn by one thread at a time.
        read: reads one item; called by several threads at once.
        options: threads, items ahead, timeout.
    """

    def __init__(self, work: Iterator[Any], read: Callable[[Any], Any], options: ThreadOptions) -> None:
        self._room = _Room(options.num_ahead)
        self._relay = _Relay(work, read, self._room)
        self._options = options
        self._pid = os.getpid()
        self._finish: weakref.finalize[..., Any] | None = None

    def __next__(self) -> Any:
        """The next result.

        Raises:
            SmaltiError: it did not come within the timeout, or this is a fork's copy.
            BaseException: what reading this item raised.
        """
        if os.getpid() != self._pid:
            raise SmaltiError(
                "this iteration over a loader was begun before a fork, and its threads stayed in the parent process; "
                "begin a new one here: `iter(loader)`."
            )
        if self._finish is None:
            self._start()
        outcome = self._relay.take(self._options.timeout)
        if outcome.error is not None:
            self.close()
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        """Ends the threads; blocks for `join_seconds` at most. Results that were not taken are dropped."""
        if self._finish is None:
            self._relay.end((), 0.0)
        elif os.getpid() == self._pid:
            self._finish()

    def _start(self) -> None:
        # Threads know the relay and not this object: it can be collected while they run, and that ends them.
        threads = [
            threading.Thread(
                target=_serve, args=(self._relay, weakref.ref(self)), name=f"smalti-loader-{n}", daemon=True
            )
            for n in range(self._options.num_threads)
        ]
        self._finish = weakref.finalize(self, _end_here, self._relay, threads, self._options.join_seconds, self._pid)
        for thread in threads:
            thread.start()


@dataclass(frozen=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


class _Room:
    """Places for items ahead: a counter to wait on, which closing opens for everybody."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._changed = threading.Condition()

    def enter(self, timeout: float) -> bool:
        """Whether a place became free in time; it is the caller's then."""
        with self._changed:
            if self._free <= 0:
                self._changed.wait(timeout)
            if self._free <= 0:
                return False
            self._free -= 1
            return True

    def leave(self, places: int = 1) -> None:
        with self._changed:
            self._free += places
            self._changed.notify(places)


class _Relay:
    """What the consumer and the threads of one iteration share."""

    def __init__(self, work: Iterator[Any], read: Callable[[Any], Any], room: _Room) -> None:
        self.closed = False
        self._work, self._read, self._room = work, read, room
        self._drawing = threading.Lock()  # planning ahead can take long: results come through meanwhile
        self._drawn = 0
        self._exhausted = False
        self._ready = threading.Condition()
        self._outcomes: dict[int, _Outcome] = {}
        self._taken = 0

    def take(self, timeout: float) -> _Outcome:
        """The next outcome in order; the last one is a StopIteration."""
        number = self._taken
        outcome = self._outcomes.pop(number, None)  # nearly always there already
        if outcome is None:
            outcome = self._await(number, timeout)
        self._taken = number + 1
        self._room.leave()
        return outcome

    def _await(self, number: int, timeout: float) -> _Outcome:
        end = time.monotonic() + timeout
        with self._ready:
            while number not in self._outcomes:
                left = end - time.monotonic()
                if self.closed:
                    return _Outcome(error=StopIteration())
                if left <= 0:
                    raise SmaltiError(
                        f"batch {number} of this iteration was not ready after {timeout:g} s: reading or transforming "
                        "it takes longer. Give the loader a longer `timeout`, or find what hangs.",
                        batch=number,
                        timeout=timeout,
                    )
                self._ready.wait(left)
            return self._outcomes.pop(number)

    def serve_one(self) -> bool:
        """Draws and reads one item if there is room; whether there may be more to do."""
        if not self._room.enter(_NAP_SECONDS):
            return not self.closed
        with self._drawing:
            if self.closed or self._exhausted:
                return False
            number = self._drawn
            try:
                item = next(self._work)
            except BaseException as error:  # noqa: BLE001 -- raised again by the consumer; StopIteration is one of them
                self._exhausted = True
                self._put(number, _Outcome(error=error))
                return False
            self._drawn = number + 1
        try:
            outcome = _Outcome(self._read(item))
        except BaseException as error:  # noqa: BLE001 -- raised again by the consumer when its turn comes
            outcome = _Outcome(error=error)
        self._put(number, outcome)
        return not self.closed

    def _put(self, number: int, outcome: _Outcome) -> None:
        with self._ready:
            self._outcomes[number] = outcome
            if number == self._taken:
                self._ready.notify()

    def end(self, threads: Sequence[threading.Thread], join_seconds: float) -> None:
        """Ends the threads; waits for them `join_seconds` in all."""
        self.closed = True
        self._room.leave(len(threads))
        with self._ready:
            self._ready.notify_all()
        end = time.monotonic() + join_seconds
        for thread in threads:
            if thread is not threading.current_thread() and thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        self._outcomes.clear()  # what the consumer did not take is not kept by what keeps the iterator


def _serve(relay: _Relay, owner: "weakref.ref[ThreadedIterator]") -> None:
    while owner() is not None and relay.serve_one():
        pass


def _end_here(relay: _Relay, threads: Sequence[threading.Thread], join_seconds: float, pid: int) -> None:
    if os.getpid() == pid:  # a fork's copy has none of the threads, and may have inherited a locked lock
        relay.end(threads, join_seconds)
