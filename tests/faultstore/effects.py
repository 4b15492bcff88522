"""Effects of toxics on a reply: its body, and how it is sent."""

import gzip
import random

from tests.faultstore.messages import Reply, Request
from tests.faultstore.objects import Bucket, Stored
from tests.faultstore.toxics import Strike, Toxic
from tests.faultstore.wire import Way


def swap(bucket: Bucket | None, request: Request, toxic: Toxic) -> None:
    """Replace the object that is asked for, as a writer would in this moment."""
    found = bucket.objects.get(request.key) if bucket else None
    if bucket and found:
        data = bucket.objects[toxic.source].data if toxic.source else toxic.text.encode() or bytes(found.data)[::-1]
        bucket.put(request.key, Stored.of(data))


def spoil(reply: Reply, strike: Strike) -> None:
    """Change the body of a whole reply."""
    toxic, body = strike.toxic, reply.body
    if not 200 <= reply.status < 300 or not len(body):
        return
    if toxic.kind == "corrupt":
        reply.body = _flipped(bytearray(body), toxic, strike.random)
    elif toxic.kind == "gzip":
        reply.body = gzip.compress(body, 1)
        reply.headers["Content-Encoding"] = "gzip"
    elif toxic.kind == "truncate" and toxic.honest:
        reply.body = memoryview(body)[: _kept(toxic, len(body))]


def direct(way: Way, reply: Reply, toxic: Toxic) -> None:
    """Change the way of a reply."""
    if toxic.kind == "slow_close":
        way.linger = max(way.linger or 0.0, toxic.seconds)
    elif toxic.kind == "lost_ack" or (toxic.kind == "reset_peer" and toxic.after is None):
        way.has_reply, way.then = False, "reset" if toxic.kind == "reset_peer" else "close"
    elif toxic.kind == "reset_peer":
        way.limit, way.then = toxic.after, "reset"
    elif toxic.kind == "stall":
        way.limit, way.silence = 1 if toxic.after is None else toxic.after, toxic.seconds
    elif toxic.kind == "truncate" and not toxic.honest:
        way.limit = _kept(toxic, len(reply.body))


def _kept(toxic: Toxic, size: int) -> int:
    return size // 2 if toxic.after is None else min(toxic.after, size)


def _flipped(body: bytearray, toxic: Toxic, own: random.Random) -> bytearray:
    places = [toxic.at] if toxic.at is not None else own.sample(range(len(body) * 8), min(toxic.bits, len(body) * 8))
    for place in places:
        if place < len(body) * 8:
            body[place // 8] ^= 1 << place % 8
    return body
