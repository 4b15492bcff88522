"""The rows about the order alone, at 10^6 to 10^11 samples; goals are those of issue 4.

Earlier figures are those of `numbers.md`: MosaicML on one node of 8 ranks of 8 workers, shards of 20,000.
"""

from dataclasses import replace

from benchmarks.goals import Goal, at_most
from benchmarks.row import Entrant, Row, Series

SIZES = (6, 7, 8, 9, 10, 11)
"""Powers of ten."""
_LARGE_FROM = 9  # shards are of 10,000 samples from here on, of 4,000 below

_SECONDS = {("start", 10): 0.6, ("start", 11): 5.0, ("resume", 10): 0.6, ("resume", 11): 5.0}
_EARLIER = {
    ("start", 6): "0.118 · - · -", ("start", 7): "0.80 · - · -", ("start", 8): "9.74 · - · -",
    ("resume", 8): "8.90 · - · -",
}  # fmt: skip
_TITLES = {"start": "plan an epoch, first 10^4 ids", "resume": "plan an epoch, next 10^4 ids at 90 % of it"}

_PAGE = "extrapolated from `mds-format.md` (170 ns and 46 B a sample), not measured"
_HERE = "extrapolated from 10^8 samples, not measured"
_MISSING = {
    "smalti py1e": (9, 19, None, _HERE),
    "mosaicml": (9, 46, 170e-9, _PAGE),
    "torch RandomSampler": (9, 48, None, _HERE),
    "torch randperm": (10, 8, None, "8 B a sample"),
    "hfds": (9, 70, None, _HERE),
}
"""Who is not run from which power of ten on; bytes and seconds that it takes for a sample, and whence that is known."""
_ONCE_FROM = {
    "start": {"torch RandomSampler": 8, "torch randperm": 9, "hfds": 8},
    "resume": {"smalti py1e": 8, "mosaicml": 8, "torch RandomSampler": 6, "torch randperm": 6, "hfds": 6},
}
"""Run once from that size on; who draws everything again to resume, does what it does at the start."""


def _entrants(kind: str, power: int) -> tuple[Entrant, ...]:
    return tuple(
        _entrant(kind, power, label, peer, {} if algorithm is None else {"algorithm": algorithm})
        for label, peer, algorithm in (
            ("smalti window", "smalti", None),
            ("smalti py1e", "smalti", "py1e"),
            ("mosaicml", "mosaicml", None),
            ("torch RandomSampler", "torch", None),
            ("torch randperm", "torch", "randperm"),
            ("hfds", "hfds", None),
            ("grain", "grain", None),
        )
    )


def _entrant(kind: str, power: int, label: str, peer: str, options: dict[str, str]) -> Entrant:
    missing = _missing(label, power)
    if (kind, label, power) == ("resume", "torch randperm", 9):
        missing = "the same as at the start: everything is drawn again"
    if missing:
        return Entrant(label, peer, {**options, "instead": missing}, max_runs=1)
    return Entrant(label, peer, options, max_runs=1 if power >= _ONCE_FROM[kind].get(label, power + 1) else None)


def _missing(label: str, power: int) -> str:
    """What it would take, where it is not run; else nothing."""
    if label not in _MISSING or power < _MISSING[label][0]:
        return ""
    _, num_bytes, seconds, source = _MISSING[label]
    time = "" if seconds is None else f"{seconds * 10**power / 60:,.0f} min and "
    return f"about {time}{num_bytes * 10**power / 1e9:,.0f} GB; {source}"


def _row(kind: str, power: int) -> Row:
    limit = _SECONDS.get((kind, power))
    goals: dict[str, tuple[Goal, ...]] = {} if limit is None else {"smalti window": (at_most(limit),)}
    return Row(
        f"order-{kind}-1e{power}", f"{_TITLES[kind]}, 10^{power} samples", "order", "tiny", "seconds", "s",
        _entrants(kind, power), goals, None, _EARLIER.get((kind, power), ""),
        {"samples_per_shard": 10_000 if power >= _LARGE_FROM else 4_000, "late": kind == "resume"},
        lower_is_better=True, more=("added_mb",), samples=10**power, series=Series(_TITLES[kind], f"10^{power}"),
    )  # fmt: skip


# The processes of the row that asks for seconds, seen once more.
_MEMORY = replace(
    _row("start", 10), key="order-memory-1e10", title="peak memory of the same above the imports, 10^10 samples",
    figure="added_mb", unit="MB", goals={"smalti window": (at_most(120),)}, earlier="", more=("plan_s", "ids_s"),
    series=None,
)  # fmt: skip

_LATE = Row(
    "order-late-1e10", "ids at 90 % of an epoch of 10^10 / ids at its start", "late-ids", "tiny", "late_over_early",
    "x", (Entrant("smalti window", "smalti"), Entrant("grain", "grain")), {"smalti window": (at_most(1.1),)}, None, "",
    {"samples_per_shard": 10_000}, lower_is_better=True, more=("ids_s",), samples=10**10,
)  # fmt: skip

ORDER_ROWS: tuple[Row, ...] = (*(_row(kind, power) for kind in _TITLES for power in SIZES), _MEMORY, _LATE)
