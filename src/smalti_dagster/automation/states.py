"""Runs that automation asks about: by state, and by data set."""

import dagster as dg

from smalti_dagster.declaration import Declaration
from smalti_dagster.jobs import JobKind, job_name
from smalti_dagster.lineage import DATA_SET_TAG

UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


_READERS: tuple[JobKind, ...] = ("reshard", "everything")
_OTHERS: tuple[JobKind, ...] = ("train", "promote", "observe")


def unfinished_reader(instance: dg.DagsterInstance, declared: Declaration) -> dg.DagsterRun | None:
    """Return a run of a data set that reads, or will read, its source and has not ended yet; None if there is none."""
    readers, others = ({job_name(declared, kind) for kind in kinds} for kinds in (_READERS, _OTHERS))
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        is_of_set = run.tags.get(DATA_SET_TAG) == declared.name and run.job_name not in others
        if is_of_set or run.job_name in readers:
            return run
    return None
