"""Bodies of responses, of which no more is read than was asked for, whatever the server sends.

A server may ignore a range and send the whole object, send more than the range, or never end. For a request for a
range, the bytes outside of it are skipped, or not read. A body without a range has at most `MAX_OBJECT_BYTES`.
"""

import functools
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from smalti.errors import StoreError
from smalti.redaction import redact_address
from smalti.storage.store import MAX_OBJECT_BYTES

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_RANGE_HEADERS = ("Range", "x-ms-range")
PARTIAL = 206
"""Status of an answer with the requested range."""
CHUNK_BYTES = 1 << 20


def within(chunks: Iterable[bytes], begin: int, end: int | None, *, is_part: bool, what: str) -> Iterator[bytes]:
    """Yield the bytes [begin, end) of an object from the chunks of a body, and read no further.

    `is_part` says whether the body begins at byte `begin`; otherwise at byte 0.

    Raises:
        StoreError: there is no end, and the object is larger than any that is read as a whole.
    """
    place = begin if is_part else 0
    last = begin + MAX_OBJECT_BYTES if end is None else end
    if place >= last:
        return
    for chunk in chunks:
        piece = chunk[max(0, begin - place) : last - place]
        place += len(chunk)
        if piece:
            yield piece
        if place > last and end is None:
            raise too_large(what)
        if place >= last and end is not None:
            return


def too_large(what: str) -> StoreError:
    """Return the error for a body without an end, or a very late one."""
    return StoreError(
        f"{what}: the server sent more than {MAX_OBJECT_BYTES} bytes, which is more than any object that is read as a "
        "whole; the server does not end its answers, or this is another object",
        url=what,
    )


def bound_responses(session: Any) -> Any:
    """Let the responses of an aiohttp session read no more than was asked for; return the session."""
    session._response_class = _response_class()
    return session


@functools.cache
def _response_class() -> Any:
    aiohttp: Any = importlib.import_module("aiohttp")

    class BoundedResponse(aiohttp.ClientResponse):  # type: ignore[misc]
        """A response whose body ends where the requested range ends."""

        content: Any

        async def start(self, connection: Any) -> Any:
            await super().start(connection)
            if self.method == "GET":
                span = _requested(self.request_info.headers)
                self.content = _Body(self.content, span, is_part=self.status == PARTIAL, what=str(self.url))
            return self

    return BoundedResponse


def _requested(headers: Mapping[str, str]) -> tuple[int, int | None]:
    """Return the range that the headers of a request ask for; the end is None if they ask for all."""
    text = next((headers[name] for name in _RANGE_HEADERS if name in headers), "")
    found = _RANGE.fullmatch(text)
    if found is None:
        return 0, None
    return int(found[1]), int(found[2]) + 1 if found[2] else None


class _Body:
    """The part of aiohttp's `StreamReader` that its clients use, over the bytes of a range."""

    def __init__(self, content: Any, span: tuple[int, int | None], *, is_part: bool, what: str) -> None:
        self._content = content
        self._skipped = 0 if is_part else span[0]
        self._left = MAX_OBJECT_BYTES if span[1] is None else max(0, span[1] - span[0])
        self._is_open = span[1] is None
        self._what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    def at_eof(self) -> bool:
        """Return whether nothing more is read."""
        return bool(self._content.at_eof()) or (self._left == 0 and not self._is_open)

    async def read(self, count: int = -1) -> bytes:
        """Return at most so many bytes, or all; none at the end."""
        if count >= 0:
            return await self._some(count)
        pieces = []
        while piece := await self._some(CHUNK_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    async def _some(self, count: int) -> bytes:
        while self._skipped:
            dropped = await self._content.read(min(self._skipped, CHUNK_BYTES))
            if not dropped:
                return b""
            self._skipped -= len(dropped)
        if not self._left and not self._is_open:
            return b""
        piece = bytes(await self._content.read(min(count, self._left) if self._left else 1))
        if len(piece) > self._left:
            raise too_large(redact_address(self._what))
        self._left -= len(piece)
        return piece
