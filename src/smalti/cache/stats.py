"""Figures about reading: counters that a process and its workers share, and their presentation as `CacheStats`.

A new figure needs its name in `COUNTED`, a field of the same name in `CacheStats` with its line in `to_prometheus`, and
`Counters.add` where it happens.
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
from itertools import accumulate
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from smalti.errors import ArgumentError, FormatError, StoreAuthError, StoreError, StoreNotFound, StoreTimeout

STEP_SECONDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""Upper ends of the classes in which waits are counted; the last class has none."""
FAILURES = ("timeout", "auth", "gone", "damaged", "store", "disk")
"""Kinds of failed attempts; `store` is any other answer of a store."""
COUNTED = (
    "hits", "fetches", "bytes_fetched", "bytes_in_blocks", "bytes_received", "bytes_from_disk",
    "evictions", "bytes_evicted", "retries", *(f"failed_{each}" for each in FAILURES),
    "wait_microseconds", "busy_milliseconds",
    "steps", "step_microseconds", "step_last", "step_most", *(f"step_class_{n}" for n in range(len(STEP_SECONDS) + 1)),
    "reached", "samples_skipped", "loop_samples", "loop_microseconds", "loop_wait_microseconds",
)  # fmt: skip
"""Names of the counters, in the order in which they are stored."""
_PLACE = {name: at for at, name in enumerate(COUNTED)}
_LARGEST = {"reached", "step_most"}
_SLOTS = 4096  # milliseconds that are remembered one by one
_REPORT_SECONDS = 0.05  # between two reports of received bytes
_NUM_BYTES = 8 * (len(COUNTED) + _SLOTS)


_ERRORS = (StoreTimeout, StoreAuthError, StoreNotFound, FormatError, StoreError, OSError)
"""The errors of the kinds in `FAILURES`, the most specific class first."""


