"""The rows about Dagster's graph: those of issue 16. Both sizes are numbers of small pictures."""

from benchmarks.goals import Goal, at_most
from benchmarks.row import Entrant, Row

_SIZES = (3_670, 50_000)
_SECONDS = {"timeout_s": 900}
_STATES = {"first": "a new data set", "new": "30 new files", "same": "nothing changed"}
_WALL: dict[tuple[str, int], tuple[Goal, ...]] = {("same", 3_670): (at_most(15),), ("new", 50_000): (at_most(20),)}


def _stage(stage: str, state: str, size: int) -> Row:
    names = [f"{state}_{stage}_{name}" for name in ("plain_s", "s", "checks_s")]
    floor = ("to_mds_s",) if (stage, state) == ("shards", "first") else ()
    return Row(
        f"graph-{stage}-{state}-{size}", f"{stage}, {_STATES[state]}, {size:,} pictures: graph / plain call",
        "graph-stages", "jpeg", f"{state}_{stage}_ratio", "x", (Entrant("smalti", "smalti", _SECONDS, max_runs=1),),
        {"smalti": (at_most(1.3),) if state == "first" else ()}, lower_is_better=True, more=(*names, *floor),
        samples=size,
    )  # fmt: skip


def _run(state: str, size: int) -> Row:
    parts = ("enqueued", "dequeued", "worker", "step", "raw", "raw_checks", "prepared", "prepared_checks", "shards")
    more = (*parts, "shards_checks", "teardown", "end")
    return Row(
        f"graph-run-{state}-{size}", f"whole run by the daemon, {_STATES[state]}, {size:,} pictures", "graph-runs",
        "jpeg", f"{state}_run_s", "s", (Entrant("smalti", "smalti", _SECONDS, max_runs=1),),
        {"smalti": _WALL.get((state, size), ())}, lower_is_better=True,
        more=tuple(f"{state}_{name}_s" for name in more), samples=size,
    )  # fmt: skip


GRAPH_ROWS: tuple[Row, ...] = (
    *(_stage(stage, state, size) for size in _SIZES for state in _STATES for stage in ("raw", "prepared", "shards")),
    *(_run(state, size) for size in _SIZES for state in _STATES),
)
