"""Runs that automation asks about: by state, and by data set."""

import dagster as dg

from assets.declaration import Declaration
from assets.lineage import DATA_SET_TAG
from pipelines.jobs import job_name

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def unfinished_reader(instance: dg.DagsterInstance, declared: Declaration) -> dg.DagsterRun | None:
    """Return a run of a data set that reads, or will read, its source and has not ended yet; None if there is none."""
    wanted = dg.RunsFilter(tags={DATA_SET_TAG: declared.name}, statuses=UNFINISHED)
    others = {job_name(declared, "train"), job_name(declared, "observe")}
    return next((run for run in instance.get_runs(wanted) if run.job_name not in others), None)