class _OfProcess:
    """The lock of one process, and the transfers that run in it; a fork may have copied the lock while it was held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # Received bytes and busy time are reported every now and then.
        self.num_running = self.num_bytes = 0
        self.since = 0.0


class Counters:
    """Counters of a process and its workers, however these are started; thread-safe.

    They lie in pages of an unnamed file; a lock on it serializes additions, which the kernel releases when a process is
    killed. Every number is written whole. A copy that is pickled for another purpose counts from 0.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:  # a new unnamed file
            if hasattr(os, "memfd_create"):
                descriptor = os.memfd_create("smalti-counters", os.MFD_CLOEXEC)
            else:
                with tempfile.TemporaryFile() as file:
                    descriptor = os.dup(file.fileno())
            os.ftruncate(descriptor, _NUM_BYTES)
        self._descriptor = descriptor
        words = np.frombuffer(mmap.mmap(self._descriptor, _NUM_BYTES), np.int64)
        self._values = words[: len(COUNTED)]
        """By place in COUNTED."""
        self._slots = words[len(COUNTED) :]
        """By millisecond modulo _SLOTS, the millisecond of the monotonic clock that was counted last."""
        self._of_processes: dict[int, _OfProcess] = {}
        """By process id. Not a `PerProcess`, which may wait for another thread that creates a client."""

    def _own(self) -> _OfProcess:
        pid = os.getpid()
        return self._of_processes.get(pid) or self._of_processes.setdefault(pid, _OfProcess())

    def add(self, **numbers: int) -> None:
        """Add to the counters of these names; `reached` and `step_most` become the largest number given."""
        with self._own().lock:
            self._add(numbers)

    def _add(self, numbers: dict[str, int], busy: range = range(0)) -> None:
        """Add to counters, and count those milliseconds that no transfer has counted yet; the lock is held."""
        if self._descriptor < 0:  # closed by the garbage collector before a reader that still counts
            return
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            if busy:
                slots = np.arange(max(busy.start, busy.stop - _SLOTS), busy.stop)
                new = slots[self._slots[slots % _SLOTS] != slots]
                self._slots[new % _SLOTS] = new
                numbers |= {"busy_milliseconds": int(new.size)}
            for name, number in numbers.items():
                at = _PLACE[name]
                if name in _LARGEST:
                    self._values[at] = max(self._values[at], number)
                elif name == "step_last":
                    self._values[at] = number
                else:
                    self._values[at] += number
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def failed(self, error: BaseException) -> None:
        """Count a failed attempt, by the kind of its error."""
        name = next((name for kind, name in zip(_ERRORS, FAILURES, strict=True) if isinstance(error, kind)), "store")
        self.add(**{f"failed_{name}": 1})

    @contextmanager
    def receiving(self) -> Iterator[Callable[[int], None]]:
        """Count the time of a transfer, and yield a function to call with the number of each received chunk's bytes.

        Time is counted once however many transfers run, over threads and processes.
        """
        own = self._own()

        def count_bytes(num_bytes: int) -> None:
            with own.lock:
                own.num_bytes += num_bytes
                if time.monotonic() - own.since > _REPORT_SECONDS:
                    self._report(own)

        with own.lock:
            if not own.num_running:
                own.since = time.monotonic()
            own.num_running += 1
        try:
            yield count_bytes
        finally:
            with own.lock:
                own.num_running -= 1
                self._report(own)

    def _report(self, own: _OfProcess) -> None:
        now, num_bytes = time.monotonic(), own.num_bytes
        self._add({"bytes_received": num_bytes}, range(int(own.since * 1000), int(now * 1000) + 1))
        own.since, own.num_bytes = now, 0

    def waited(self, seconds: float) -> None:
        """Count the time that a step waited for its shards."""
        took, place = int(seconds * 1e6), bisect_left(STEP_SECONDS, seconds)
        self.add(steps=1, step_microseconds=took, step_last=took, step_most=took, **{f"step_class_{place}": 1})

    def restart(self) -> None:
        """Reset the step that readers have reached."""
        self._values[_PLACE["reached"]] = 0

    def get(self, name: str) -> int:
        """Return one counter."""
        return int(self._values[_PLACE[name]])

    def all(self) -> dict[str, int]:
        """Return all counters by name."""
        return dict(zip(COUNTED, self._values.tolist(), strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return Counters, ()
        return _attach, (reduction.DupFd(self._descriptor),)  # for a worker of this process

    def __del__(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def _attach(duplicate: Any) -> Counters:
    return Counters(duplicate.detach())


@dataclass(frozen=True)
class StepWaits:
    """Waits of steps for their shards; a step that finds all of them open waits 0."""

    steps: int = 0
    total_seconds: float = 0.0
    last_seconds: float = 0.0
    most_seconds: float = 0.0
    classes: tuple[int, ...] = (0,) * (len(STEP_SECONDS) + 1)
    """Steps that waited up to 1 ms, 10 ms, 100 ms, 1 s, 10 s, and longer; each step is in one of them."""

    @property
    def mean_seconds(self) -> float | None:
        """Mean wait of a step; None before the first."""
        return self.total_seconds / self.steps if self.steps else None


@dataclass(frozen=True)
class CacheStats:
    """The cost of a dataset's shards so far, over this process and the workers that it started."""

    hits: int
    """Shards that were in the cache when a batch requested them."""
    fetches: int
    """Files of shards that were downloaded."""
    bytes_fetched: int
    """Bytes of these files as they lie in the store, and of blocks of shards."""
    evictions: int
    """Shards that were evicted."""
    bytes_evicted: int
    """Bytes that were evicted."""
    wait_seconds: float
    """Time in which readers waited for shards, summed over readers."""
    least_bytes: int | None = None
    """The fewest bytes that these batches can cost with this limit, from an empty cache, if each time what is needed
    last is evicted (Belady). Over all ranks of this host, which share its folder. None where it was not computed."""
    bytes_before: int = 0
    """Part of `bytes_fetched` from before the latest epochs, which `least_bytes` is about."""
    bytes_received: int = 0
    """Bytes that were received, failed attempts included."""
    link_seconds: float = 0.0
    """Time in which at least one file was being received, over all workers."""
    bytes_in_blocks: int = 0
    """Part of `bytes_fetched` that was read as blocks of shards, not as whole files."""
    bytes_from_disk: int = 0
    """Bytes of shards that were opened without a fetch: existing copies, and data that are read in place."""
    retries: int = 0
    """Attempts to fetch a file beyond its first."""
    failures: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FAILURES, 0))
    """Failed attempts by kind: timeout, auth, gone, damaged, store (any other answer), disk."""
    step_waits: StepWaits = StepWaits()
    samples_skipped: int = 0
    """Samples that could not be decoded or transformed, and were skipped (`on_error="skip"`)."""
    loop_samples: int = 0
    """Samples that loops took from a `StreamingDataLoader`, repeats included."""
    loop_seconds: float = 0.0
    """Time of these loops, from one batch to the next."""
    loop_wait_seconds: float = 0.0
    """Part of `loop_seconds` in which a loop waited for a batch: for shards, decoding, transforms and collation."""
    ranks: int = 1
    """Ranks of this host that `least_bytes` is about."""
    ranks_added: int = 1
    """Ranks that these figures are about."""

    @property
    def ratio(self) -> float | None:
        """Bytes fetched, relative to the fewest possible; None until the figures of all ranks of a host are added."""
        if not self.least_bytes or self.ranks_added != self.ranks:
            return None
        return (self.bytes_fetched - self.bytes_before) / self.least_bytes

    @property
    def data_fraction(self) -> float | None:
        """Share of the loops' time in which they waited for data; None before the second batch."""
        return self.loop_wait_seconds / self.loop_seconds if self.loop_seconds else None

    @property
    def link_bytes_per_second(self) -> float | None:
        """Speed of the link while it was in use; of several ranks, their mean. None before the first byte."""
        return self.bytes_received / self.link_seconds if self.link_seconds else None

    @classmethod
    def of_host(cls, each: Sequence["CacheStats"]) -> "CacheStats":
        """Return the figures of several ranks of one host: sums, except the longest wait and `least_bytes`.

        Raises:
            ValueError: there are none.
        """
        if not each:
            raise ArgumentError("`each` is empty: the statistics of at least one rank are needed.")
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
        """Return all figures as one JSON object."""
        computed = ("ratio", "link_bytes_per_second", "data_fraction")
        figures = asdict(self) | {name: getattr(self, name) for name in computed}
        figures["step_waits"] |= {"mean_seconds": self.step_waits.mean_seconds}
        return json.dumps(figures)

    def to_prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """Return all figures in Prometheus' text format.

        `labels`, such as the rank, are put on every line.
        """
        figures: tuple[tuple[str, str, float | None, str], ...] = (
            ("hits_total", "counter", self.hits, "Shards that were here when a batch asked for them."),
            ("fetches_total", "counter", self.fetches, "Files that were downloaded."),
            ("fetched_bytes_total", "counter", self.bytes_fetched, "Bytes of files and blocks that were downloaded."),
            ("block_bytes_total", "counter", self.bytes_in_blocks, "Bytes of blocks that were downloaded."),
            ("received_bytes_total", "counter", self.bytes_received, "Bytes that came, failed attempts included."),
            ("link_seconds_total", "counter", self.link_seconds, "Time in which a file was under way."),
            ("disk_bytes_total", "counter", self.bytes_from_disk, "Bytes of shards opened without a fetch."),
            ("retries_total", "counter", self.retries, "Attempts beyond the first."),
            ("evictions_total", "counter", self.evictions, "Shards that were removed to make room."),
            ("evicted_bytes_total", "counter", self.bytes_evicted, "Bytes that were removed to make room."),
            ("skipped_samples_total", "counter", self.samples_skipped, "Samples that could not be read."),
            ("loop_samples_total", "counter", self.loop_samples, "Samples that loops took from a loader."),
            ("loop_seconds_total", "counter", self.loop_seconds, "Time of loops over a loader."),
            ("loop_wait_seconds_total", "counter", self.loop_wait_seconds, "Time in which loops waited for a batch."),
            ("wait_seconds_total", "counter", self.wait_seconds, "Time in which readers waited for shards."),
            ("least_bytes", "gauge", self.least_bytes, "The fewest bytes that this reading can cost."),
            ("fetch_ratio", "gauge", self.ratio, "Bytes fetched to the least possible."),
        )
        families: list[tuple[str, str, str, Sequence[tuple[str, Mapping[str, str], float]]]]
        families = [(name, kind, text, [("", {}, value)]) for name, kind, value, text in figures if value is not None]
        failures = [("", {"kind": kind}, number) for kind, number in self.failures.items()]
        families.append(("failures_total", "counter", "Attempts that failed.", failures))
        waits = self.step_waits
        ends, counts = (*map(str, STEP_SECONDS), "+Inf"), accumulate(waits.classes)
        buckets = [("_bucket", {"le": end}, number) for end, number in zip(ends, counts, strict=True)]
        sums: list[tuple[str, dict[str, str], float]] = [("_sum", {}, waits.total_seconds), ("_count", {}, waits.steps)]
        families.append(
            ("step_wait_seconds", "histogram", "Time that a step waited for its shards.", [*buckets, *sums])
        )
        lines = []
        for name, kind, text, samples in families:
            lines += [f"# HELP smalti_cache_{name} {text}", f"# TYPE smalti_cache_{name} {kind}"]
            for suffix, own, value in samples:
                shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in {**(labels or {}), **own}.items())
                lines.append(f"smalti_cache_{name}{suffix}{f'{{{shown}}}' if shown else ''} {value}")
        return "\n".join(lines) + "\n"


def stats_of(counters: Counters, least_bytes: int | None = None, bytes_before: int = 0, ranks: int = 1) -> CacheStats:
    """Return the figures up to now; the other arguments are the fields of these names."""
    now = counters.all()
    return CacheStats(
        **{each.name: now[each.name] for each in fields(CacheStats) if each.name in now},
        wait_seconds=now["wait_microseconds"] / 1e6,
        least_bytes=least_bytes,
        bytes_before=bytes_before,
        link_seconds=now["busy_milliseconds"] / 1e3,
        loop_seconds=now["loop_microseconds"] / 1e6,
        loop_wait_seconds=now["loop_wait_microseconds"] / 1e6,
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
