"""Faults of the store and of the way to it."""

from benchmarks.soak.faults import Fault, Field, Heal, Impossible, classes
from tests.faultstore import Toxic

_SLOW = classes("StoreError", "StoreTimeout")
_BAD = classes("StoreError", "StoreTimeout", "ChecksumMismatch", "IndexFileError", "FormatError")
_GONE = classes("ShardNotFound", "StoreNotFound", "StoreError")
_REFUSED = classes("StoreAuthError")
_OFTEN = 0.3
_SHARDS = ".mds"


def _struck(kind: str, text: str, explains: frozenset[str], *toxics: Toxic, seconds: float = 3.0) -> Fault:
    def plant(field: Field) -> Heal:
        field.toxics.extend(toxics)
        field.store.plant(toxics)

        def heal() -> None:
            for toxic in toxics:
                field.toxics.remove(toxic)
            field.store.heal(field.toxics)

        return heal

    return Fault(kind, text, plant, seconds, explains)


def _while_publishing(kind: str, text: str, *toxics: Toxic) -> Fault:
    """Faults of writes: somebody publishes meanwhile."""
    inner = _struck(kind, text, frozenset(), *toxics)

    def plant(field: Field) -> Heal | None:
        if field.is_publishing():
            raise Impossible
        heal = inner.plant(field)
        field.publish()
        return heal

    return Fault(kind, text, plant, 4.0)


def _swap(field: Field) -> Heal:
    toxic = Toxic("swap_body", key=f"photos/*{_SHARDS}", probability=_OFTEN, count=4)
    field.toxics.append(toxic)
    field.store.plant([toxic])

    def heal() -> None:
        field.toxics.remove(toxic)
        field.store.heal(field.toxics)
        # All of them: a reply that is still under way is in no log yet.
        folder = field.objects
        field.store.restore([path.relative_to(folder).as_posix() for path in folder.glob(f"photos/**/*{_SHARDS}")])

    return heal


def _gone(field: Field) -> Heal:
    keys = sorted(path.relative_to(field.objects).as_posix() for path in field.objects.glob(f"photos/**/*{_SHARDS}"))
    chosen = field.random.sample(keys, max(1, len(keys) // 20))
    for key in chosen:
        field.store.delete(key)
    return lambda: field.store.restore(chosen)


def _unreachable(field: Field) -> Heal:
    if field.is_publishing():
        raise Impossible
    field.store.kill()

    def heal() -> None:
        field.store.start()
        field.store.plant(field.toxics)

    return heal


def _restarted(field: Field) -> None:
    _unreachable(field)()


def _silent(field: Field) -> Heal:
    field.store.pause()
    return field.store.go_on


STORE_FAULTS = [
    _struck(
        "latency", "3 s more before 35 % of replies", _SLOW, Toxic("latency", seconds=2.0, jitter=2.0, probability=0.35)
    ),
    _struck("bandwidth", "a link of 200 kB/s", _SLOW, Toxic("bandwidth", rate=200e3)),
    _struck("throttle", "429 above 5 requests/s", _SLOW, Toxic("throttle", rate=5)),
    _struck("http_503", "503 SlowDown, 30 %", _SLOW, Toxic("http", status=503, code="SlowDown", probability=_OFTEN)),
    _struck("http_500", "500, 30 %", _SLOW, Toxic("http", status=500, probability=_OFTEN)),
    _struck("http_429", "429, 30 %", _SLOW, Toxic("http", status=429, probability=_OFTEN)),
    _struck("expired", "403 ExpiredToken to all", _REFUSED, Toxic("http", status=403, code="ExpiredToken")),
    _struck(
        "denied", "403 AccessDenied, 30 %", _REFUSED, Toxic("http", status=403, code="AccessDenied", probability=_OFTEN)
    ),
    _struck(
        "redirect",
        "307 to another host, 20 %",
        classes("StoreError", "StoreAuthError"),
        Toxic("http", status=307, location="http://elsewhere.invalid/", probability=0.2),
    ),
    _struck("reset", "connections reset before the reply, 30 %", _SLOW, Toxic("reset_peer", probability=_OFTEN)),
    _struck(
        "reset_body", "connections reset after 4 kB, 50 %", _SLOW, Toxic("reset_peer", after=4096, probability=0.5)
    ),
    _struck("truncate", "half a body, 30 %", _BAD, Toxic("truncate", probability=_OFTEN)),
    _struck(
        "truncate_honest", "half a body that says so, 30 %", _BAD, Toxic("truncate", honest=True, probability=_OFTEN)
    ),
    _struck("corrupt", "a flipped bit, 30 %", _BAD, Toxic("corrupt", probability=_OFTEN)),
    _struck(
        "slow_close",
        "connections that close 2 s late, 30 %",
        _SLOW,
        Toxic("slow_close", seconds=2.0, probability=_OFTEN),
    ),
    _struck("stall", "a byte and then silence for 30 s, 20 %", _SLOW, Toxic("stall", seconds=30.0, probability=0.2)),
    _struck("lost_ack", "no reply to reads, 30 %", _SLOW, Toxic("lost_ack", method="GET", probability=_OFTEN)),
    _struck("gzip", "bodies compressed on the way, 30 %", _BAD, Toxic("gzip", probability=_OFTEN)),
    _struck(
        "p12",
        "503 10 %, 429 5 %, reset 15 %, slow close 30 %, 3 s latency 35 %",
        _SLOW,
        Toxic("http", status=503, code="SlowDown", probability=0.1),
        Toxic("http", status=429, probability=0.05),
        Toxic("reset_peer", probability=0.15),
        Toxic("slow_close", seconds=2.0, probability=0.3),
        Toxic("latency", seconds=3.0, probability=0.35),
        seconds=4.0,
    ),
    Fault("swap_body", "objects replaced by others", _swap, 3.0, _BAD),
    Fault("gone", "a twentieth of the shards removed from the store", _gone, 3.0, _GONE),
    Fault("unreachable", "the store killed, its port closed for 4 s", _unreachable, 4.0, _SLOW),
    Fault("restarted", "the store killed and started again", _restarted, 0.0, _SLOW),
    Fault("silent", "the store stopped for 4 s", _silent, 4.0, _SLOW),
    _while_publishing("published", "a version published beside the readers"),
    _while_publishing(
        "drop_body",
        "writes acknowledged and not kept, while one publishes",
        Toxic("drop_body", key="news/*", probability=_OFTEN),
    ),
    _while_publishing(
        "ignore_precondition", "conditions of writes ignored, while one publishes", Toxic("ignore_precondition")
    ),
    _while_publishing(
        "lost_ack_put",
        "no reply to writes, 20 %, while one publishes",
        Toxic("lost_ack", method="PUT", probability=0.2),
    ),
]
"""In no order."""
