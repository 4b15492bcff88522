"""What happens by the clock. Schedules are off until a person switches them on."""

import dagster as dg

from assets.automation import kept_source
from pipelines.jobs import RESHARD_ASSETS, reshard_job
from pipelines.repeat import last_config

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


@dg.schedule(
    cron_schedule="0 3 * * *",
    job=reshard_job,
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Re-shards at 03:00 UTC from the source for which it was switched on, with the configuration of the "
    "last time; unchanged images give no new version.",
)
def nightly_reshard_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """Request one run per night, unless one is still going on or no source is known yet."""
    running = context.instance.get_runs(dg.RunsFilter(job_name=reshard_job.name, statuses=UNFINISHED), limit=1)
    if running:
        return dg.SkipReason(f"run {running[0].run_id} of {reshard_job.name} is still going on")
    source = kept_source(context.instance, "nightly_reshard_schedule")
    if source is None:
        return dg.SkipReason("raw_images has never been materialised: launch reshard_job by hand to choose a source")
    night = context.scheduled_execution_time.date().isoformat()
    return dg.RunRequest(
        run_key=f"nightly:{night}",
        run_config=last_config(context.instance, RESHARD_ASSETS, source),
        tags={"smalti/night": night},
    )
