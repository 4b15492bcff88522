"""Schedules of re-sharding. They are off until a person switches them on."""

import dagster as dg

from assets.declaration import Declaration
from pipelines.automation.states import UNFINISHED
from pipelines.jobs import job_name


def build_reshard_schedule(declared: Declaration, cron: str) -> dg.ScheduleDefinition:
    """Return the schedule that re-shards a data set as it is declared."""
    job = job_name(declared, "reshard")

    @dg.schedule(
        name=f"{declared.name}_reshard_schedule",
        cron_schedule=cron,
        job_name=job,
        execution_timezone=declared.automation.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Re-shards {declared.name} as it is declared; an unchanged source gives no new version.",
    )
    def schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        """Request one run per tick, unless one has not ended yet."""
        running = context.instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
        if running:
            return dg.SkipReason(f"run {running[0].run_id} of {job} is still going on")
        tick = context.scheduled_execution_time.isoformat()
        return dg.RunRequest(run_key=f"{declared.name}:scheduled:{tick}", tags={"smalti/tick": tick})

    return schedule
