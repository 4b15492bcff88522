"""What reading has cost, as numbers for people and programs.

Numbers that a process and its workers count together, however the workers were started.
"""

import fcntl
import json
import mmap
import os
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
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


__all__ = ["CacheStats", "Counters", "StepWaits", "stats_of"]


@dataclass(frozen=True)
class StepWaits:
    """How long steps waited for their shards; a step that finds all of them open waits 0."""

    steps: int = 0
    total_seconds: float = 0.0
    last_seconds: float = 0.0
    most_seconds: float = 0.0
    classes: tuple[int, ...] = (0,) * (len(STEP_SECONDS) + 1)
    """How many waited up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, and longer; each step is in one of them."""

    @property
    def mean_seconds(self) -> float | None:
        """Of all steps; None before the first."""
        return self.total_seconds / self.steps if self.steps else None


@dataclass(frozen=True)
class CacheStats:
    """What the shards of a dataset cost so far: of this process, and of the worker processes that it began."""

    hits: int
    """Shards that were here when a batch asked for them."""
    fetches: int
    """Files of shards that were downloaded."""
    bytes_fetched: int
    """Bytes of them."""
    evictions: int
    """Shards that were removed to make room."""
    bytes_evicted: int
    """Bytes that were removed to make room."""
    wait_seconds: float
    """Time in which readers waited for shards, all of them together."""
    least_bytes: int | None = None
    """The fewest bytes that these batches can cost with this limit, from an empty cache: each time, what is needed
    last goes (Belady). Of all ranks of this host together, for they share its folder. None where nobody counted."""
    bytes_before: int = 0
    """Bytes of `bytes_fetched` that were fetched before the passes that `least_bytes` is about: the latest ones."""
    bytes_received: int = 0
    """Bytes that came over the link, those of failed attempts included."""
    link_seconds: float = 0.0
    """Time in which at least one file was under way, over all workers."""
    bytes_from_disk: int = 0
    """Bytes of shards that were opened without a fetch: copies that were here, and data that are read in place."""
    retries: int = 0
    """Attempts to fetch a file beyond its first."""
    failures: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    """Attempts that failed, by kind: timeout, auth, gone, damaged, store (any other answer), disk."""
    step_waits: StepWaits = StepWaits()
    ranks: int = 1
    """Ranks of this host whose reading `least_bytes` is about."""
    ranks_added: int = 1
    """Ranks whose numbers are in here."""

    @property
    def ratio(self) -> float | None:
        """Bytes fetched to the least possible; of several ranks on a host, when the numbers of all were added."""
        if not self.least_bytes or self.ranks_added != self.ranks:
            return None
        return (self.bytes_fetched - self.bytes_before) / self.least_bytes

    @property
    def link_bytes_per_second(self) -> float | None:
        """Speed of the link while it was in use; of several ranks, the mean of theirs. None before the first byte."""
        return self.bytes_received / self.link_seconds if self.link_seconds else None

    @classmethod
    def of_host(cls, each: Sequence["CacheStats"]) -> "CacheStats":
        """The numbers of several ranks of one host in one: sums, but for the longest wait, and the least that all need.

        Raises:
            ValueError: there are none.
        """
        if not each:
            raise ValueError("`each` is empty: the statistics of at least one rank are needed.")
        names = [found.name for found in fields(cls) if isinstance(getattr(each[0], found.name), int | float)]
        sums: dict[str, Any] = {name: sum(getattr(one, name) for one in each) for name in names}
        least = [one.least_bytes for one in each if one.least_bytes is not None]
        waits = [one.step_waits for one in each]
        return replace(
            each[0],
            **sums
            | {
                "least_bytes": max(least) if len(least) == len(each) else None,
                "ranks": each[0].ranks,
                "failures": {kind: sum(one.failures[kind] for one in each) for kind in FAILURES},
                "step_waits": StepWaits(
                    sum(one.steps for one in waits),
                    sum(one.total_seconds for one in waits),
                    max(one.last_seconds for one in waits),
                    max(one.most_seconds for one in waits),
                    tuple(map(sum, zip(*(one.classes for one in waits), strict=True))),
                ),
            },
        )

    def to_json(self) -> str:
        """All of it as one JSON object."""
        told = asdict(self) | {"ratio": self.ratio, "link_bytes_per_second": self.link_bytes_per_second}
        told["step_waits"] |= {"mean_seconds": self.step_waits.mean_seconds}
        return json.dumps(told)

    def to_prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """All of it in Prometheus' text format.

        Args:
            labels: put on every line, such as the rank.
        """
        text = _Text(dict(labels or {}))
        for name, kind, value, help_text in (
            ("hits_total", "counter", self.hits, "Shards that were here when a batch asked for them."),
            ("fetches_total", "counter", self.fetches, "Files that were downloaded."),
            ("fetched_bytes_total", "counter", self.bytes_fetched, "Bytes of files that were downloaded."),
            ("received_bytes_total", "counter", self.bytes_received, "Bytes that came, failed attempts included."),
            ("link_seconds_total", "counter", self.link_seconds, "Time in which a file was under way."),
            ("disk_bytes_total", "counter", self.bytes_from_disk, "Bytes of shards opened without a fetch."),
            ("retries_total", "counter", self.retries, "Attempts beyond the first."),
            ("evictions_total", "counter", self.evictions, "Shards that were removed to make room."),
            ("evicted_bytes_total", "counter", self.bytes_evicted, "Bytes that were removed to make room."),
            ("wait_seconds_total", "counter", self.wait_seconds, "Time in which readers waited for shards."),
            ("least_bytes", "gauge", self.least_bytes, "The fewest bytes that this reading can cost."),
            ("fetch_ratio", "gauge", self.ratio, "Bytes fetched to the least possible."),
        ):
            if value is not None:
                text.family(name, kind, help_text, [("", {}, value)])
        failures = [("", {"kind": kind}, number) for kind, number in self.failures.items()]
        text.family("failures_total", "counter", "Attempts that failed.", failures)
        waits, below = self.step_waits, 0
        buckets: list[tuple[str, dict[str, str], float]] = []
        for end, number in zip((*STEP_SECONDS, "+Inf"), waits.classes, strict=True):
            below += number
            buckets.append(("_bucket", {"le": str(end)}, below))
        buckets += [("_sum", {}, waits.total_seconds), ("_count", {}, waits.steps)]
        text.family("step_wait_seconds", "histogram", "Time that a step waited for its shards.", buckets)
        return str(text)


