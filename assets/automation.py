"""The source that a schedule or sensor keeps: the one that the images were read from when it was switched on.

Dagster keeps the time at which a schedule or sensor was switched on, and every materialisation of `raw_images` says
which source it read. What follows from both is stored in the instance when it is first asked for, because a run that
is deleted takes its materialisations along, and setting a sensor's cursor by hand makes Dagster forget the time.
"""

import json
from collections.abc import Iterator

import dagster as dg

from assets.lineage import facts_of, materialisations

AUTOMATION = ("nightly_reshard_schedule", "reshard_on_new_images_sensor", "train_on_new_version_sensor")
"""Names of the schedules and sensors that request runs."""


def switched_on(instance: dg.DagsterInstance, name: str) -> float | None:
    """Return when a schedule or sensor was switched on, in seconds since 1970; None if it is off.

    It is `UNKNOWN` if Dagster has forgotten the time.
    """
    if instance.schedule_storage is None:  # an instance in memory
        return None
    for state in instance.all_instigator_state():
        if state.instigator_name == name and state.status.value == "RUNNING":
            times = (getattr(state.instigator_data, field, None) for field in _START_FIELDS)
            return next((time for time in times if time is not None), UNKNOWN)
    return None


UNKNOWN = 0.0
"""In place of the time at which a sensor was switched on whose cursor was set by hand since."""

_START_FIELDS = ("start_timestamp", "last_sensor_start_timestamp")  # of a schedule, of a sensor


def kept_source(instance: dg.DagsterInstance, name: str) -> str | None:
    """Return the source that the runs of a schedule or sensor read; None as long as `raw_images` has read none.

    It is the one read last before the schedule or sensor was switched on, else the first one after that. For a
    schedule or sensor that is off, and is only tried out, it is the one read last.
    """
    time = switched_on(instance, name)
    return next(_sources(instance), None) if time is None else _kept(instance, name, time)


def keeping_another(instance: dg.DagsterInstance, source: str) -> dict[str, str]:
    """Return the schedules and sensors that are on and keep another source than this one, and which that is."""
    times = {name: switched_on(instance, name) for name in AUTOMATION}
    kept = {name: _kept(instance, name, time) for name, time in times.items() if time is not None}
    return {name: other for name, other in kept.items() if other is not None and other != source}


def _kept(instance: dg.DagsterInstance, name: str, time: float) -> str | None:
    """Return the source that was stored for a schedule or sensor since it was switched on; find and store it if none.

    If the time is not known, what was stored last still holds: switching it off and on again would have told the time.
    """
    key, values = f"smalti/kept_source/{name}", instance.daemon_cursor_storage
    stored = json.loads(values.get_cursor_values({key}).get(key, "{}"))
    if stored and time in (stored["switched_on"], UNKNOWN):
        return str(stored["source"])
    before = next(_sources(instance, before=time if time != UNKNOWN else None), None)
    source = before if before is not None else next(_sources(instance, oldest_first=True), None)
    if source is not None:
        values.set_cursor_values({key: json.dumps({"switched_on": time, "source": source})})
    return source


def _sources(instance: dg.DagsterInstance, *, before: float | None = None, oldest_first: bool = False) -> Iterator[str]:
    """Iterate over the sources that were read; a materialisation that was reported by hand may tell none."""
    for event in materialisations(instance, "raw_images", before=before, oldest_first=oldest_first):
        if source := facts_of(event).get("source"):
            yield str(source)
