"""Puts that run on threads while the writer goes on: bounded, checked, and none forgotten. Knows no shards.

Intended behaviour; anything else is a bug:
1. At most `max_workers` puts are under way; a further one blocks the writer, so memory is bounded.
2. A put counts when the store has it with its full size, asked for afterwards: stores have taken empty bodies before.
3. The first failure is raised by the next `put` or `drain`, and by every one after it.
4. Every wait ends: a put has the store's deadlines, and waiting for one has `timeout_seconds` on top.
"""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from smalti.errors import StoreAuthError, StoreError, StoreTimeout
from smalti.format.hashing import Buffer
from smalti.storage import Store


@dataclass(frozen=True)
class UploadOptions:
    """How shards travel."""

    max_workers: int = 4
    """Puts at the same time; each holds its shard in memory."""
    attempts: int = 2
    """Tries per object and store, on top of the retries of the store itself."""
    timeout_seconds: float = 900.0
    """Longest wait for one put to end."""


class UploadQueue:
    """Puts into one or more stores that hold the same objects; used by one thread."""

    def __init__(self, stores: tuple[Store, ...], options: UploadOptions) -> None:
        self._stores = stores
        self._options = options
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[tuple[str, Future[None]]] = deque()
        self._keys: list[str] = []
        self._failure: BaseException | None = None
        self._cancelled = threading.Event()

    def put(self, key: str, data: Buffer) -> None:
        """Have `data` put under `key` soon; blocks while too many wait.

        Raises:
            StoreError: This or an earlier put failed, or does not end.
        """
        while self._running and (self._running[0][1].done() or len(self._running) >= self._options.max_workers):
            self._settle()
        self._raise_failure()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._options.max_workers, thread_name_prefix="smalti-upload")
        self._keys.append(key)
        self._running.append((key, self._pool.submit(self._put_everywhere, key, data)))

    def drain(self) -> None:
        """Return when every put has ended well.

        Raises:
            StoreError: One failed, or does not end.
        """
        while self._running:
            self._settle()
        self._raise_failure()
        self._close()

    def cancel(self) -> tuple[str, ...]:
        """Stop, wait for what runs, and delete what was put; returns the addresses that could not be deleted."""
        self._cancelled.set()
        for _, future in self._running:
            future.cancel()
        wait([future for _, future in self._running], timeout=self._options.timeout_seconds)
        self._running.clear()
        self._close()
        left = [store.locate(key) for store in self._stores for key in self._keys if not _deleted(store, key)]
        self._keys.clear()
        return tuple(left)

    def _settle(self) -> None:
        key, future = self._running.popleft()
        done = wait([future], timeout=self._options.timeout_seconds).done
        if not done:
            self._failure = self._failure or StoreTimeout(
                f"{self._stores[0].locate(key)}: the put did not end within {self._options.timeout_seconds} s; "
                "look at the store and the network, and write again.",
                key=key,
            )
        elif not future.cancelled():
            self._failure = self._failure or future.exception()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _put_everywhere(self, key: str, data: Buffer) -> None:
        for store in self._stores:
            for attempt in range(1, self._options.attempts + 1):
                if self._cancelled.is_set():
                    return
                try:
                    _put_checked(store, key, data)
                    break
                except StoreAuthError:
                    raise
                except StoreError:
                    if attempt == self._options.attempts:
                        raise


def _put_checked(store: Store, key: str, data: Buffer) -> None:
    store.put(key, bytes(data) if isinstance(data, bytearray) else data)
    found = store.size(key)
    if found != len(data):
        raise StoreError(
            f"{store.locate(key)}: put {len(data)} bytes, and the store has {found}; it did not take the whole object. "
            "Write again; if it happens again, look at the store.",
            key=key,
            expected=len(data),
            found=found,
        )


def _deleted(store: Store, key: str) -> bool:
    try:
        store.delete(key)
    except StoreError:
        return False
    return True
