"""Toxics, named as in toxiproxy: the faults to inject, and the seeded choice of requests. No I/O, no clock."""

import random
from collections import Counter
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

KINDS = {
    "latency": "the reply begins `seconds` (and up to `jitter` more) later",
    "bandwidth": "all bodies together move `rate` bytes/s in each direction, one link for all connections",
    "throttle": "more than `rate` requests per second are answered with 429",
    "http": "the reply is the error `status` with the S3 error `code`, nothing is done; `location` for a redirect",
    "reset_peer": "the connection is reset, before the reply or with `after` bytes of its body",
    "truncate": "the body ends after `after` bytes (default: half); with `honest` the header promises no more",
    "corrupt": "`bits` bits of the body are flipped, at random or the one at bit `at`",
    "slow_close": "the reply says that the connection closes, which happens `seconds` later",
    "stall": "`after` bytes of the body (default: 1), then nothing for `seconds`",
    "lost_ack": "what was asked for is done, and the connection closes without a reply",
    "lost_request": "nothing is done, and the connection is reset without a reply",
    "drop_body": "a write is acknowledged, and an empty object is what is stored",
    "swap_body": "before the reply, the object becomes `text`, the object `source`, or its own bytes reversed",
    "ignore_precondition": "If-Match and If-None-Match are not looked at",
    "gzip": "the body comes compressed, with Content-Encoding: gzip",
    "late_read": "an object that was written less than `seconds` ago is not found yet",
    "late_list": "listings lack what was written less than `seconds` ago",
}
"""Kinds of toxics, and what each does."""

_READS = frozenset({"truncate", "corrupt", "stall", "swap_body", "gzip"})
_LOOKS = frozenset({"late_read", "late_list"})
_WRITES = frozenset({"drop_body", "ignore_precondition"})


@dataclass(frozen=True)
class Toxic:
    """One fault: what is done (see `KINDS`), to which requests, how often.

    A matching request is struck with the `probability`, from the `nth` one on, `count` times in all.
    """

    kind: str
    """One of `KINDS`."""
    key: str = "*"
    """Pattern of the object's key, as in a shell; listings have the key ""."""
    method: str = "*"
    """Pattern of the HTTP method; body faults strike reads alone, faults of writes strike writes alone."""
    access: str = "*"
    """Pattern of the access key that signed the request; "" for an anonymous one."""
    probability: float = 1.0
    """0 to 1."""
    nth: int = 1
    """The first matching request that may be struck, from 1."""
    count: int | None = None
    """Requests that are struck, at most; None for all."""
    lasting: float | None = None
    """Seconds from the first strike until it ends; None for no end."""
    seconds: float = 0.0
    """Of latency, slow_close, stall, late_read, late_list."""
    jitter: float = 0.0
    """Up to so many seconds more of latency."""
    after: int | None = None
    """Bytes of the body that still arrive."""
    rate: float = 0.0
    """Bytes/s of bandwidth, requests/s of throttle."""
    status: int = 503
    """Of http."""
    code: str = ""
    """Of http: `SlowDown`, `ExpiredToken`, `RequestTimeout`, ...; by default what S3 says with the status."""
    location: str = ""
    """Of http: where a redirect leads."""
    bits: int = 1
    """Bits that corrupt flips."""
    at: int | None = None
    """The bit that corrupt flips, counted from the body's start."""
    honest: bool = False
    """Whether the Content-Length of a truncated body matches it."""
    text: str = ""
    """The replacement body of swap_body."""
    source: str = ""
    """The key of the object in the same bucket that swap_body puts there instead."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown toxic {self.kind!r}; there are {', '.join(KINDS)}")
        if not 0 <= self.probability <= 1 or self.nth < 1:
            raise ValueError(f"expected `probability` from 0 to 1 and `nth` from 1, found {self}")
        if self.kind in {"bandwidth", "throttle"} and not self.rate > 0:
            raise ValueError(f"the toxic {self.kind!r} needs a `rate` above 0, found {self.rate}")

    def matches(self, method: str, key: str, access: str) -> bool:
        """Return whether the toxic applies to such a request."""
        if self.kind in _READS and (method != "GET" or not key):
            return False
        if self.kind in _LOOKS and (method not in {"GET", "HEAD"} or bool(key) != (self.kind == "late_read")):
            return False
        if self.kind in _WRITES and method not in {"PUT", "POST", "DELETE"}:
            return False
        wanted = ((method, self.method), (key, self.key), (access, self.access))
        return all(fnmatchcase(value, pattern) for value, pattern in wanted)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Strike:
    """A toxic that hits one request."""

    toxic: Toxic
    random: random.Random
    """Its own numbers, the same in every run with this seed."""


class Toxics:
    """The toxics of a server. Equal seeds and equal requests to each name give equal faults, however names mix.

    A name is the last part of a key: the folders above it often have random names.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._toxics: list[Toxic] = []
        self._seen: Counter[int] = Counter()
        self._struck: Counter[int] = Counter()
        self._asked: Counter[tuple[int, str, str]] = Counter()
        self._first: dict[int, float] = {}

    def __iter__(self) -> Any:
        return iter(self._toxics)

    def add(self, toxic: Toxic) -> None:
        """One more, after those that are there."""
        self._toxics.append(toxic)

    def clear(self) -> None:
        """None any more; counting begins anew."""
        for held in (self._toxics, self._seen, self._struck, self._asked, self._first):
            held.clear()

    def strikes(self, method: str, key: str, access: str, now: float = 0.0) -> list[Strike]:
        """The toxics that hit this request, in their order; `now` is the time in seconds, for those that pass."""
        found = []
        for number, toxic in enumerate(self._toxics):
            if not toxic.matches(method, key, access):
                continue
            self._seen[number] += 1
            name = key.rpartition("/")[2]
            self._asked[number, method, name] += 1
            own = random.Random(f"{self.seed}:{number}:{method}:{name}:{self._asked[number, method, name]}")
            if own.random() >= toxic.probability or self._seen[number] < toxic.nth:
                continue
            if toxic.count is not None and self._struck[number] >= toxic.count:
                continue
            if toxic.lasting is not None and now - self._first.setdefault(number, now) > toxic.lasting:
                continue
            self._struck[number] += 1
            found.append(Strike(toxic, own))
        return found
