"""Runs whose process was killed: Dagster continues to call them started, and keeps their places in the pools.

Run by itself, before the code server of a machine starts, this fails the runs of code servers before it:

    python -m smalti_dagster.runs.leftovers

A code server reports the death of a run worker, and a run worker that of its code server (`worker.py`).
When both were killed, as with their container or machine, the run stays as it was until this is called.
"""

import logging
import socket

import dagster as dg

from smalti_dagster.runs.worker import HOST_TAG, is_alive, report_lost

# A queued re-execution has the tags of the run before it, and no process yet.
_EXECUTED = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]

_log = logging.getLogger(__name__)


def end_leftovers(instance: dg.DagsterInstance) -> list[str]:
    """End the runs that dead processes of this machine executed; return their ids.

    One that a daemon can start again has failed, and the daemon frees its places when its training has had time to
    save. Any other, such as the demo's, is cancelled, and its places are free at once.
    """
    ours = dg.RunsFilter(tags={HOST_TAG: socket.gethostname()}, statuses=_EXECUTED)
    dead = [run for run in instance.get_runs(ours) if not is_alive(run.tags)]
    for run in dead:
        if run.remote_job_origin is not None:
            report_lost(instance, run, "its process is gone")
        else:
            instance.report_run_canceled(run, message="its process is gone")
            instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def main() -> None:
    """End what is left on this machine in the instance that `DAGSTER_HOME` names."""
    with dg.DagsterInstance.get() as instance:
        for run_id in end_leftovers(instance):
            _log.warning("run %s was executed by a process that is gone", run_id)


if __name__ == "__main__":
    main()
