"""The rows about a set behind a link of 30 ms and 200 MB/s: those of issue 5."""

from typing import Any

from benchmarks.goals import Goal, at_least, at_most
from benchmarks.row import Entrant, Row, participants

_SMALTI = Entrant("smalti", "smalti")
_WHOLE_SHARDS = Entrant("smalti, MosaicML's set", "smalti", {"set_of": "mosaicml"})
"""Without block hashes: shards are fetched whole."""
_PEERS = participants("mosaicml", litdata=1)
_FLOORS = participants("link", "link-disk")
_COLD = (
    "seconds",
    "of_200",
    "first_batch_s",
    "client_cpu_s",
    "server_cpu_s",
    "cores_busy",
    "fetched_share",
    "requests",
)
_GOALS = (at_least(0.85, "link"), at_least(2, "mosaicml"))
_SMALL_SAMPLES = 12_800  # about 500 MB: 30 ms for each shard of 1 MB take some libraries minutes


def _cold(key: str, title: str, *, samples: int | None = None, others: bool = False, **options: Any) -> Row:
    theirs = (_WHOLE_SHARDS,) if others else ()
    return Row(
        f"link-cold-{key}", f"cold epoch, {title}, 2 workers", "cold", "photos", "mb_per_s", "MB/s",
        (_SMALTI, *theirs, *_PEERS, *_FLOORS), {"smalti": _GOALS, "smalti, MosaicML's set": _GOALS}, "link", "",
        {"workers": 2, "shuffle": False, **options}, more=_COLD, samples=samples,
    )  # fmt: skip


def _first(key: str, title: str, figure: str, limit: float | None, *, whole: bool = False, **options: Any) -> Row:
    goals: tuple[Goal, ...] = () if limit is None else (at_most(limit),)
    theirs = (_WHOLE_SHARDS,) if whole else ()
    return Row(
        f"link-first-{key}", f"first batch, nothing cached, {title}", "first-batch", "photos", figure, "",
        (_SMALTI, *theirs, *_PEERS), {"smalti": goals}, None, "", {"shuffle": False, **options}, lower_is_better=True,
        more=("seconds", "allowed_s", "shard_s", "again_s", "again_round_trips", "requests", "sent_mb"),
    )  # fmt: skip


def _parts(key: str, title: str, measure: str, figure: str, goal: Goal, *more: str) -> Row:
    return Row(
        f"link-{key}", title, measure, "photos", figure, "", (_SMALTI, _WHOLE_SHARDS), {"smalti": (goal,)}, None, "",
        {"shuffle": True}, lower_is_better=True, more=more,
    )  # fmt: skip


def _warm(key: str, title: str, figure: str, **options: Any) -> Row:
    local = Entrant("smalti, local folder", "smalti", {"place": "local"})
    return Row(
        f"link-warm{key}", f"warm epoch, raw photos{title}, 2 workers", "warm", "photos", figure, "MB/s",
        (_SMALTI, local, *participants("mosaicml")), {"smalti": (at_least(1.0, local.label),)}, None, "",
        {"workers": 2, "shuffle": False, **options}, more=("seconds", "first_batch_s", "client_cpu_s", "cores_busy"),
    )  # fmt: skip


_OPENED, _LATER = ", opening included", ", second of the process"

LINK_ROWS: tuple[Row, ...] = (
    _cold("raw", "raw photos in stored order", others=True),
    _cold("shuffled", "raw photos, shuffled", others=True, shuffle=True),
    _cold("decoded", "decoded photos in stored order", decode=True),
    _cold("small", "raw photos in stored order, shards of 1 MB", samples=_SMALL_SAMPLES, shard_bytes=1 << 20),
    Row(
        "link-quarter", "epoch with a cache of a quarter of the set, shards of 1 MB, shuffled in blocks of 256: bytes "
        "fetched to the least possible", "cold", "photos", "ratio", "", (_SMALTI,), {"smalti": (at_most(1.1),)},
        options={"workers": 2, "shuffle": True, "block_size": 256, "cache_share": 0.25, "shard_bytes": 1 << 20},
        lower_is_better=True, more=(*_COLD, "evictions", "waited_s"), samples=_SMALL_SAMPLES,
    ),
    Row(
        "link-ranks", "epoch of 2 ranks with 1 worker each and one cache: bytes over the link to those of the set",
        "ranks", "photos", "fetched_share", "", (_SMALTI, _WHOLE_SHARDS),
        {"smalti": (at_most(1.01), at_least(1.0))}, None, "",
        lower_is_better=True, more=("seconds", "mb_per_s", "of_200", "client_cpu_s", "server_cpu_s", "requests"),
    ),
    _first("batch", "0 workers: to 3 round trips and its bytes", "of_allowed", 1),
    _first("batch-rounds", "0 workers: round trips", "round_trips", 3),
    _first("batch-2w", "2 workers: to 3 round trips and its bytes", "of_allowed", 1, workers=2),
    _first("batch-2w-rounds", "2 workers: round trips", "round_trips", 3, workers=2),
    _first("batch-shuffled", "shuffled, 0 workers: seconds", "seconds", 1.0, whole=True, shuffle=True),
    _first("batch-shuffled-2w", "shuffled, 2 workers: seconds", "seconds", 1.0, whole=True, shuffle=True, workers=2),
    _parts(
        "resumed", "first batch after a resume at 90 % of a shuffled epoch, nothing cached", "first-resumed", "seconds",
        at_most(1.0), "fetched_mb", "requests",
    ),
    _parts(
        "items", "dataset[i] at random, 200 of them: the most round trips after the first sample of a shard", "items",
        "round_trips", at_most(2), "first_round_trips", "median_ms", "first_ms", "fetched_mb",
    ),
    _parts(
        "sparse", "1 % of the samples at random in batches, mode='none': bytes fetched to those of the set", "sparse",
        "fetched_share", at_most(0.05), "seconds", "requests",
    ),
    _warm("", _OPENED, "mb_per_s"),
    _warm("-later", _LATER, "later_mb_per_s"),
    _warm("-shuffled", f", shuffled{_OPENED}", "mb_per_s", shuffle=True),
    _warm("-shuffled-later", f", shuffled{_LATER}", "later_mb_per_s", shuffle=True),
)  # fmt: skip
