"""The server: connections, toxics, the log, and the requests by which a test steers it.

What a test asks of the server itself (paths below `/_faultstore/`, or any request with the header `x-faultstore`) meets
no toxic and stands in no log.
"""

import asyncio
import json
import socket
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.faultstore.effects import direct, spoil, swap
from tests.faultstore.messages import Reply, Request, error_reply
from tests.faultstore.service import Service
from tests.faultstore.toxics import Strike, Toxic, Toxics
from tests.faultstore.wire import Closed, Connection, Link, Way

MAX_LOGGED = 200_000
_BACKLOG = 1024
_CONTROL = "/_faultstore/"


@dataclass
class Logged:
    """One request, as the log has it."""

    method: str
    bucket: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    """Without the signature."""
    access: str
    """The access key that signed it; "" for an anonymous request."""
    status: int = 0
    """Of the reply; 0 where there was none."""
    num_bytes: int = 0
    """Of the reply's body, as it would have been without faults of the way."""
    toxics: list[str] = field(default_factory=list)
    """Kinds of those that struck."""
    began: float = 0.0
    """Seconds since 1970."""


class Server:
    """Serves on one event loop; everything in it happens there."""

    def __init__(self, seed: int = 0) -> None:
        self.service = Service()
        self.toxics = Toxics(seed)
        self.log: deque[Logged] = deque(maxlen=MAX_LOGGED)
        self._links: dict[Toxic, tuple[Link, Link]] = {}
        self._tokens: dict[Toxic, tuple[float, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Accept connections until `stop` is set; then all of them end."""
        listening.settimeout(0)
        accepting = asyncio.create_task(self._accept(listening))
        await stop.wait()
        for task in (accepting, *self._tasks):
            task.cancel()
        await asyncio.gather(accepting, *self._tasks, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listening)
            except OSError:  # no descriptor is free: those who wait come later
                await asyncio.sleep(0.05)
                continue
            task = asyncio.create_task(self._converse(Connection(connected)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _converse(self, connection: Connection) -> None:
        try:
            while True:
                request = await connection.read(lambda: self._links_now()[0])
                if not await self._answer(connection, request):
                    return
        except (Closed, OSError, ValueError):
            return
        finally:
            connection.close()

    async def _answer(self, connection: Connection, request: Request) -> bool:
        if request.target.startswith(_CONTROL):
            return await connection.write(request, self._control(request), Way())
        if "x-faultstore" in request.headers:
            return await connection.write(request, self.service.answer(request), Way())
        strikes = self.toxics.strikes(request.method, request.key, request.access, time.monotonic())
        logged = _logged(request, strikes)
        self.log.append(logged)
        for strike in strikes:
            if strike.toxic.kind == "latency":
                await asyncio.sleep(strike.toxic.seconds + strike.toxic.jitter * strike.random.random())
        way = Way(self._links_now()[1])
        if any(strike.toxic.kind == "lost_request" for strike in strikes):
            return connection.close(resets=True)
        reply = self._refusal(strikes) or self._done(request, strikes)
        logged.num_bytes = len(reply.body) if request.method != "HEAD" else 0
        for strike in strikes:
            direct(way, reply, strike.toxic)
        logged.status = reply.status if way.has_reply else 0
        return await connection.write(request, reply, way)

    def _done(self, request: Request, strikes: list[Strike]) -> Reply:
        """The reply, after the request had its effect."""
        kinds = {strike.toxic.kind for strike in strikes}
        for strike in strikes:
            if strike.toxic.kind == "swap_body":
                swap(self.service.buckets.get(request.bucket), request, strike.toxic)
        if "drop_body" in kinds:
            request.body = b""
        late = max((strike.toxic.seconds for strike in strikes if strike.toxic.kind.startswith("late_")), default=0.0)
        seen_until = time.time() - late if late else None
        reply = self.service.answer(request, conditions="ignore_precondition" not in kinds, seen_until=seen_until)
        for strike in strikes:
            spoil(reply, strike)
        return reply

    def _refusal(self, strikes: list[Strike]) -> Reply | None:
        for strike in strikes:
            toxic = strike.toxic
            if toxic.kind == "throttle" and not self._has_token(toxic):
                return error_reply(429, toxic.code)
            if toxic.kind == "http":
                reply = error_reply(toxic.status, toxic.code)
                if toxic.location:
                    reply.headers["Location"] = toxic.location
                return reply
        return None

    def _has_token(self, toxic: Toxic) -> bool:
        """Return whether the rate allows one more request: a token bucket with the tokens of one second."""
        now = time.monotonic()
        left, then = self._tokens.get(toxic, (toxic.rate, now))
        left = min(toxic.rate, left + (now - then) * toxic.rate)
        self._tokens[toxic] = (max(0.0, left - 1 if left >= 1 else left), now)
        return left >= 1

    def _links_now(self) -> tuple[Link | None, Link | None]:
        """The lines here and back."""
        for toxic in self.toxics:
            if toxic.kind == "bandwidth":
                return self._links.setdefault(toxic, (Link(toxic.rate), Link(toxic.rate)))
        return None, None

    def _control(self, request: Request) -> Reply:
        what = request.target.removeprefix(_CONTROL)
        given: Any = json.loads(bytes(request.body) or b"null")
        if what == "log":
            return Reply(200, {}, json.dumps([asdict(logged) for logged in self.log]).encode())
        if what == "plant":
            for fields in given:
                self.toxics.add(Toxic(**fields))
        elif what == "seed":
            self.toxics.seed = int(given)
        elif what == "reset":
            for name in given:
                {"toxics": self._reset_toxics, "log": self.log.clear, "objects": self._empty}[name]()
        else:
            return error_reply(404)
        return Reply(204)

    def _reset_toxics(self) -> None:
        self.toxics.clear()
        self._links.clear()
        self._tokens.clear()

    def _empty(self) -> None:
        for bucket in self.service.buckets.values():
            bucket.clear()


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _logged(request: Request, strikes: list[Strike]) -> Logged:
    headers = {name: value for name, value in request.headers.items() if name != "authorization"}
    kinds = [strike.toxic.kind for strike in strikes]
    return Logged(
        request.method, request.bucket, request.key, request.query, headers, request.access, toxics=kinds,
        began=time.time(),
    )  # fmt: skip
