"""The rows about versions of a million shards: those of issues 6 and 21."""

from benchmarks.goals import at_most
from benchmarks.row import Entrant, Row

_SHARDS = 10**6
_FEWER = 10**5


def _row(
    action: str, title: str, figure: str = "seconds", goal: float | None = None, *, shards: int = _SHARDS
) -> Row:  # fmt: skip
    suffix, unit = ("", "s") if figure == "seconds" else ("-mb", "MB")
    about = {"seconds": "", "added_mb": ": peak memory above the imports"}[figure]
    return Row(
        f"manifest-{action}{suffix}", f"{title}, {'10^6' if shards == _SHARDS else '10^5'} shards{about}", "manifest",
        "tiny", figure, unit, (Entrant("smalti", "smalti", {"action": action}, max_runs=1),),
        {"smalti": () if goal is None else (at_most(goal),)}, lower_is_better=True, samples=shards,
        more=("seconds", "added_mb", "answers_mb"),
    )  # fmt: skip


MANIFEST_ROWS: tuple[Row, ...] = (
    _row("publish", "publish, from the tasks' answers to the index file", goal=30),
    _row("publish", "publish", "added_mb", 500),
    _row("open", "open a version in a reader", goal=0.5),
    _row("open", "open a version in a reader", "added_mb", 150),
    _row("foreign", "open an index.json of MosaicML's", goal=1, shards=_FEWER),
    _row("append", "append one shard", goal=2),
    _row("append", "append one shard", "added_mb", 150),
    _row("append-100", "append 100 shards", goal=2),
    _row("append-100", "append 100 shards", "added_mb", 150),
    _row("history", "history", goal=1),
    _row("diff", "diff of two versions that differ by one shard", goal=1),
    _row("tag", "tag a version", goal=1),
    _row("rollback", "roll back one version", goal=1),
    _row("list", "index.json with all shards, on request"),
    _row("vacuum", "vacuum, dry run"),
    _row("vacuum", "vacuum, dry run", "added_mb", 150),
)
