"""Worker processes of torch's loader that ended when they should not have: who it was, and how."""

import signal
from collections.abc import Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pickle import UnpicklingError

from smalti.errors import SmaltiError, TrainingError

_CUT_OFF = (EOFError, ConnectionError, FileNotFoundError, UnpicklingError)
"""What a consumer gets to see if its worker dies while it fetches a batch: half a message, or a socket that is gone."""
_REAP_SECONDS = 1.0  # between a process's last message and its status


def end_of_worker(error: BaseException, workers: Sequence[BaseProcess]) -> TrainingError | None:
    """What torch says when a worker died, for the errors by which a death shows sooner than it is known to torch.

    Args:
        error: What asking for a batch raised.
        workers: The processes that were asked; nobody has ended them on purpose yet.

    Returns:
        None where the error is about something else. May wait a second for the status of a process.
    """
    if isinstance(error, SmaltiError) or not isinstance(error, _CUT_OFF):
        return None
    running = {worker.sentinel: worker for worker in workers if worker.exitcode is None}
    if running and not any(worker.exitcode for worker in workers):
        for sentinel in wait(list(running), _REAP_SECONDS):
            running[sentinel].join(_REAP_SECONDS)  # type: ignore[index]  # a sentinel comes back as it was given
    for worker in workers:
        if worker.exitcode:  # 0 is a worker that was done, None one that lives
            return TrainingError(
                f"DataLoader worker (pid {worker.pid}) {_how(worker.exitcode)} while a batch was fetched from it. "
                "One that is killed is often too many for the memory: take fewer, or a smaller `prefetch_factor`.",
                pid=worker.pid,
                exitcode=worker.exitcode,
            )
    return None


def _how(exitcode: int) -> str:
    return f"exited with status {exitcode}" if exitcode > 0 else f"was killed by signal {_name(-exitcode)}"


def _name(number: int) -> str:
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, str(number))  # real-time signals have no names
