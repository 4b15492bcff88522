"""Retries and time limits: of requests, of the attempts at one operation, and of whole transfers.

A transfer of `size` bytes with the time limit `timeout` fails

1. when less than 64 KiB arrived within `timeout` seconds, or
2. `timeout + size / 64 KiB/s` seconds after it began,

whichever comes first. A stalled transfer fails early, a slow one has time in proportion to its size, and one that
delivers a few bytes now and then ends as well. If the size is unknown, rule 2 counts the bytes that have arrived
instead: at a constant speed the result is the same.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from smalti.errors import StoreTimeout

T = TypeVar("T")

CONNECT_SECONDS = 5
"""Time limit of a client library to connect."""
READ_SECONDS = 30
"""Time limit of a client library to receive more bytes."""
LIBRARY_ATTEMPTS = 2
"""Attempts of a client library at one request; `FsspecStore` adds its own, with a deadline over all."""
_RANDOM = random.SystemRandom()  # does not advance the program's own random numbers
PROGRESS_BYTES = 64 << 10
"""Bytes that must arrive within the time limit."""
MIN_BYTES_PER_SECOND = 64 << 10
"""Speed at which a transfer's size is converted into additional time."""


def jitter(least: float, most: float) -> float:
    """Return a random factor for a pause, from `least` to `most`, so that colliding callers do not collide again."""
    return _RANDOM.uniform(least, most)


class Deadline:
    """A point on the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Return whether no time is left."""
        return self.left() <= 0.0


def most_seconds(timeout: float, size: int) -> float:
    """Return the time limit of a whole transfer of `size` bytes, seconds. Pure."""
    return timeout + size / MIN_BYTES_PER_SECOND


def begin_call(act: Callable[[], T], name: str) -> Future[T]:
    """Begin a call on a thread of this name, which does not keep the process alive."""
    answer: Future[T] = Future()

    def run(answer: Future[T]) -> None:
        try:
            answer.set_result(act())
        except BaseException as fault:  # noqa: BLE001 -- raised by the thread that waits
            answer.set_exception(fault)
        finally:
            del answer  # a fault that its own frame refers to would keep all frames alive until garbage collection

    threading.Thread(target=run, args=(answer,), name=name, daemon=True).start()
    return answer


def call_within(seconds: float, act: Callable[[], T]) -> T:
    """Return the result of `act`, on a thread that is abandoned at the deadline: a stale mount blocks for ever.

    Raises:
        StoreTimeout: `act` has not returned within that time.
    """
    future = begin_call(act, "smalti-bounded-call")
    if not wait([future], seconds).done:
        raise StoreTimeout(
            f"no answer within {seconds:.0f} s; check the address, the network, and the mount if it is one"
        )
    return future.result()


class TransferDeadline:
    """The deadline of one transfer, which begins when the object is created.

    Not thread-safe: one thread reports the progress.

    Args:
        timeout: Time limit, seconds.
        size: Bytes to transfer; None if unknown.
        clock: Returns monotonic seconds.
        what: Name of the object for the error message; without secrets.
        facts: Attributes of the error, such as `key`.

    Example:
        >>> deadline = TransferDeadline(60.0, size=len(body), what="s3://bucket/key")
        >>> connection.settimeout(deadline.remaining())
        >>> while chunk := connection.recv(65536):
        ...     deadline.progress(len(chunk))
        ...     connection.settimeout(deadline.remaining())
    """

    def __init__(
        self,
        timeout: float,
        size: int | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        what: str = "the transfer",
        **facts: Any,
    ) -> None:
        self.timeout, self.size = timeout, size
        self.received = 0
        """Bytes that arrived so far, those of failed attempts included."""
        self._clock, self._what, self._facts = clock, what, facts
        self._begin = self._marked_at = clock()
        self._since_mark = 0

    def progress(self, num_bytes: int) -> None:
        """Record bytes that arrived since the last call; 0 only checks.

        Raises:
            StoreTimeout: the deadline passed before they arrived.
        """
        if self.passed():
            raise self.error()
        self.received += num_bytes
        self._since_mark += num_bytes
        if self._since_mark >= PROGRESS_BYTES:
            self._marked_at, self._since_mark = self._clock(), 0

    def remaining(self) -> float:
        """Return the seconds until the transfer fails if nothing more arrives, never negative: for socket timeouts."""
        return max(0.0, min(*self._ends()) - self._clock())

    def passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.remaining() <= 0.0

    def restart(self) -> None:
        """Restart rule 1, such as after a wait for a lock; the total time of rule 2 is unchanged."""
        self._marked_at, self._since_mark = self._clock(), 0

    def _ends(self) -> tuple[float, float]:
        """Return the times at which rule 1 and rule 2 end the transfer."""
        return self._marked_at + self.timeout, self._begin + self._total_seconds()

    def _total_seconds(self) -> float:
        return most_seconds(self.timeout, self.received if self.size is None else self.size)

    def error(self) -> StoreTimeout:
        """Return the error for a passed deadline; its message names the rule that ended the transfer.

        That is the rule whose time came first, however late this is called. An object of less than 64 KiB was always
        not complete: the times of both rules are milliseconds apart, and a restart of rule 1 exchanges them.
        """
        of_all = "" if self.size is None else f" of {self.size}"
        is_small = self.size is not None and self.size < PROGRESS_BYTES
        stalled_at, ends_at = self._ends()
        if is_small or ends_at <= stalled_at:
            why = f"not complete within {self._total_seconds():.0f} s"
        else:
            why = f"less than 64 KiB arrived within {self.timeout:.0f} s"
        return StoreTimeout(
            f"{self._what}: {why} ({self.received}{of_all} bytes had arrived); check the store and the network, or "
            "raise `download_timeout`",
            received=self.received,
            **self._facts,
        )
