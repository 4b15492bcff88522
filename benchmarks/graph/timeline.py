"""The times of a run, read from the events that Dagster recorded: seconds of each asset, of its checks, of the rest."""

from collections.abc import Iterable

import dagster as dg

_BOUNDARIES = {
    dg.DagsterEventType.RUN_ENQUEUED: "enqueued",
    dg.DagsterEventType.RUN_STARTING: "dequeued",
    dg.DagsterEventType.RUN_START: "worker",
    dg.DagsterEventType.STEP_START: "step",
    dg.DagsterEventType.STEP_SUCCESS: "teardown",
    dg.DagsterEventType.RUN_SUCCESS: "end",
}
"""Events that end a part of a run, and the name of that part; assets and their checks come between the steps' own."""


def parts_of(events: Iterable[dg.EventLogEntry], begin: float) -> dict[str, float]:
    """Return the seconds of each part of a run with one step, in order of time.

    Args:
        events: All of the run, oldest first.
        begin: When it was launched, seconds since the epoch.
    """
    parts: dict[str, float] = {}
    for entry in events:
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            name = event.step_materialization_data.materialization.asset_key.path[-1]
        elif event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            name = f"{event.asset_check_evaluation_data.asset_key.path[-1]}_checks"
        elif event.event_type in _BOUNDARIES:
            name = _BOUNDARIES[event.event_type]
        else:
            continue
        parts[name] = parts.get(name, 0.0) + entry.timestamp - begin
        begin = entry.timestamp
    return parts
