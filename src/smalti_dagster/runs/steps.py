"""Runs that are not over for good: active, about to be retried by Dagster, or executed again."""

import dagster as dg
from dagster._core.events import RunFailureReason
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.storage.tags import (
    AUTO_RETRY_RUN_ID_TAG,
    ROOT_RUN_ID_TAG,
    RUN_FAILURE_REASON_TAG,
    WILL_RETRY_TAG,
)

_LOOKED_AT = 1000  # failures that Dagster's daemon has not looked at yet


def is_going_on(instance: dg.DagsterInstance, run: dg.DagsterRun, *, besides: str = "") -> bool:
    """Return whether a run, or one that executes it again, has not ended, or has failed and will be retried.

    Args:
        instance: Knows all of them.
        run: Any of a run and its re-executions.
        besides: Id of a run among them that does not count.
    """
    root = run.root_run_id or run.run_id
    again = instance.get_runs(dg.RunsFilter(tags={ROOT_RUN_ID_TAG: root}))
    group = {each.run_id: each for each in (run, *again) if each.run_id != besides}
    return any(not each.is_finished or awaits_retry(instance, each) for each in group.values())


def awaits_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether Dagster's daemon will start a failed run once more, and has not done so yet.

    The tag that says so is written just after the failure: until then this computes it as Dagster does. It stays even
    if the daemon could not start the run again, because its job is gone; then no retry is awaited.
    """
    if run.status is not dg.DagsterRunStatus.FAILURE or AUTO_RETRY_RUN_ID_TAG in run.tags:
        return False
    noted = run.tags.get(WILL_RETRY_TAG)
    if noted is None:
        reason = run.tags.get(RUN_FAILURE_REASON_TAG)
        return instance.run_retries_enabled and auto_reexecution_should_retry_run(
            instance, run, RunFailureReason(reason) if reason else None
        )
    return noted == "true" and not _is_passed_over(instance, run)


def _is_passed_over(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether Dagster's daemon has looked at a failure and started no retry."""
    name = f"EVENT_LOG_CONSUMER_CURSOR-{dg.DagsterEventType.RUN_FAILURE.value}"
    cursor = instance.daemon_cursor_storage.get_cursor_values({name}).get(name)
    if cursor is None:
        return False
    wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=int(cursor))
    left = instance.fetch_run_status_changes(wanted, limit=_LOOKED_AT, ascending=True).records
    if any(record.event_log_entry.run_id == run.run_id for record in left):
        return False
    now = instance.get_run_by_id(run.run_id)  # a retry that was started meanwhile counts
    return now is not None and AUTO_RETRY_RUN_ID_TAG not in now.tags
