"""Numbers that a process and its workers count together, however the workers were started."""

import fcntl
import mmap
import os
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from smalti.cache.weak import weakly
from smalti.errors import FormatError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout

STEP_SECONDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper ends of the classes that waits are counted in; the last class has none."""
FAILURES = ("timeout", "auth", "gone", "damaged", "store", "disk")
COUNTED = (
    "hits", "fetches", "bytes_fetched", "bytes_received", "bytes_from_disk", "evictions", "bytes_evicted",
    "retries", *(f"failed_{each}" for each in FAILURES), "wait_microseconds", "busy_milliseconds",
    "steps", "step_microseconds", "step_last", "step_most", *(f"step_class_{n}" for n in range(len(STEP_SECONDS) + 1)),
    "reached",
)  # fmt: skip
_PLACE = {name: at for at, name in enumerate(COUNTED)}
_LARGEST = {"reached", "step_most"}
_SLOTS = 4096  # milliseconds that are remembered one by one
_TOLD_EVERY = 0.05  # seconds
_NUM_BYTES = 8 * (len(COUNTED) + _SLOTS)


def class_of_wait(seconds: float) -> str:
    """The name of the number that counts waits of this length."""
    return f"step_class_{bisect_left(STEP_SECONDS, seconds)}"


def class_of_failure(error: BaseException) -> str:
    """What kind of failure this is, one of FAILURES."""
    for kind, name in (
        (StoreTimeout, "timeout"),
        (StoreAuthError, "auth"),
        (StoreNotFound, "gone"),
        (FormatError, "damaged"),
        (StoreError, "store"),
        (OSError, "disk"),
    ):
        if isinstance(error, kind):
            return name
    return "store"


class Counters:
    """Numbers that a process and its workers add to: pages of a file without a name, however workers are started.

    Adding takes the kernel's lock on the pages, which a killed process lets go of. Every number is written whole.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        words = np.frombuffer(mmap.mmap(self._descriptor, _NUM_BYTES), np.int64)
        self._numbers, self._slots = words[: len(COUNTED)], words[len(COUNTED) :]
        self._lock, self._link, self._pid = threading.Lock(), _Link(weakly(self._arrived)), os.getpid()

    def add(self, **numbers: int) -> None:
        """Adds to the numbers of these names; `reached` and `step_most` become the largest one told."""
        self._own()
        with self._alone() as is_counted:
            if is_counted:
                self._add(numbers)

    def failed(self, error: BaseException) -> None:
        """Counts an attempt that failed, by the kind of its error."""
        self.add(**{f"failed_{class_of_failure(error)}": 1})

    @contextmanager
    def arriving(self) -> Iterator[Callable[[int], None]]:
        """While bytes of a file are awaited; what it gives is called with how many came, as often as some did.

        Time is counted once however many files are under way, in threads and processes.
        """
        self._own()
        link = self._link
        link.begin()
        try:
            yield link.arrived
        finally:
            link.end()

    def waited(self, seconds: float) -> None:
        """Counts the time that a step waited for its shards."""
        took = int(seconds * 1e6)
        self.add(steps=1, step_microseconds=took, step_last=took, step_most=took, **{class_of_wait(seconds): 1})

    def restart(self) -> None:
        """Begins to count anew how far readers are."""
        self._numbers[_PLACE["reached"]] = 0

    def get(self, name: str) -> int:
        """One of the numbers."""
        return int(self._numbers[_PLACE[name]])

    def all(self) -> dict[str, int]:
        """All numbers as they are now."""
        return dict(zip(COUNTED, self._numbers.tolist(), strict=True))

    def _own(self) -> None:
        if self._pid != os.getpid():  # a fork may have copied the locks while they were held
            self._lock, self._link, self._pid = threading.Lock(), _Link(weakly(self._arrived)), os.getpid()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        with self._lock:
            if self._descriptor < 0:  # collected together with a reader that ends only now: nobody will look
                yield False
                return
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield True
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _add(self, numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            at = _PLACE[name]
            if name in _LARGEST:
                self._numbers[at] = max(self._numbers[at], number)
            elif name == "step_last":
                self._numbers[at] = number
            else:
                self._numbers[at] += number

    def _arrived(self, begin: int, end: int, num_bytes: int) -> None:
        """Counts the milliseconds [begin, end) of the monotonic clock that nobody else has counted."""
        slots = np.arange(max(begin, end - _SLOTS), end)
        with self._alone() as is_counted:
            if is_counted:
                new = slots[self._slots[slots % _SLOTS] != slots]
                self._slots[new % _SLOTS] = new
                self._add({"bytes_received": num_bytes, "busy_milliseconds": int(new.size)})

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return Counters, ()  # a copy for somebody else counts for itself
        return _attached, (reduction.DupFd(self._descriptor),)  # a worker of ours

    def __del__(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


class _Link:
    """What is under way in this process; told now and then. `tell`: first and last millisecond, bytes."""

    def __init__(self, tell: Callable[[int, int, int], None]) -> None:
        self._tell, self._lock = tell, threading.Lock()
        self._under_way = self._num_bytes = 0
        self._since = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._under_way:
                self._since = time.monotonic()
            self._under_way += 1

    def arrived(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            if time.monotonic() - self._since > _TOLD_EVERY:
                self._flush()

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1
            self._flush()

    def _flush(self) -> None:
        now, num_bytes = time.monotonic(), self._num_bytes
        self._tell(int(self._since * 1000), int(now * 1000) + 1, num_bytes)
        self._since, self._num_bytes = now, 0


def _attached(duplicate: Any) -> Counters:
    return Counters(duplicate.detach())


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("smalti-counters", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _NUM_BYTES)
    return descriptor
