"""Reading an object in chunks with a deadline that holds for every store, also one whose own calls never return."""

import queue
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from smalti.errors import SmaltiError, StoreError, StoreTimeout
from smalti.storage import Store
from smalti.storage.retry import Deadline

QUEUED_CHUNKS = 1
"""Chunks between the network and the disk: one is written while the next arrives, and memory stays small."""


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


def stream(store: Store, key: str, *, deadline: Deadline, stall: float) -> Iterator[bytes]:
    """The object's chunks, in order.

    Args:
        store: Where it lies.
        key: Its name.
        deadline: For the whole object.
        stall: Seconds without a byte after which it is given up.

    Raises:
        StoreTimeout: the deadline passed, or nothing arrived for `stall` seconds. The store's call may go on in its
            own thread; it ends at its next chunk and touches nothing of ours.
        StoreError: what the store raised.
    """
    pipe = _Pipe()
    try:
        threading.Thread(target=pipe.fill, args=(store, key), name=f"smalti-fetch-{key[-40:]}", daemon=True).start()
    except RuntimeError as error:  # Python's "can't start new thread" tells neither what for nor why
        raise StoreError(
            f"{store.locate(key)}: no thread could be started to fetch it: out of memory, or too many threads and "
            "processes of this user; take fewer loader workers",
            key=key,
        ) from error
    received = 0
    try:
        while True:
            try:
                item = pipe.chunks.get(timeout=min(stall, deadline.left()))
            except queue.Empty:
                raise _stalled(store, key, received, deadline, stall) from None
            if item is None:
                return
            if isinstance(item, SmaltiError):
                raise item
            if isinstance(item, BaseException):
                raise StoreError(f"{store.locate(key)}: {type(item).__name__}: {item}", key=key) from item
            received += len(item)
            if deadline.passed():
                raise _stalled(store, key, received, deadline, stall)
            yield item
    finally:
        pipe.abandoned.set()


def _stalled(store: Store, key: str, received: int, deadline: Deadline, stall: float) -> StoreTimeout:
    late = f"not complete within {deadline.seconds:.0f} s"
    why = late if deadline.passed() else f"no byte for {stall:.0f} s"
    return StoreTimeout(
        f"{store.locate(key)}: {why} ({received} bytes had arrived); check the store and the network, or "
        "raise `download_timeout`",
        key=key,
        received=received,
    )
