"""Runs whose process was killed: Dagster continues to call them started, and keeps their places in the pools.

A daemon finds them by run monitoring; a demo has no daemon, and would wait for a place for ever.
"""

import os
import socket

import dagster as dg

from pipelines.automation.states import UNFINISHED

HOST_TAG = "smalti/host"
PROCESS_TAG = "smalti/process"


def process_tags() -> dict[str, str]:
    """Tags for a run that this very process executes."""
    return {HOST_TAG: socket.gethostname(), PROCESS_TAG: str(os.getpid())}


def end_leftovers(instance: dg.DagsterInstance) -> list[str]:
    """Marks runs with `process_tags` of a dead process here as cancelled, and frees their places; returns their ids."""
    ours = dg.RunsFilter(tags={HOST_TAG: socket.gethostname()}, statuses=UNFINISHED)
    dead = [run for run in instance.get_runs(ours) if not _is_alive(int(run.tags.get(PROCESS_TAG, 0)))]
    for run in dead:
        instance.report_run_canceled(run, message="its process is gone")
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return [run.run_id for run in dead]


def _is_alive(process: int) -> bool:
    if process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
