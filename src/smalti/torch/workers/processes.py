"""Worker processes of torch's loader that ended when they should not have, and that did not when they should have."""

import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pickle import UnpicklingError
from typing import Any

from smalti.errors import SmaltiError, TrainingError

_CUT_OFF = (EOFError, ConnectionError, FileNotFoundError, UnpicklingError)
"""What a consumer gets to see if its worker dies while it fetches a batch: half a message, or a socket that is gone."""
_REAP_SECONDS = 1.0  # between a process's last message and its status
_LOOK_SECONDS = 1.0  # between two looks whether the program still lives
_STATUS_SECONDS = 5.0  # between two looks for dead workers, as torch does without a time limit
_watched: set[int] = set()
"""The process ids of workers that look already; forks inherit it, and have ids of their own."""


def end_with_program() -> None:
    """Makes this worker process end within seconds of its program, whatever it is at; costs nothing when called again.

    Torch's workers look for their program only between two batches, every five seconds, and never end when they have
    more to send than fits into a pipe that nobody reads. The kernel's signal for it (`PR_SET_PDEATHSIG`) would come
    when the thread ends that began the iteration, which may be long before the program does.
    """
    program = multiprocessing.parent_process()
    if program is None or os.getpid() in _watched:
        return
    looking = threading.Thread(
        target=_end_after, args=(program.sentinel, os.getppid()), name="smalti-orphan", daemon=True
    )
    with suppress(RuntimeError):  # no memory for a thread just now: again with the next batch
        looking.start()
        _watched.add(os.getpid())


def _end_after(program: int, parent: int) -> None:
    # Other processes may hold the sentinel's other end, and with a fork server the parent is not the program.
    while not wait([program], _LOOK_SECONDS) and os.getppid() == parent:
        pass
    os._exit(1)  # nobody waits for what it has, and a thread of the queue's might wait for ever


def check_workers_while_waiting(iterator: Any) -> None:
    """Make torch's multiprocessing iterator look for dead workers every few seconds while it waits for a batch.

    With a time limit torch looks only when that has passed. Until then it relies on SIGCHLD, which does not end the
    wait where another thread receives the signal or the program handles it by itself.
    """
    wait_once, of = type(iterator)._try_get_data, weakref.ref(iterator)  # no cycle: a dropped iterator goes at once

    def try_get_data(timeout: float = _STATUS_SECONDS) -> tuple[bool, Any]:
        left = timeout
        while True:
            seconds = min(left, _STATUS_SECONDS)
            success, data = wait_once(of(), seconds)
            left -= seconds
            if success or left <= 0:
                return success, data

    iterator._try_get_data = try_get_data


def end_of_worker(error: BaseException, workers: Sequence[BaseProcess]) -> TrainingError | None:
    """What torch says when a worker died, for the errors by which a death shows sooner than it is known to torch.

    Args:
        error: What asking for a batch raised.
        workers: The processes that were asked; nobody has ended them on purpose yet.

    Returns:
        None where the error is about something else. May wait a second for the status of a process.
    """
    if isinstance(error, SmaltiError) or not (isinstance(error, _CUT_OFF) or _is_torchs(error)):
        return None
    running = {worker.sentinel: worker for worker in workers if worker.exitcode is None}
    if running and not any(worker.exitcode for worker in workers):
        for sentinel in wait(list(running), _REAP_SECONDS):
            running[sentinel].join(_REAP_SECONDS)  # type: ignore[index]  # a sentinel comes back as it was given
    for worker in workers:
        if worker.exitcode:  # 0 is a worker that was done, None one that lives
            return TrainingError(
                f"DataLoader worker (pid {worker.pid}) {_how(worker.exitcode)} while a batch was fetched from it. "
                "One that is killed is often one too many for the memory: take fewer, or a smaller `prefetch_factor`.",
                pid=worker.pid,
                exitcode=worker.exitcode,
            )
    return None


def _is_torchs(error: BaseException) -> bool:
    """Whether torch knows of the death; it tells neither how a worker ended nor why that may be."""
    return isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")


def _how(exitcode: int) -> str:
    return f"exited with status {exitcode}" if exitcode > 0 else f"was killed by signal {_name(-exitcode)}"


def _name(number: int) -> str:
    known = {int(each): each.name for each in signal.Signals}
    return known.get(number, str(number))  # real-time signals have no names
