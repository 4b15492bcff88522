"""The interface `Reader`, and the reader that works with every fsspec file system, by ranged requests.

S3 has a faster one, `smalti.storage.backends.s3_reader`, which streams an object in one request.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from smalti.storage.errors import Kind, classify
from smalti.storage.listing import mark_of
from smalti.storage.process import PerProcess

RANGE_BYTES = 8 << 20
"""Largest ranged request: large enough for the round trip not to matter."""
FIRST_RANGE_BYTES, MIN_RANGE_BYTES = 1 << 20, 256 << 10
"""The first and the smallest ranged request. Progress is only visible when a request ends: on a slow link large
requests would look like a stalled transfer."""
FAST_SECONDS, SLOW_SECONDS = 1.0, 4.0
"""The range is doubled after a request faster than the former, and halved after one slower than the latter."""


@dataclass(frozen=True)
class Body:
    """The open body of an object, from some byte to its end."""

    tag: str
    """The store's mark of this content (an ETag); "" if it has none."""
    num_bytes: int
    """Size of the whole object, bytes; -1 if unknown."""
    chunks: Iterator[bytes]
    """The bytes, in order; raises the client's exceptions."""
    close: Callable[[], None]
    """Releases the connection; it is reused if all bytes were read."""


class ChangedError(Exception):
    """The object was replaced while it was read."""


class Reader(Protocol):
    """Reads the objects of a store. Thread-safe; every method raises its client's exceptions.

    `timeout` is the time limit of the call, seconds.
    """

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """Open the object from byte `begin` on; with a tag only if the content still has it."""

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Return the bytes [begin, end), or all from `begin` on."""

    def size(self, path: str, *, timeout: float) -> int:
        """Return the object's size, bytes."""

    def renew(self) -> None:
        """Discard the client that was used last, so that the next one reads the credentials again."""


class FsspecReader:
    """A reader by ranged requests of an fsspec file system: fsspec has no conditional streams.

    Args:
        connection: The file system, shared with the store, which writes through it.
        clock: Returns monotonic seconds.
    """

    def __init__(self, connection: PerProcess[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._range_bytes = FIRST_RANGE_BYTES

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """Open the object; its tag is read after the first range, unless that was the whole object."""
        try:
            range_bytes = self._range_bytes
            first = self._range(path, begin, begin + range_bytes, timeout)
        except Exception as error:
            if classify(error) is not Kind.PAST_END:
                raise
            first = b""  # an empty object has no first byte
        if len(first) < range_bytes and not tag:
            return Body("", begin + len(first), iter((first,)), _no_op)
        size, current_tag = self._look_up(path, timeout)
        if tag not in {"", current_tag}:
            raise ChangedError(f"ended as another object than it began ({current_tag}, not {tag})")
        return Body(current_tag, size, self._chunks(path, first, begin, (size, current_tag), timeout), _no_op)

    def _chunks(
        self, path: str, first: bytes, begin: int, size_and_tag: tuple[int, str], timeout: float
    ) -> Iterator[bytes]:
        size = size_and_tag[0]
        at, chunk = begin + len(first), first
        while at < size:
            yield chunk
            chunk = self._range(path, at, min(at + self._range_bytes, size), timeout)
            at += len(chunk)
            if not chunk:
                break
        # Several requests have read one content only if it is still the same after the last of them.
        if at != size or self._look_up(path, timeout) != size_and_tag:
            raise ChangedError(f"ended at byte {at} of {size}, or as another object than it began")
        yield chunk

    def _range(self, path: str, begin: int, end: int, timeout: float) -> bytes:
        """Read one range, and adapt the size of the next one to its speed."""
        started = self._clock()
        data = self.read(path, begin, end, timeout=timeout)
        seconds, size = self._clock() - started, self._range_bytes
        if seconds > SLOW_SECONDS:
            self._range_bytes = max(size // 2, MIN_RANGE_BYTES)
        elif seconds < FAST_SECONDS and len(data) >= size:
            self._range_bytes = min(2 * size, RANGE_BYTES)
        return data

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Return the bytes [begin, end), or all from `begin` on."""
        # Keywords: the second positional argument is a version in s3fs and the start elsewhere.
        span = {} if end is None and not begin else {"start": begin, "end": end}
        return bytes(call(self._connection.get(), "cat_file", path, timeout=timeout, **span))

    def size(self, path: str, *, timeout: float) -> int:
        """Return the object's size, bytes."""
        return self._look_up(path, timeout)[0]

    def renew(self) -> None:
        """Do nothing: the store renews the shared connection."""

    def _look_up(self, path: str, timeout: float) -> tuple[int, str]:
        info = call(self._connection.get(), "info", path, timeout=timeout)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        return int(info["size"]), mark_of(info)


def fsspec_reader(options: Mapping[str, Any], connection: PerProcess[Any], timeout: float) -> FsspecReader:  # noqa: ARG001 -- the registry's signature
    """Return the reader of stores that have no faster one."""
    return FsspecReader(connection)


def _no_op() -> None:
    return None


def call(filesystem: Any, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
    """Call a method of an fsspec file system; an asynchronous one is cancelled after `timeout` seconds."""
    if getattr(filesystem, "async_impl", False):
        from fsspec.asyn import sync

        return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *args, timeout=timeout, **kwargs)
    return getattr(filesystem, method)(*args, **kwargs)
