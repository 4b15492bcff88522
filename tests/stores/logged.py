"""A store that hands every call on to another and writes it down in a file that all processes share."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from smalti.storage.store import ObjectInfo, Store, Tagged


class LoggedStore(Store):
    """A log line `op key pid` for each call; picklable when the inner store is.

    It hides `local_path`, so that a folder behaves like a remote store.

    Args:
        inner: The store that does the work.
        log: File that the lines are appended to, whole lines also from several processes.
        chunk_delay: Seconds to sleep before each chunk of a fetch.
    """

    def __init__(self, inner: Store, log: Path, *, chunk_delay: float = 0.0) -> None:
        self.inner = inner
        self.url = f"logged+{inner.url}"
        self.replaces_conditionally = inner.replaces_conditionally
        self.log = log
        self.chunk_delay = chunk_delay

    def lines(self, op: str = "") -> list[list[str]]:
        """The logged calls, split into words; only those of `op` when given."""
        if not self.log.exists():
            return []
        words = [line.split() for line in self.log.read_text().splitlines()]
        return [line for line in words if not op or line[0] == op]

    def get(self, key: str) -> bytes:
        """As the inner store."""
        self._note("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """As the inner store."""
        self._note("get_range", key)
        return self.inner.get_range(key, begin, end)

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """As the inner store, slowed down by `chunk_delay`."""
        self._note("fetch", key)

        def slowly(chunk: bytes) -> None:
            time.sleep(self.chunk_delay)
            if on_chunk is not None:
                on_chunk(chunk)

        return self.inner.fetch(key, out, on_chunk=slowly)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """As the inner store."""
        self._note("put", key)
        self.inner.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """As the inner store."""
        self._note("put_file", key)
        self.inner.put_file(key, path)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """As the inner store."""
        self._note("put_if_absent", key)
        self.inner.put_if_absent(key, data)

    def get_tagged(self, key: str) -> Tagged:
        """As the inner store."""
        self._note("get_tagged", key)
        return self.inner.get_tagged(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """As the inner store."""
        self._note("put_if_match", key)
        return self.inner.put_if_match(key, data, etag)

    def size(self, key: str) -> int:
        """As the inner store."""
        self._note("size", key)
        return self.inner.size(key)

    def delete(self, key: str) -> None:
        """As the inner store."""
        self._note("delete", key)
        self.inner.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """As the inner store."""
        self._note("list", prefix)
        return self.inner.list(prefix)

    def child(self, prefix: str) -> "LoggedStore":
        """The inner store's child, with the same log."""
        return LoggedStore(self.inner.child(prefix), self.log, chunk_delay=self.chunk_delay)

    def _note(self, op: str, key: str) -> None:
        # One write in append mode: lines of several processes do not mix.
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, f"{op} {key} {os.getpid()}\n".encode())
        finally:
            os.close(descriptor)
