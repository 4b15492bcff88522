"""Transfers: the bytes of one object, from the store to a temporary file, verified as they arrive.

Here: how many transfers run at once, reading an object whole or in parts with a deadline that holds also for stores
whose calls never return, and the file that checks what is written to it.
"""

import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
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
            rate = self._num_bytes / seconds
            self._num_bytes, self._begin = 0, now
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


class _Arrivals:
    """Pieces of an object, by number, on their way from the threads that request them to the one that reads them.

    `window` pieces are on their way at most, and `count` come in all, None if the last one is not known.
    """

    def __init__(self, window: int, count: int | None = None) -> None:
        self._window, self._count = window, count
        self._changed = threading.Condition()
        self._pieces: dict[int, bytes | BaseException | None] = {}
        self._num_claimed = self._num_taken = 0
        self._is_closed = False

    def claim(self) -> int | None:
        """Return the number of the next piece, once the reader is near it; None after the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._num_claimed < self._num_taken + self._window)
            if self._is_closed or self._num_claimed == self._count:
                return None
            self._num_claimed += 1
            return self._num_claimed - 1

    def put(self, number: int, piece: bytes | BaseException | None) -> None:
        """Hand a piece to the reader; None for the end of the object, and an error that it raises."""
        with self._changed:
            self._pieces[number] = piece
            self._changed.notify_all()

    def read(
        self,
        request: Callable[[], None],
        num_threads: int,
        store: Store,
        key: str,
        *,
        deadline: TransferDeadline,
        stall: float,
        kind: type[StoreTimeout],
    ) -> Generator[bytes]:
        """Start threads that request the pieces, and yield them in order.

        Raises:
            StoreTimeout: of class `kind`, if none arrives for `stall` seconds.
        """
        received = 0
        try:
            try:
                for _ in range(num_threads):
                    threading.Thread(target=request, name=f"smalti-fetch-{key[-40:]}", daemon=True).start()
            except RuntimeError as error:  # Python's "can't start new thread" names neither purpose nor cause
                raise StoreError(
                    f"{store.locate(key)}: no thread could be started to fetch it: out of memory, or too many threads "
                    "and processes of this user; use fewer loader workers",
                    key=key,
                ) from error
            while self._num_taken != self._count:
                with self._changed:
                    seconds = min(stall, deadline.remaining())
                    is_here = self._changed.wait_for(lambda: self._num_taken in self._pieces, seconds)
                    piece = self._pieces.pop(self._num_taken) if is_here else None
                    self._num_taken += is_here
                    self._changed.notify_all()
                if not is_here:
                    deadline.progress(0)
                    raise kind(
                        f"{store.locate(key)}: no byte for {stall:.0f} s ({received} bytes had arrived); check the "
                        "store and the network, or raise `download_timeout`",
                        key=key,
                        received=received,
                    )
                if piece is None:
                    return
                chunk = _checked(piece, store, key, kind)
                deadline.progress(len(chunk))
                received += len(chunk)
                yield chunk
        finally:
            with self._changed:
                self._is_closed = True
                self._pieces.clear()
                self._changed.notify_all()


def stream(store: Store, key: str, *, deadline: TransferDeadline, stall: float) -> Generator[bytes]:
    """Yield the chunks of an object in order.

    Each chunk is reported to `deadline`. The attempt fails after `stall` seconds without a byte.

    Raises:
        StoreTimeout: the deadline passed, or nothing arrived for `stall` seconds. The store's call may still run in
            its own thread; it ends at its next chunk and has no effect.
        StoreError: the store's own error.
    """
    arrivals = _Arrivals(QUEUED_CHUNKS)

    def put(piece: bytes | BaseException | None) -> None:
        number = arrivals.claim()
        if number is None:
            raise _Abandoned
        arrivals.put(number, piece)

    def write(chunk: bytes) -> int:
        put(bytes(chunk))
        return len(chunk)

    def fetch() -> None:
        with suppress(_Abandoned):
            try:
                store.fetch(key, cast("BinaryIO", SimpleNamespace(write=write)))
                put(None)
            except _Abandoned:
                return
            except BaseException as error:  # noqa: BLE001 -- handed to the reader, which raises it
                put(error)

    yield from arrivals.read(fetch, 1, store, key, deadline=deadline, stall=stall, kind=StoreTimeout)


def stream_parts(
    store: Store, key: str, num_bytes: int, at_once: int, *, deadline: TransferDeadline, stall: float
) -> Generator[bytes]:
    """Yield an object by several ranged requests at once, which use a link better than one connection.

    Parts of different objects under one key would go unnoticed: only for objects whose hash is known. Each part is
    reported to `deadline`. The attempt fails after `stall` seconds without a whole part.

    Raises:
        PartsTimeout: no part arrived for `stall` seconds; a slow link can still bring the object by `stream`.
        StoreTimeout: the deadline passed.
        StoreError: the store's own error.
    """
    count = -(-num_bytes // PART_BYTES)
    arrivals = _Arrivals(at_once, count)

    def request() -> None:
        while (number := arrivals.claim()) is not None:
            # One byte more than the last: an object that is longer than declared is noticed.
            end = num_bytes + 1 if number == count - 1 else (number + 1) * PART_BYTES
            try:
                arrivals.put(number, store.get_range(key, number * PART_BYTES, end))
            except BaseException as error:  # noqa: BLE001 -- handed to the reader, which raises it
                arrivals.put(number, error)

    yield from arrivals.read(
        request, min(at_once, count), store, key, deadline=deadline, stall=stall, kind=PartsTimeout
    )


def _checked(piece: bytes | BaseException, store: Store, key: str, kind: type[StoreTimeout]) -> bytes:
    try:
        if isinstance(piece, StoreTimeout) and not isinstance(piece, kind):
            raise kind(piece.message, **piece.facts) from piece
        if isinstance(piece, SmaltiError):
            raise piece
        if isinstance(piece, BaseException):
            raise StoreError(f"{store.locate(key)}: {type(piece).__name__}: {piece}", key=key) from piece
        return piece
    finally:
        del piece  # an error that its own frame holds would keep all callers' frames until garbage is collected


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
