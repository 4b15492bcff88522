"""Schedules of re-sharding. They are off until a person switches them on."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from smalti_dagster.automation.partitions import look_at_partitions, request_partitions, span_tags
from smalti_dagster.automation.states import unfinished_reader
from smalti_dagster.declaration import Declaration
from smalti_dagster.declaration.automation import cron_ticks
from smalti_dagster.jobs import job_name
from smalti_dagster.resources.binding import with_resources
from smalti_dagster.resources.storage import StorageResource


def build_reshard_schedule(declared: Declaration, cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that re-shards a data set as it is declared."""
    job = job_name(declared, "reshard")
    options: dict[str, Any] = {
        "name": f"{declared.name}_reshard_schedule",
        "cron_schedule": cron,
        "job_name": job,
        "execution_timezone": declared.automation.timezone,
        "default_status": dg.DefaultScheduleStatus.STOPPED,
        **declared.labels,
        "description": f"Re-shards {declared.name} as it is declared; an unchanged source gives no new version.",
    }
    if declared.partitions is not None and declared.source.kind == "images":

        @dg.schedule(**options)
        @with_resources
        def of_partitions(context: dg.ScheduleEvaluationContext, storage: StorageResource) -> Any:
            """Request runs of the partitions that changed, unless a run has not ended yet."""
            return _skipped(context, declared) or _request_changed(context, declared, storage)

        return of_partitions

    @dg.schedule(**options)
    def schedule(context: dg.ScheduleEvaluationContext) -> Any:
        """Request one run per tick, unless one has not ended yet; of windows of time, of those that are over."""
        run_key, tags = _named(context, declared)
        if (skipped := _skipped(context, declared)) is not None:
            return skipped
        if declared.partitions is None:
            return dg.RunRequest(run_key=run_key, tags=tags)
        windows = _windows(context, declared, cron)
        if not windows:
            return dg.SkipReason("the first window of time is not over yet")
        if len(windows) == 1:
            return dg.RunRequest(run_key=run_key, tags=tags, partition_key=windows[0])
        return dg.RunRequest(run_key=run_key, tags={**tags, **span_tags(windows)})

    return schedule


def _windows(context: dg.ScheduleEvaluationContext, declared: Declaration, cron: str) -> Sequence[str]:
    """Return the windows of time that a tick requests, which are neighbours, oldest first.

    1. Those that were over at the time of the tick, however late it is evaluated.
    2. Those that are over since the tick before, of which the last one is requested again and again.
    3. Those after the newest that the shards hold, because Dagster skips the ticks of an outage, and runs fail.
    """
    tick, definition = context.scheduled_execution_time, declared.partitions_definition
    if not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        raise TypeError(f"the schedule of {declared.name} needs partitions by windows of time, found {definition}")
    over = definition.get_partition_keys(current_time=tick)
    held = context.instance.get_materialized_partitions(declared.key("shards"))
    before = cron_ticks(cron, declared.automation.timezone).get_prev_partition_window(tick, respect_bounds=False)
    first = len(over) - 1
    while first > 0 and before is not None and definition.end_time_for_partition_key(over[first - 1]) > before.start:
        first -= 1
    newest = max((at for at, key in enumerate(over) if key in held), default=first)
    return over[max(min(first, newest + 1), 0) :]


def _skipped(context: dg.ScheduleEvaluationContext, declared: Declaration) -> dg.SkipReason | None:
    """Return why a tick requests nothing: a run that reads the source has not ended yet."""
    running = unfinished_reader(context.instance, declared)
    return dg.SkipReason(f"run {running.run_id} of {running.job_name} is still going on") if running else None


def _named(context: dg.ScheduleEvaluationContext, declared: Declaration) -> tuple[str, dict[str, str]]:
    """Return key and tags of the run that a tick requests."""
    tick = context.scheduled_execution_time.isoformat()
    return f"{declared.name}:scheduled:{tick}", {"smalti/tick": tick}


def _request_changed(context: dg.ScheduleEvaluationContext, declared: Declaration, storage: StorageResource) -> Any:
    """Request the partitions of images that changed; those that Dagster does not know yet are added to it."""
    instance = context.instance
    changed = look_at_partitions(instance, declared, storage).changed
    if not changed:
        return dg.SkipReason(f"no partition of {declared.name} has changed since it was read")
    run_key, tags = _named(context, declared)
    requests, added = request_partitions(instance, declared, changed, dg.RunRequest(run_key=run_key, tags=tags))
    for each in added:  # a schedule, unlike a sensor, has no result that could ask for it
        instance.add_dynamic_partitions(each.partitions_def_name, list(each.partition_keys))
    return requests


def is_schedulable(declared: Declaration) -> bool:
    """Return whether a tick knows what to request: the keys of partitioned rows are known to a person alone."""
    return declared.partitions is None or declared.source.kind == "images" or declared.partitions.start is not None
