"""Reading an object in chunks with a deadline that holds for every store, also one whose own calls never return."""

import queue
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, cast

from smalti.errors import SmaltiError, StoreError, StoreTimeout
from smalti.storage import Store
from smalti.storage.deadline import TransferDeadline

QUEUED_CHUNKS = 8
"""Chunks between the network and the disk: some are written while the next arrive, and memory stays small."""
PART_BYTES = 16 << 20
"""One ranged request: a shard of usual size comes in one round trip, and memory stays small."""


class PartsTimeout(StoreTimeout):
    """A part did not arrive in time: nobody sees the progress within a part, so the object is to be read as a whole."""


class _Abandoned(Exception):  # noqa: N818 -- a signal between two threads of ours
    """The reader has given up; the transfer ends at its next chunk."""


class _Pipe:
    """The writing end, in the thread that runs the store's call."""

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
                self.chunks.put(item, timeout=0.25)
            except queue.Full:
                continue
            return
        raise _Abandoned


def stream(store: Store, key: str, *, deadline: TransferDeadline, stall: float) -> Generator[bytes]:
    """The object's chunks, in order.

    Args:
        store: Where it lies.
        key: Its name.
        deadline: Of the transfer; told of each chunk.
        stall: Seconds without a byte after which this attempt is given up.

    Raises:
        StoreTimeout: the deadline passed, or nothing arrived for `stall` seconds. The store's call may go on in its
            own thread; it ends at its next chunk and touches nothing of ours.
        StoreError: what the store raised.
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


class _Parts:
    """The parts of an object, asked for by some threads, not far ahead of the one that takes them."""

    def __init__(self, spans: list[tuple[int, int]], at_once: int) -> None:
        self.count = len(spans)
        self._spans, self._at_once = spans, at_once
        self._changed = threading.Condition()
        self._here: dict[int, bytes | BaseException] = {}
        self._asked = self._taken = 0
        self._is_over = False

    def serve(self, store: Store, key: str) -> None:
        while (number := self._next()) is not None:
            begin, end = self._spans[number]
            # One byte more than the last: an object that is longer than it should be is noticed.
            end += number == self.count - 1
            part: bytes | BaseException
            try:
                part = store.get_range(key, begin, end)
            except BaseException as error:  # noqa: BLE001 -- handed to the reader, which raises it
                part = error
            with self._changed:
                self._here[number] = part
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._asked < self._taken + self._at_once)
            if self._is_over or self._asked == self.count:
                return None
            self._asked += 1
            return self._asked - 1

    def take(self, seconds: float) -> bytes | BaseException | None:
        """The next part; None when it did not come in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken in self._here, seconds):
                return None
            part = self._here.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
            return part

    def close(self) -> None:
        with self._changed:
            self._is_over = True
            self._here.clear()
            self._changed.notify_all()


@dataclass(frozen=True)
class Cut:
    """How an object is cut into parts."""

    spans: list[tuple[int, int]]
    """Begin and end of each part, in order."""
    at_once: int
    """Requests under way at once, and parts in memory."""


def cut(num_bytes: int, first: int, at_once: int) -> Cut:
    """An object of so many bytes; the first ones in a small part for each request, so that all fetch these together."""
    small = -(-first // at_once) if first else PART_BYTES
    ends = [*range(small, first, small), *range(first or PART_BYTES, num_bytes, PART_BYTES), num_bytes]
    return Cut(list(pairwise([0, *ends])), at_once)


def stream_parts(store: Store, key: str, parts: Cut, *, deadline: TransferDeadline, stall: float) -> Generator[bytes]:
    """As `stream`, by several ranged requests at once: what one connection cannot do for a large object.

    Nothing compares the parts to each other: for objects whose hash is known.

    Args:
        store: Where it lies.
        key: Its name.
        parts: What to ask for.
        deadline: Of the transfer; told of each part.
        stall: Seconds without a whole part after which this attempt is given up.

    Raises:
        PartsTimeout: no part arrived for `stall` seconds; a slow link can still bring the object by `stream`.
        StoreTimeout: the deadline passed.
        StoreError: what the store raised.
    """
    coming = _Parts(parts.spans, parts.at_once)
    received = 0
    try:
        for _ in range(min(parts.at_once, coming.count)):
            _start(coming.serve, store, key)
        for _ in range(coming.count):
            part = coming.take(min(stall, deadline.remaining()))
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
        coming.close()


def _start(work: Callable[[Store, str], None], store: Store, key: str) -> None:
    try:
        threading.Thread(target=work, args=(store, key), name=f"smalti-fetch-{key[-40:]}", daemon=True).start()
    except RuntimeError as error:  # Python's "can't start new thread" tells neither what for nor why
        raise StoreError(
            f"{store.locate(key)}: no thread could be started to fetch it: out of memory, or too many threads and "
            "processes of this user; take fewer loader workers",
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
