"""Runs that automation asks about: by state, and by data set."""

from typing import get_args

import dagster as dg

from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import JobKind, job_name
from smalti_dagster.lineage import DATA_SET_TAG, TRAINS_TAG

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


_READERS: tuple[JobKind, ...] = ("reshard", "everything")


def unfinished_reader(instance: dg.DagsterInstance, declared: Declaration) -> dg.DagsterRun | None:
    """Return a run that makes, or will make, the data assets of a data set and has not ended; None if there is none.

    A run that only trains, or has come to its training, is none.
    """
    unfinished = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return next((run for run in unfinished if _makes_data(declared, run)), None)


def _makes_data(declared: Declaration, run: dg.DagsterRun) -> bool:
    """Return whether a run makes data assets, by what was selected, or by its job; it has tags only once it has begun.

    A re-execution has the tags of the run before it: that it trains need not be true yet.
    """
    if TRAINS_TAG in run.tags and run.parent_run_id is None:
        return False
    if run.asset_selection or run.asset_check_selection:
        data = {declared.key(stage) for stage in declared.stages if stage != "model"}
        return not data.isdisjoint(run.asset_selection or ())
    if run.job_name in {job_name(declared, kind) for kind in get_args(JobKind)}:
        return run.job_name in {job_name(declared, kind) for kind in _READERS}
    return run.tags.get(DATA_SET_TAG) == declared.name  # a job of the project's own
