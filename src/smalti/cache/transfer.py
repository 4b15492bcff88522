"""Transfers: the bytes of one object, from the store to a temporary file, verified as they arrive.

Here: how many transfers run at once, reading an object whole or in parts with a deadline that holds also for stores
whose calls never return, and the file that checks what is written to it.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

from smalti.errors import ChecksumMismatch, SmaltiError, StoreError, StoreTimeout
from smalti.format import FileInfo, new_hash
from smalti.storage import Store
from smalti.storage.retry import TransferDeadline

MIN_TRANSFERS = 4
"""Transfers at once from the start: enough for large shards, where a round trip is short compared with the bytes."""
MAX_TRANSFERS = 32
"""Transfers at once at most: each holds a thread, a temporary file and some chunks."""
TRIAL_SECONDS = 0.5
"""Duration of one measurement of a number of transfers."""
MIN_GAIN = 1.1
"""The factor in bytes per second that more transfers must bring to be kept."""
TRIALS_ON_HOLD = 25
"""Measurements between two attempts at a larger number: links change, but not every second."""
QUEUED_CHUNKS = 8
"""Chunks between network and disk: some are written while the next arrive, and memory stays small."""
PART_BYTES = 16 << 20
"""Size of a ranged request: a shard of usual size takes one round trip, and memory stays small."""
_POLL_SECONDS = 0.25
"""Time after which a transfer with a full queue notices that it was abandoned."""


class ConcurrencyTuner:
    """The number of transfers that run at once, raised while that makes them faster together.

    Many small shards far away need many requests in flight, a few large ones need few, and the link is not known
    beforehand. Only times count in which all threads were busy and more was queued. Thread-safe; belongs to one
    process.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_transfers = MIN_TRANSFERS
        """Prefetches that may run at once."""
        self._clock, self._lock = clock, threading.Lock()
        self._num_running, self._has_finished_one = 0, False
        self._num_bytes, self._begin = 0, clock()
        self._before: tuple[int, float] | None = None
        """Number of transfers and bytes per second before the number was last raised, while that is on trial."""
        self._hold = 0

    @contextmanager
    def transfer(self) -> Iterator[int]:
        """Count a transfer, and yield in how many parts at once it may come.

        A first shard comes in parts, to use the link that it has to itself. Later ones come whole: parts wait in
        memory, which costs half as much time again as reading them.
        """
        with self._lock:
            self._num_running += 1
            parts = 1 if self._has_finished_one else MIN_TRANSFERS // self._num_running
        try:
            yield max(1, parts)
        finally:
            with self._lock:
                self._num_running -= 1
                self._has_finished_one = True

    def add_bytes(self, num_bytes: int) -> None:
        """Count bytes that have arrived."""
        with self._lock:
            self._num_bytes += num_bytes

    def adjust(self, *, is_saturated: bool) -> None:
        """Measure and perhaps change the number after a transfer.

        Unless all threads are busy and more is queued (`is_saturated`), the measurement starts anew.
        """
        with self._lock:
            now = self._clock()
            if not is_saturated:
                self._num_bytes, self._begin = 0, now
                return
            seconds = now - self._begin
            if seconds < TRIAL_SECONDS:
                return
            self._decide(self._num_bytes / seconds)
            self._num_bytes, self._begin = 0, now

    def _decide(self, rate: float) -> None:
        if self._before is not None and rate < self._before[1] * MIN_GAIN:
            self.max_transfers, self._before, self._hold = self._before[0], None, TRIALS_ON_HOLD
        elif self._before is None and self._hold:
            self._hold -= 1
        elif self.max_transfers < MAX_TRANSFERS:
            self._before = self.max_transfers, rate
            self.max_transfers = min(MAX_TRANSFERS, self.max_transfers + self.max_transfers // 2)
        else:
            self._before, self._hold = None, TRIALS_ON_HOLD


class PartsTimeout(StoreTimeout):
    """A part did not arrive in time. Progress within a part is not seen, so the object should be read whole."""


class _Abandoned(Exception):  # noqa: N818 -- a signal between two of our threads
    """The reader no longer needs the object; the transfer ends at its next chunk."""


class _Pipe:
    """The writing end of a transfer, in the thread that runs the store's call."""

    def __init__(self) -> None:
        self.chunks: queue.Queue[bytes | BaseException | None] = queue.Queue(QUEUED_CHUNKS)
        self.abandoned = threading.Event()

    def write(self, chunk: bytes) -> int:
        self._put(bytes(chunk))
        return len(chunk)

    def fill(self, store: Store, key: str) -> None:
        try:
            store.fetch(key, cast("BinaryIO", self))
            self._put(None)
        except _Abandoned:
            return
        except BaseException as error:  # noqa: BLE001 -- handed to the reader, which raises it
            try:
                self._put(error)
            except _Abandoned:
                return

    def _put(self, item: Any) -> None:
        while not self.abandoned.is_set():
            try:
                self.chunks.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return
        raise _Abandoned


def stream(store: Store, key: str, *, deadline: TransferDeadline, stall: float) -> Generator[bytes]:
    """Yield the chunks of an object in order.

    Each chunk is reported to `deadline`. The attempt fails after `stall` seconds without a byte.

    Raises:
        StoreTimeout: the deadline passed, or nothing arrived for `stall` seconds. The store's call may still run in
            its own thread; it ends at its next chunk and has no effect.
        StoreError: the store's own error.
    """
    pipe = _Pipe()
    received = 0
    try:
        _start(pipe.fill, store, key)
        while True:
            try:
                item = pipe.chunks.get(timeout=min(stall, deadline.remaining()))
            except queue.Empty:
                deadline.progress(0)
                raise _stalled(StoreTimeout, store, key, received, stall) from None
            if item is None:
                return
            chunk = _checked(item, store, key)
            deadline.progress(len(chunk))
            received += len(chunk)
            yield chunk
    finally:
        pipe.abandoned.set()


@dataclass(frozen=True)
class ObjectParts:
    """The parts in which an object is requested."""

    spans: list[tuple[int, int]]
    """Begin and end of each part, in order."""
    at_once: int
    """Requests that run at once, and parts in memory."""


def divide(num_bytes: int, at_once: int) -> ObjectParts:
    """Divide an object of so many bytes, of which at most `at_once` parts are requested at once."""
    return ObjectParts(list(pairwise([*range(0, num_bytes, PART_BYTES), num_bytes])), at_once)


class _PartRequests:
    """Parts of an object, requested by some threads and taken by one, not far ahead of it."""

    def __init__(self, parts: ObjectParts) -> None:
        self.count = len(parts.spans)
        self._parts = parts
        self._changed = threading.Condition()
        self._arrived: dict[int, bytes | BaseException] = {}
        self._num_requested = self._num_taken = 0
        self._is_closed = False

    def serve(self, store: Store, key: str) -> None:
        while (number := self._next()) is not None:
            begin, end = self._parts.spans[number]
            # One byte more than the last: an object that is longer than declared is noticed.
            end += number == self.count - 1
            part: bytes | BaseException
            try:
                part = store.get_range(key, begin, end)
            except BaseException as error:  # noqa: BLE001 -- handed to the reader, which raises it
                part = error
            with self._changed:
                self._arrived[number] = part
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._num_requested < self._num_taken + self._parts.at_once
            )
            if self._is_closed or self._num_requested == self.count:
                return None
            self._num_requested += 1
            return self._num_requested - 1

    def take(self, seconds: float) -> bytes | BaseException | None:
        """Return the next part; None when it does not come in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_taken in self._arrived, seconds):
                return None
            part = self._arrived.pop(self._num_taken)
            self._num_taken += 1
            self._changed.notify_all()
            return part

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._arrived.clear()
            self._changed.notify_all()


def stream_parts(
    store: Store, key: str, parts: ObjectParts, *, deadline: TransferDeadline, stall: float
) -> Generator[bytes]:
    """Yield an object by several ranged requests at once, which use a link better than one connection.

    Parts of different objects under one key would go unnoticed: only for objects whose hash is known. Each part is
    reported to `deadline`. The attempt fails after `stall` seconds without a whole part.

    Raises:
        PartsTimeout: no part arrived for `stall` seconds; a slow link can still bring the object by `stream`.
        StoreTimeout: the deadline passed.
        StoreError: the store's own error.
    """
    requests = _PartRequests(parts)
    received = 0
    try:
        for _ in range(min(parts.at_once, requests.count)):
            _start(requests.serve, store, key)
        for _ in range(requests.count):
            part = requests.take(min(stall, deadline.remaining()))
            if part is None:
                deadline.progress(0)
                raise _stalled(PartsTimeout, store, key, received, stall)
            if isinstance(part, StoreTimeout):
                raise PartsTimeout(part.message, **part.facts) from part
            chunk = _checked(part, store, key)
            deadline.progress(len(chunk))
            received += len(chunk)
            yield chunk
    finally:
        requests.close()


def _start(work: Callable[[Store, str], None], store: Store, key: str) -> None:
    try:
        threading.Thread(target=work, args=(store, key), name=f"smalti-fetch-{key[-40:]}", daemon=True).start()
    except RuntimeError as error:  # Python's "can't start new thread" names neither purpose nor cause
        raise StoreError(
            f"{store.locate(key)}: no thread could be started to fetch it: out of memory, or too many threads and "
            "processes of this user; use fewer loader workers",
            key=key,
        ) from error


def _checked(item: bytes | BaseException, store: Store, key: str) -> bytes:
    try:
        if isinstance(item, SmaltiError):
            raise item
        if isinstance(item, BaseException):
            raise StoreError(f"{store.locate(key)}: {type(item).__name__}: {item}", key=key) from item
        return item
    finally:
        del item  # an error that its own frame holds would keep all callers' frames until garbage is collected


def _stalled(kind: type[StoreTimeout], store: Store, key: str, received: int, stall: float) -> StoreTimeout:
    return kind(
        f"{store.locate(key)}: no byte for {stall:.0f} s ({received} bytes had arrived); check the store and the "
        "network, or raise `download_timeout`",
        key=key,
        received=received,
    )


class CheckedFile:
    """A new file whose size and hashes are checked as it is written; on disk when `finish` returns."""

    def __init__(self, path: Path, expected: FileInfo, name: str) -> None:
        self._expected = expected
        self._name = name
        self._hashes = {name: new_hash(name) for name in expected.hashes}
        self._num_bytes = 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> "CheckedFile":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._file.close()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Count, hash and write the bytes.

        Raises:
            ChecksumMismatch: they are more than declared.
        """
        size = len(data)
        self._num_bytes += size
        if self._num_bytes > self._expected.num_bytes:
            raise self._mismatch(f"{self._expected.num_bytes} bytes", f"at least {self._num_bytes}")
        for digest in self._hashes.values():
            digest.update(data)
        self._file.write(data)
        return size

    def finish(self) -> None:
        """Compare size and hashes with the declared ones, and sync the file to disk.

        Raises:
            ChecksumMismatch: size or a hash differs.
        """
        if self._num_bytes != self._expected.num_bytes:
            raise self._mismatch(f"{self._expected.num_bytes} bytes", f"{self._num_bytes}")
        for name, digest in self._hashes.items():
            if digest.hexdigest() != self._expected.hashes[name]:
                raise self._mismatch(f"{name} {self._expected.hashes[name]}", digest.hexdigest())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _mismatch(self, expected: str, found: str) -> ChecksumMismatch:
        return ChecksumMismatch(f"{self._name}: expected {expected}, found {found}", expected=expected, found=found)
