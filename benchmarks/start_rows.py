"""The rows about a set that is opened, or opened again with a saved state, until a batch is there: those of issue 4.

10^6 samples are a real set; 10^8 are hard links of one shard; of 10^10, in a million shards, only those files exist
that are read. Earlier figures are those of `numbers.md`; a resumed set of 10^8 was at half of its epoch there, as it
is in the row `resume-1e8-half`.
"""

from benchmarks.goals import at_most
from benchmarks.row import LARGE, Entrant, Row, Series, participants

_SMALTI = Entrant("smalti", "smalti")
_SPARSE = (Entrant("smalti", "smalti-sparse", max_runs=1),)
_STATEFUL = participants("smalti-alias", "mosaicml", "litdata", "litfull", "grain")
_SHARDS = 10**6
_PER_SHARD = 10**4


def _row(
    measure: str, size: str, entrants: tuple[Entrant, ...], earlier: str = "", *, workers: int = 0,
    samples: int | None = None, copies: int | None = None,
) -> Row:  # fmt: skip
    title = "open to first batch" if measure == "open" else "saved at 90 % of the epoch, to next batch"
    number, with_workers = f"10^{size.removeprefix('1e')}", f", {workers} workers" if workers else ""
    return Row(
        f"{measure}-{size}" + (f"-{workers}w" if workers else ""),
        f"{title}, {number} samples{with_workers}", measure, "tiny",
        "seconds", "s", entrants, {}, None, earlier, {"workers": workers}, lower_is_better=True,
        more=("added_mb", "import_s"), needs_true_shuffle=True, copies=copies, samples=samples,
        series=Series(title, number + with_workers),
    )  # fmt: skip


START_ROWS: tuple[Row, ...] = (
    _row("open", "1e6", (_SMALTI, *_STATEFUL, *participants("hfds")), "0.177 · 0.044 · -", samples=10**6),
    _row("open", "1e6", (_SMALTI, *_STATEFUL), workers=2, samples=10**6),
    _row("open", "1e10", _SPARSE, samples=_PER_SHARD, copies=_SHARDS),
    _row("resume", "1e6", (_SMALTI, *_STATEFUL), "0.129 · 0.125 · -", samples=10**6),
    _row("resume", "1e6", (_SMALTI, *_STATEFUL), "0.212 · 0.759 · -", workers=2, samples=10**6),
    _row("resume", "1e8", (_SMALTI, *participants("litdata", "litfull", "grain", mosaicml=1)), "17.8 · 0.074 · -",
         copies=LARGE),
    Row(
        "resume-1e8-half", "saved at 50 % of the epoch, to next batch, 10^8 samples", "resume", "tiny", "seconds", "s",
        (Entrant("smalti index.json", "smalti-plain"), Entrant("smalti manifest", "smalti"), *participants("litdata")),
        {"smalti index.json": (at_most(1.0, "litdata"),)}, None, "17.8 · 0.074 · -", {"taken": 0.5},
        lower_is_better=True, more=("added_mb", "import_s"), copies=LARGE,
    ),
    _row("resume", "1e10", _SPARSE, samples=_PER_SHARD, copies=_SHARDS),
)  # fmt: skip
