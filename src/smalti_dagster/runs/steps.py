"""Runs that are not over for good: active, about to be retried by Dagster, or executed again."""

import time

import dagster as dg

# Dagster's tags: of the first of several re-executions, of a run that will be retried, and of one that was.
_ROOT_TAG = "dagster/root_run_id"
_WILL_RETRY_TAG = "dagster/will_retry"
_RETRIED_TAG = "dagster/auto_retry_run_id"
_NOTED_SECONDS = 60.0  # after a failure, in which Dagster has written the second one
_LOOKED_AT = 1000  # failures that Dagster's daemon has not looked at yet


def is_going_on(instance: dg.DagsterInstance, run: dg.DagsterRun, *, besides: str = "") -> bool:
    """Return whether a run, or one that executes it again, has not ended, or has failed and will be retried.

    Args:
        instance: Knows all of them.
        run: Any of a run and its re-executions.
        besides: Id of a run among them that does not count.
    """
    root = run.root_run_id or run.run_id
    again = instance.get_runs(dg.RunsFilter(tags={_ROOT_TAG: root}))
    group = {each.run_id: each for each in (run, *again) if each.run_id != besides}
    return any(not each.is_finished or awaits_retry(instance, each) for each in group.values())


def awaits_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether Dagster's daemon will start a failed run once more, and has not done so yet.

    The tag that says so is written just after the failure: until then a retry is awaited. It stays even if the daemon
    could not start the run again, because its job is gone; then no retry is awaited.
    """
    if run.status is not dg.DagsterRunStatus.FAILURE or _RETRIED_TAG in run.tags:
        return False
    noted = run.tags.get(_WILL_RETRY_TAG)
    if noted is None:
        return instance.run_retries_enabled and _has_just_ended(instance, run)
    return noted == "true" and not _is_passed_over(instance, run)


def _has_just_ended(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    record = instance.get_run_record_by_id(run.run_id)
    return record is not None and record.end_time is not None and time.time() - record.end_time < _NOTED_SECONDS


def _is_passed_over(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether Dagster's daemon has looked at a failure and started no retry.

    How far it has looked is in the daemon's own cursor alone.
    """
    name = f"EVENT_LOG_CONSUMER_CURSOR-{dg.DagsterEventType.RUN_FAILURE.value}"
    cursor = instance.daemon_cursor_storage.get_cursor_values({name}).get(name)
    if cursor is None:
        return False
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=int(cursor))
    left = instance.fetch_run_status_changes(wanted, limit=_LOOKED_AT, ascending=True).records
    if any(record.event_log_entry.run_id == run.run_id for record in left):
        return False
    now = instance.get_run_by_id(run.run_id)  # a retry that was started meanwhile counts
    return now is not None and _RETRIED_TAG not in now.tags