class _Text:
    """Lines in Prometheus' text format."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels, self._lines = labels, list[str]()

    def family(
        self, name: str, kind: str, help_text: str, samples: Sequence[tuple[str, Mapping[str, str], float]]
    ) -> None:
        self._lines += [f"# HELP smalti_cache_{name} {help_text}", f"# TYPE smalti_cache_{name} {kind}"]
        for suffix, own, value in samples:
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in (self._labels | dict(own)).items())
            self._lines.append(f"smalti_cache_{name}{suffix}{f'{{{shown}}}' if shown else ''} {value}")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"


def stats_of(counters: Counters, least_bytes: int | None = None, bytes_before: int = 0, ranks: int = 1) -> CacheStats:
    """What was counted up to now."""
    now = counters.all()
    return CacheStats(
        **{name: now[name] for name in ("hits", "fetches", "bytes_fetched", "evictions", "bytes_evicted")},
        wait_seconds=now["wait_microseconds"] / 1e6,
        least_bytes=least_bytes,
        bytes_before=bytes_before,
        bytes_received=now["bytes_received"],
        link_seconds=now["busy_milliseconds"] / 1e3,
        bytes_from_disk=now["bytes_from_disk"],
        retries=now["retries"],
        failures={kind: now[f"failed_{kind}"] for kind in FAILURES},
        step_waits=StepWaits(
            now["steps"],
            now["step_microseconds"] / 1e6,
            now["step_last"] / 1e6,
            now["step_most"] / 1e6,
            tuple(now[f"step_class_{number}"] for number in range(len(STEP_SECONDS) + 1)),
        ),
        ranks=ranks,
    )


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
