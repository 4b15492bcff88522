"""One connection: requests read from it, replies written to it, with what toxics do on the way. No S3.

Sockets are used directly: what asyncio's transports would copy goes from the object to the kernel.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.faultstore.messages import Reply, Request

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 6 << 30
PIECE_BYTES = 1 << 20
"""Most that goes over a shared link in one turn; `Link.piece` may say less."""


class Link:
    """A line of some bytes/s that all connections share; turns are taken in the order of asking."""

    BURST_SECONDS = 0.01
    """A timer fires up to a millisecond late: what was lost so is caught up on."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.piece = max(4096, min(PIECE_BYTES, int(rate * 0.005)))
        self._free = 0.0

    async def pass_bytes(self, count: int) -> None:
        """Returns when so many bytes are over the line."""
        now = asyncio.get_running_loop().time()
        self._free = max(self._free, now - self.BURST_SECONDS) + count / self.rate
        if self._free > now:
            await asyncio.sleep(self._free - now)


@dataclass
class Way:
    """The sending of a reply: rate, limit, and the end of the connection."""

    link: Link | None = None
    limit: int | None = None
    """Bytes of the body after which it ends; None for all."""
    then: str = "close"
    """Action at the limit: `close` or `reset`."""
    silence: float = 0.0
    """Seconds of nothing before that."""
    linger: float | None = None
    """Seconds after a whole reply until the connection closes; None to keep it."""
    has_reply: bool = True
    """False: the connection ends with not one byte."""


class Closed(Exception):  # noqa: N818 -- the ordinary end
    """The client is gone, or what it sent is no request."""


class Connection:
    """An accepted socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(0)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        """Bytes that came and were not used yet."""

    async def read(self, find_link: Callable[[], Link | None]) -> Request:
        """The next request, whole.

        Raises:
            Closed: there is none.
        """
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        match = re.fullmatch(r"([A-Z]+) (\S+) HTTP/1\.[01]", first)
        if match is None:
            raise Closed
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("expect", "").lower() == "100-continue":
            await self._loop.sock_sendall(self._socket, b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await self._body(headers, find_link())
        return Request(match[1], match[2], headers, body)

    async def write(self, request: Request, reply: Reply, way: Way) -> bool:
        """Send the reply on its way; False when the connection is over."""
        if not way.has_reply:
            await asyncio.sleep(way.silence)
            return self.close(resets=way.then == "reset")
        body = memoryview(reply.body)[: way.limit] if request.method != "HEAD" else memoryview(b"")
        closes = way.linger is not None or "close" in request.headers.get("connection", "").lower()
        head = reply.head(closes=closes)
        if way.link is None and len(body) <= MAX_HEAD_BYTES:
            await self._loop.sock_sendall(self._socket, head + bytes(body))
        else:
            await self._loop.sock_sendall(self._socket, head)
            await self._send(body, way.link)
        if way.limit is not None:
            await asyncio.sleep(way.silence)
            return self.close(resets=way.then == "reset")
        if way.linger:
            await asyncio.sleep(way.linger)
        return not closes or self.close()

    def close(self, *, resets: bool = False) -> bool:
        """End the connection, politely or by a reset; False, as nothing follows."""
        if resets:  # closed with unsent data thrown away
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a fork may hold the socket, too
        self._socket.close()
        return False

    async def _send(self, body: memoryview, link: Link | None) -> None:
        size = link.piece if link else max(1, len(body))
        for begin in range(0, len(body), size):
            piece = body[begin : begin + size]
            if link:
                await link.pass_bytes(len(piece))
            await self._loop.sock_sendall(self._socket, piece)

    async def _until(self, mark: bytes) -> bytes:
        while (place := self._rest.find(mark)) < 0:
            if len(self._rest) > MAX_HEAD_BYTES:
                raise Closed
            self._rest += await self._some()
        found, self._rest = self._rest[:place], self._rest[place + len(mark) :]
        return found

    async def _some(self) -> bytes:
        try:
            data = await self._loop.sock_recv(self._socket, 64 << 10)
        except OSError:
            raise Closed from None
        if not data:
            raise Closed
        return data

    async def _exactly(self, size: int, link: Link | None) -> bytearray:
        body = bytearray(size)
        view, have = memoryview(body), min(size, len(self._rest))
        view[:have], self._rest = self._rest[:have], self._rest[have:]
        if link and have:
            await link.pass_bytes(have)
        while have < size:
            try:
                count = await self._loop.sock_recv_into(self._socket, view[have : have + PIECE_BYTES])
            except OSError:
                raise Closed from None
            if not count:
                raise Closed
            have += count
            if link:
                await link.pass_bytes(count)
        return body

    async def _body(self, headers: dict[str, str], link: Link | None) -> bytearray:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body = await self._chunks(link)
        else:
            size = int(headers.get("content-length") or 0)
            if not 0 <= size <= MAX_BODY_BYTES:
                raise Closed
            body = await self._exactly(size, link)
        return _unchunked(body) if "aws-chunked" in headers.get("content-encoding", "") else body

    async def _chunks(self, link: Link | None) -> bytearray:
        body = bytearray()
        while size := int((await self._until(b"\r\n")).partition(b";")[0], 16):
            body += await self._exactly(size, link)
            await self._until(b"\r\n")
        while await self._until(b"\r\n"):
            pass  # trailers
        return body


def _unchunked(body: bytearray) -> bytearray:
    """Return the content of the SDKs' chunks (`aws-chunked`: size, signature, bytes) without trailers."""
    out, place = bytearray(), 0
    while True:
        end = body.index(b"\r\n", place)
        size = int(body[place:end].partition(b";")[0], 16)
        if not size:
            return out
        out += body[end + 2 : end + 2 + size]
        place = end + 2 + size + 2
