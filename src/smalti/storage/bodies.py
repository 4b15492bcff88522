"""What comes of an object, piece by piece: by one streamed request where a client can, else by ranged ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from smalti.storage.faults import Kind, classify
from smalti.storage.filesystems import call
from smalti.storage.process import PerProcess

RANGE_BYTES = 8 << 20
"""One ranged request: large enough to hide a round trip, small enough to notice a stall."""


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

    def __init__(self, connection: PerProcess[Any]) -> None:
        self._connection = connection

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """The object from byte `begin` on; the tag is that of its first look-up."""
        try:
            first = self.read(path, begin, begin + RANGE_BYTES, timeout=timeout)
        except Exception as error:
            if classify(error) is not Kind.PAST_END:
                raise
            first = b""  # an empty object has no first byte
        if len(first) < RANGE_BYTES and not tag:
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
            chunk = self.read(path, at, min(at + RANGE_BYTES, size), timeout=timeout)
            at += len(chunk)
            if not chunk:
                break
        # Several requests: they have read one object only if it is still the same after the last.
        if at != size or self._look(path, timeout) != (size, tag):
            raise ChangedError(f"ended at byte {at} of {size}, or as another object than it began")
        yield chunk

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


class ChangedError(Exception):
    """The object is no longer what its first bytes were of."""


def mark_of(info: Any) -> str:
    """The most telling mark of content that a listing holds."""
    for name in (
        "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created",
    ):  # fmt: skip
        if info.get(name):
            return str(info[name]).strip('"')
    return ""


def _nothing() -> None:
    return None
