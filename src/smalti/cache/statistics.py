"""What a cache has done, counted over the threads and the worker processes of a run."""

import fcntl
import json
import mmap
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing import context, reduction
from typing import Any

import numpy as np

COUNTED = ("hits", "fetches", "bytes_fetched", "evictions", "bytes_evicted", "wait_microseconds", "reached")


@dataclass(frozen=True)
class CacheStats:
    """What the shards of a dataset cost so far: of this process, and of the worker processes that it began."""

    hits: int
    """Shards that were here when a batch asked for them."""
    fetches: int
    """Files of shards that were downloaded."""
    bytes_fetched: int
    """Bytes that came from the store."""
    evictions: int
    """Shards that were removed to make room."""
    bytes_evicted: int
    """Bytes that were removed to make room."""
    wait_seconds: float
    """Time in which readers waited for shards, all of them together."""
    least_bytes: int | None = None
    """The fewest bytes that these batches can cost with this limit, from an empty cache: each time, what is needed
    last goes (Belady). None where nobody counted."""

    @property
    def ratio(self) -> float | None:
        """Bytes fetched to the least possible."""
        return self.bytes_fetched / self.least_bytes if self.least_bytes else None

    def to_json(self) -> str:
        """All of it as one JSON object."""
        return json.dumps(asdict(self) | {"ratio": self.ratio})

    def to_prometheus(self, labels: Mapping[str, str] | None = None) -> str:
        """All of it in Prometheus' text format.

        Args:
            labels: put on every line, such as the rank.
        """
        shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
        lines = []
        for name, kind, value, text in (
            ("hits_total", "counter", self.hits, "Shards that were here when a batch asked for them."),
            ("fetches_total", "counter", self.fetches, "Files that were downloaded."),
            ("fetched_bytes_total", "counter", self.bytes_fetched, "Bytes that came from the store."),
            ("evictions_total", "counter", self.evictions, "Shards that were removed to make room."),
            ("evicted_bytes_total", "counter", self.bytes_evicted, "Bytes that were removed to make room."),
            ("wait_seconds_total", "counter", self.wait_seconds, "Time in which readers waited for shards."),
            ("least_bytes", "gauge", self.least_bytes, "The fewest bytes that this reading can cost."),
            ("fetch_ratio", "gauge", self.ratio, "Bytes fetched to the least possible."),
        ):
            if value is not None:
                lines += [
                    f"# HELP smalti_cache_{name} {text}",
                    f"# TYPE smalti_cache_{name} {kind}",
                    f"smalti_cache_{name}{{{shown}}} {value}" if shown else f"smalti_cache_{name} {value}",
                ]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Counters:
    """Numbers that a process and its workers add to: a page of a file without a name, however workers are started.

    Adding takes the kernel's lock on the page, which a killed process lets go of. Every number is written whole.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        self._numbers = np.frombuffer(mmap.mmap(self._descriptor, len(COUNTED) * 8), np.int64)
        self._lock, self._pid = threading.Lock(), os.getpid()

    def add(self, **numbers: int) -> None:
        """Adds to the numbers of these names; `reached` becomes the largest one told."""
        if self._pid != os.getpid():  # a fork may have copied the lock while it was held
            self._lock, self._pid = threading.Lock(), os.getpid()
        with self._lock:
            if self._descriptor < 0:  # collected together with a reader that ends only now: nobody will look
                return
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                for name, number in numbers.items():
                    at = COUNTED.index(name)
                    self._numbers[at] = (
                        max(self._numbers[at], number) if name == "reached" else (self._numbers[at] + number)
                    )
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def restart(self) -> None:
        """Begins to count anew how far readers are."""
        self._numbers[COUNTED.index("reached")] = 0

    def get(self, name: str) -> int:
        """One of the numbers."""
        return int(self._numbers[COUNTED.index(name)])

    def stats(self, least_bytes: int | None = None) -> CacheStats:
        """All of it as it is now."""
        counted: dict[str, Any] = {name: self.get(name) for name in COUNTED}
        wait, _ = counted.pop("wait_microseconds"), counted.pop("reached")
        return CacheStats(**counted, wait_seconds=wait / 1e6, least_bytes=least_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            return Counters, ()  # a copy for somebody else counts for itself
        return _attached, (reduction.DupFd(self._descriptor),)  # a worker of ours

    def __del__(self) -> None:
        descriptor, self._descriptor = getattr(self, "_descriptor", -1), -1
        if descriptor >= 0:
            os.close(descriptor)


def _attached(duplicate: Any) -> Counters:
    return Counters(duplicate.detach())


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("smalti-counters", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, len(COUNTED) * 8)
    return descriptor
