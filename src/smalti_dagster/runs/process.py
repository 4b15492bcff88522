"""The process that executes a run, as the run's tags name it."""

import socket
from collections.abc import Mapping
from typing import NamedTuple

import dagster as dg
import psutil

HOST_TAG = "smalti/host"
"""Tag of a run: name of the machine whose process executes it."""
PROCESS_TAG = "smalti/process"
"""Tag of a run: id of that process, the second in which it started, and the run's id.

A re-execution has the tags of the run before it: they name its own process once they have its id.
"""


def this_host() -> str:
    """Return the name of this machine, as tags have it."""
    return socket.gethostname()


class Process(NamedTuple):
    """A process of some machine."""

    number: int
    """Its id."""
    started: float
    """Time at which it started, in seconds since 1970."""


def process_tags(run_id: str, process: int | None = None) -> dict[str, str]:
    """Return the tags of a run that a process of this machine executes; by default this one."""
    found = psutil.Process(process)
    return {HOST_TAG: this_host(), PROCESS_TAG: f"{found.pid} {found.create_time():.0f} {run_id}"}


def process_here(run: dg.DagsterRun) -> Process | None:
    """Return the process of this machine that executes a run, or has; None if the run's tags name none."""
    return _process(run.tags, run.run_id) if run.tags.get(HOST_TAG) == this_host() else None


def _process(tags: Mapping[str, str], run_id: str) -> Process | None:
    try:
        number, started, owner = tags.get(PROCESS_TAG, "").split(" ")
        return Process(int(number), float(started)) if owner == run_id else None
    except ValueError:
        return None


def is_alive(process: Process) -> bool:
    """Return whether a process of this machine lives; another one that has its id now does not count."""
    try:
        found = psutil.Process(process.number)
        is_same = bool(abs(found.create_time() - process.started) < 2)
        return is_same and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
