"""Worker processes of torch's loader: passing their arguments, and detecting that they crashed or lost the program.

A forked worker inherits all objects of the program, unreachable ones too. Collecting those runs destructors that were
written for the program. Torch's `TCPStore` joins a thread, which a fork does not have: once a thread of the worker uses
its memory, `pthread_join` fails with EINVAL, and the C++ library aborts the worker. A Gloo group blocks it.

`multiprocessing` pickles the arguments of a spawned process into a pipe, and keeps the reading end open until all is
written. If the process dies before it has read all but 64 KiB (the size of a pipe on Linux), the program blocks
indefinitely. So arguments go through an unnamed file, whose descriptor fits into the pipe.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import context, get_start_method, reduction
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pickle import UnpicklingError
from typing import Any

from smalti.errors import SmaltiError, TrainingError

_CUT_OFF = (EOFError, ConnectionError, FileNotFoundError, UnpicklingError)
"""Errors in a consumer whose worker dies while it fetches a batch: an incomplete message, or a missing socket."""
_REAP_SECONDS = 1.0  # longest wait for the exit status of a process
_PROGRAM_SECONDS = 1.0  # between two checks that the program still runs
_STATUS_SECONDS = 5.0  # between two checks for dead workers, as torch does without a timeout
_watching: set[int] = set()
"""Process ids of workers that watch their program; forks inherit the set, and have ids of their own."""
_starting = threading.local()


@contextmanager
def workers_keep_inherited_objects() -> Iterator[None]:
    """Exclude what a process forked by this thread in the `with` block inherits from its garbage collections."""
    _starting.workers = True
    try:
        yield
    finally:
        _starting.workers = False


def _keep_inherited_objects() -> None:
    if getattr(_starting, "workers", False):
        _starting.workers = False  # processes that the worker forks are its own
        gc.freeze()


os.register_at_fork(after_in_child=_keep_inherited_objects)


def end_with_program() -> None:
    """Make this worker process exit within seconds of its program, whatever it is doing. Idempotent.

    Torch's workers check for their program only between two batches, every five seconds, and never exit if a write to
    an unread pipe blocks them. The kernel's signal (`PR_SET_PDEATHSIG`) is sent when the thread ends that began the
    iteration, which may be long before the program ends.
    """
    program = multiprocessing.parent_process()
    if program is None or os.getpid() in _watching:
        return
    gc.freeze()  # torch's own loader forks without `workers_keep_inherited_objects`
    watcher = threading.Thread(
        target=_end_after, args=(program.sentinel, os.getppid()), name="smalti-orphan", daemon=True
    )
    with suppress(RuntimeError):  # no memory for a thread: retried with the next batch
        watcher.start()
        _watching.add(os.getpid())


def _end_after(program: int, parent: int) -> None:
    # Other processes may hold the sentinel's other end, and with a fork server the parent is not the program.
    while not wait([program], _PROGRAM_SECONDS) and os.getppid() == parent:
        pass
    os._exit(1)  # a normal exit could block: the queue's thread may wait for a reader


def check_workers_while_waiting(iterator: Any) -> None:
    """Make torch's multiprocessing iterator check for dead workers every few seconds while it waits for a batch.

    With a timeout torch checks only after it has passed. Until then it relies on SIGCHLD, which does not end the wait
    if another thread receives the signal or the program handles it.
    """
    # A weak reference avoids a cycle, so that a dropped iterator is freed at once.
    wait_once, of = type(iterator)._try_get_data, weakref.ref(iterator)

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
    """Return an error for a worker's death if it caused `error`, which fetching a batch raised; else None.

    None of the workers may have been ended on purpose. Blocks for seconds at most.
    """
    # Torch's report of a dead worker has no exit status.
    is_torchs = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker (pid")
    if isinstance(error, SmaltiError) or not (isinstance(error, _CUT_OFF) or is_torchs):
        return None
    running = {worker.sentinel: worker for worker in workers if worker.exitcode is None}
    if running and not any(worker.exitcode for worker in workers):
        for sentinel in wait(list(running), _REAP_SECONDS):
            running[sentinel].join(_REAP_SECONDS)  # type: ignore[index]  # a sentinel comes back as it was given
    for worker in workers:
        if worker.exitcode:  # 0: the worker was done; None: it is running
            return TrainingError(
                f"DataLoader worker (pid {worker.pid}) {_describe_exit(worker.exitcode)} while a batch was fetched "
                "from it. Workers are often killed for lack of memory: use fewer, or a smaller `prefetch_factor`.",
                pid=worker.pid,
                exitcode=worker.exitcode,
            )
    return None


def _describe_exit(exitcode: int) -> str:
    if exitcode > 0:
        return f"exited with status {exitcode}"
    names = {int(each): each.name for each in signal.Signals}
    return f"was killed by signal {names.get(-exitcode, str(-exitcode))}"  # real-time signals have no names


def pickles_tasks(start: Any) -> bool:
    """Return whether processes of a context (a name, a context, None for the default) get arguments through a pipe."""
    name = start if isinstance(start, str) else get_start_method() if start is None else start.get_start_method()
    return name != "fork"


class TaskArgument(ExitStack):
    """A placeholder for a value in the arguments of processes that are started in the `with` block.

    The started process receives the value itself.
    """

    def __init__(self, value: Any) -> None:
        super().__init__()
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        if context.get_spawning_popen() is None:
            raise TypeError("a task's argument can be pickled only for a process that is being started")
        # Open until the process has its own descriptor of it.
        file = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
        file.flush()
        return _receive, (reduction.DupFd(file.fileno()),)


def _receive(descriptor: Any) -> Any:
    with os.fdopen(descriptor.detach(), "rb") as file:
        file.seek(0)  # the position is shared with the process that wrote the file
        return pickle.load(file)  # noqa: S301 -- as multiprocessing does: the parent process wrote it
