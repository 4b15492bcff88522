"""What comes of an object, piece by piece: by one streamed request where a client can, else by ranged ones."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from smalti.storage.errors import Kind, classify
from smalti.storage.listing import mark_of
from smalti.storage.process import PerProcess

RANGE_BYTES = 8 << 20
"""Largest ranged request: large enough to hide a round trip."""
FIRST_RANGE_BYTES, LEAST_RANGE_BYTES = 1 << 20, 256 << 10
"""The first ranged request of a reader, and the smallest: a request shows no progress until it has ended, so on a slow
link requests must be small for a transfer not to look stalled."""
FAST_SECONDS, SLOW_SECONDS = 1.0, 4.0
"""Ranges are doubled after one that came within the former, and halved after one that took longer than the latter."""


@dataclass(frozen=True)
class Body:
    """An object from some byte on, as it was when it was opened."""

    tag: str
    """What the store calls this content (an ETag); "" where it does not say."""
    num_bytes: int
    """Size of the whole object, bytes; -1 where its end tells."""
    chunks: Iterator[bytes]
    """The bytes, in order; raises what the client raises."""
    close: Callable[[], None]
    """Lets go of the connection; after the last byte it is used again."""


class Reader(Protocol):
    """How a store's objects are read; every call raises what its client raises."""

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """The object from byte `begin` on; with a tag only if it is still that content."""

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Bytes [begin, end), or all from `begin` on."""

    def size(self, path: str, *, timeout: float) -> int:
        """The object's size, bytes."""

    def renew(self) -> None:
        """Forget the client that was used last: the next one reads credentials anew."""


class FsspecReader:
    """Reads by a file system of fsspec, in ranges: none of them streams with conditions."""

    def __init__(self, connection: PerProcess[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._range_bytes = FIRST_RANGE_BYTES

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """The object from byte `begin` on; the tag is that of its first look-up."""
        try:
            asked = self._range_bytes
            first = self._range(path, begin, begin + asked, timeout)
        except Exception as error:
            if classify(error) is not Kind.PAST_END:
                raise
            first = b""  # an empty object has no first byte
        if len(first) < asked and not tag:
            return Body("", begin + len(first), iter((first,)), _nothing)
        size, now = self._look(path, timeout)
        if tag not in {"", now}:
            raise ChangedError(f"ended as another object than it began ({now}, not {tag})")
        return Body(now, size, self._chunks(path, first, (begin, size, now), timeout), _nothing)

    def _chunks(self, path: str, first: bytes, seen: tuple[int, int, str], timeout: float) -> Iterator[bytes]:
        begin, size, tag = seen
        at, chunk = begin + len(first), first
        while at < size:
            yield chunk
            chunk = self._range(path, at, min(at + self._range_bytes, size), timeout)
            at += len(chunk)
            if not chunk:
                break
        # Several requests: they have read one object only if it is still the same after the last.
        if at != size or self._look(path, timeout) != (size, tag):
            raise ChangedError(f"ended at byte {at} of {size}, or as another object than it began")
        yield chunk

    def _range(self, path: str, begin: int, end: int, timeout: float) -> bytes:
        """Read one range, and set the size of the next one by the time that it took."""
        started = self._clock()
        data = self.read(path, begin, end, timeout=timeout)
        seconds, size = self._clock() - started, self._range_bytes
        if seconds > SLOW_SECONDS:
            self._range_bytes = max(size // 2, LEAST_RANGE_BYTES)
        elif seconds < FAST_SECONDS and len(data) >= size:
            self._range_bytes = min(2 * size, RANGE_BYTES)
        return data

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Bytes [begin, end), or all from `begin` on."""
        # Keywords always: the second positional is a version in s3fs and the start elsewhere.
        span = {} if end is None and not begin else {"start": begin, "end": end}
        return bytes(call(self._connection.get(), "cat_file", path, timeout=timeout, **span))

    def size(self, path: str, *, timeout: float) -> int:
        """The object's size, bytes."""
        return self._look(path, timeout)[0]

    def renew(self) -> None:
        """Nothing: the connection is shared with what writes, which renews it."""

    def _look(self, path: str, timeout: float) -> tuple[int, str]:
        info = call(self._connection.get(), "info", path, timeout=timeout)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        return int(info["size"]), mark_of(info)


def fsspec_reader(options: Mapping[str, Any], connection: PerProcess[Any], timeout: float) -> FsspecReader:  # noqa: ARG001 -- the registry's signature
    """Return the reader of stores that have no faster one."""
    return FsspecReader(connection)


class ChangedError(Exception):
    """The object is no longer what its first bytes were of."""


def _nothing() -> None:
    return None


def call(filesystem: Any, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
    """What a method of a file system returns; an asynchronous one is cancelled when the time is over."""
    if getattr(filesystem, "async_impl", False):
        from fsspec.asyn import sync

        return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *args, timeout=timeout, **kwargs)
    return getattr(filesystem, method)(*args, **kwargs)
