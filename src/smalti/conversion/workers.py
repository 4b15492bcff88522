"""Processes that run the tasks of a conversion, and the process that starts, feeds and ends them.

Intended behaviour; anything else is a bug:
1. Every task is answered once, or an error is raised that names it.
2. A process that dies is replaced and its task repeated, up to `MAX_ATTEMPTS` times.
3. No process outlives `run_tasks`, nor the process that started it.
4. Every wait ends: a process that gives no sign for `STALL_SECONDS` is an error.

A process runs `main`. It is started as `python -c`, not by `multiprocessing`: the program that converts is not imported
again, so that a script needs no `if __name__ == "__main__"`. If it is asked to end, it leaves no shards.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pyarrow as pa

from smalti.errors import MissingDependency, SmaltiError
from smalti.process import end_with_parent
from smalti.writer.tables.plan import Answers, Attempt, WritePlan

MAX_ATTEMPTS = 3
STALL_SECONDS = 1800.0
_GRACE_SECONDS = 15.0
_POLL_SECONDS = 1.0
_REPORT_SECONDS = 0.25
_DONE, _FAILED, _ROWS = "done", "failed", "rows"
"""Kinds of messages of a process to its parent."""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from smalti.conversion.workers import main; main({descriptor}, {parent})"
)
Report = Callable[[int], None]
"""Receives the number of rows that a task has read so far."""
Work = Callable[[WritePlan, Attempt, Report], dict[str, Any]]


@dataclass
class WorkerTask:
    """One piece of work, and what became of it so far."""

    number: int
    name: str
    """Name for messages."""
    work: Work
    """Picklable."""
    num_bytes: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    """All attempts, the last one last."""
    rows: int = 0
    """Rows that the last attempt has read."""

    def begin(self) -> Attempt:
        """Return a new attempt."""
        self.attempts.append(Attempt.new(self.number))
        self.rows = 0
        return self.attempts[-1]


def run_tasks(
    plan: WritePlan,
    tasks: Sequence[WorkerTask],
    processes: int,
    answers: Answers,
    lost: list[Attempt],
    on_change: Callable[[], None],
) -> None:
    """Run tasks in up to `processes` processes, or in this one if a single one is asked for or needed; blocks.

    Args:
        plan: The plan of all tasks.
        tasks: What to do.
        processes: Processes, at most.
        answers: Receives the answer of each task, as they come.
        lost: Receives the attempts whose processes died, or were ended before their answers were read; no answer
            names what they stored.
        on_change: Called when a task has read rows, and when it is done.

    Raises:
        SmaltiError: What a task raised; or its processes died, or gave no sign for too long; or the plan's transform
            cannot be sent to another process.
    """
    if processes > 1 and len(tasks) > 1:
        workers = _Workers(_dumped(plan), min(processes, len(tasks)), answers, lost, on_change)
        try:
            workers.run(tasks)
        finally:
            workers.end()
        return
    for task in tasks:

        def report(rows: int, task: WorkerTask = task) -> None:
            task.rows = rows
            on_change()

        attempt = task.begin()
        answers.append((attempt, task.work(plan, attempt, report)))
        on_change()


class _Worker:
    """One process and the connection to it."""

    def __init__(self, plan: bytes) -> None:
        self.connection, theirs = Pipe()
        program = _PROGRAM.format(path=sys.path, descriptor=theirs.fileno(), parent=os.getpid())
        try:
            self.process = subprocess.Popen(  # noqa: S603  this Python
                [sys.executable, "-c", program], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        finally:
            theirs.close()
        self.task: WorkerTask | None = None
        self.last_sign = time.monotonic()
        self._send(plan)

    def give(self, task: WorkerTask) -> None:
        """Send a task."""
        self.task, self.last_sign = task, time.monotonic()
        self._send(pickle.dumps((task.work, task.begin())))

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is seen when it is waited for
            self.connection.send_bytes(message)


@dataclass
class _Workers:
    """Up to `count` processes that run tasks by one plan; used by one thread."""

    plan: bytes
    count: int
    answers: Answers
    lost: list[Attempt]
    on_change: Callable[[], None]
    _workers: list[_Worker] = field(default_factory=list)

    def run(self, tasks: Sequence[WorkerTask]) -> None:
        """Run tasks, the first ones first."""
        waiting = deque(tasks)
        while waiting or any(worker.task for worker in self._workers):
            idle = [worker for worker in self._workers if worker.task is None]
            while waiting and (idle or len(self._workers) < self.count):
                if not idle:
                    idle.append(_Worker(self.plan))
                    self._workers.append(idle[0])
                idle.pop(0).give(waiting.popleft())
            busy = [(worker, worker.task) for worker in self._workers if worker.task is not None]
            ready = wait([worker.connection for worker, _ in busy], _POLL_SECONDS)
            for worker, task in busy:
                if worker.connection in ready:
                    self._receive(worker, task, waiting)
                elif time.monotonic() - worker.last_sign > STALL_SECONDS:
                    raise SmaltiError(
                        f"{task.name}: its process {worker.process.pid} gave no sign for {STALL_SECONDS:.0f} s; "
                        f"nothing was published"
                    )

    def _receive(self, worker: _Worker, task: WorkerTask, waiting: deque[WorkerTask]) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            self._bury(worker, task)
            waiting.appendleft(task)
            return
        worker.last_sign = time.monotonic()
        if kind == _ROWS:
            task.rows = value
        else:
            worker.task = None
            if kind == _FAILED:
                raise value
            self.answers.append((task.attempts[-1], value))
        self.on_change()

    def _bury(self, worker: _Worker, task: WorkerTask) -> None:
        """Remove a process that died; its task can be given to another.

        Raises:
            SmaltiError: It was the last attempt.
        """
        self._workers.remove(worker)
        worker.connection.close()
        _end_all([worker])
        self.lost.append(task.attempts[-1])
        if len(task.attempts) >= MAX_ATTEMPTS:
            raise SmaltiError(
                f"{task.name}: the processes that wrote it ended {MAX_ATTEMPTS} times, the last one "
                f"{_ending_of(worker.process.returncode)}; nothing was published. If memory ran out, use fewer "
                f"`processes` or a smaller `size_limit`"
            )

    def end(self) -> None:
        """End all processes: idle ones end as their connection closes, others clean up first."""
        for worker in self._workers:
            if worker.task is None:
                worker.connection.close()
        _end_all(self._workers)
        for worker in self._workers:
            if worker.task is not None:
                self.lost.append(worker.task.attempts[-1])
                worker.connection.close()


def _end_all(workers: Sequence[_Worker]) -> None:
    """End processes: busy ones by a signal that lets them remove their shards, then all by one that does not."""
    for worker in workers:
        if worker.task is not None:
            worker.process.terminate()
    until = time.monotonic() + _GRACE_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:  # noqa: PERF203 -- each is waited for
            worker.process.kill()
            worker.process.wait(_GRACE_SECONDS)


def _ending_of(code: int | None) -> str:
    if code is None or code >= 0:
        return f"with exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _dumped(plan: WritePlan) -> bytes:
    """Return the plan pickled: a transform of `__main__`, such as a notebook's, by value.

    Raises:
        MissingDependency: There is such a function, and cloudpickle is not installed.
    """
    transform = plan.input.transform
    if transform is None:
        return pickle.dumps(plan)
    try:
        import cloudpickle
    except ImportError:
        if getattr(transform.function, "__module__", "") != "__main__":
            return pickle.dumps(plan)
        raise MissingDependency(
            "`transform` is defined in the program itself, which other processes do not import: install cloudpickle, "
            "move the function to a module, or use processes=1",
            module="cloudpickle",
        ) from None
    dumped: bytes = cloudpickle.dumps(plan)
    return dumped


def main(descriptor: int, parent: int) -> None:
    """Run the tasks that arrive on a connection until it is closed. Blocks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    end_with_parent(parent)
    pa.set_cpu_count(1)  # the other cores have processes of their own
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to remove


def _serve(connection: Connection) -> None:
    """Run tasks until the parent closes its end, or is gone."""
    plan, plan_fault = _message_of(connection)
    due = 0.0

    def report(rows: int) -> None:
        """Send the number of rows, not more often than a person can follow."""
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _REPORT_SECONDS
            connection.send((_ROWS, rows))

    while True:
        message, fault = _message_of(connection)
        outcome: tuple[str, Any] = _FAILED, plan_fault or fault
        if outcome[1] is None:
            work, attempt = message
            due = 0.0
            try:
                outcome = _DONE, work(plan, attempt, report)
            except Exception as error:  # noqa: BLE001  the parent raises it
                outcome = _FAILED, _portable(error)
        connection.send(outcome)


def _message_of(connection: Connection) -> tuple[Any, SmaltiError | None]:
    """Return a message of the parent, or the error that this process cannot load it."""
    try:
        return connection.recv(), None
    except (ImportError, AttributeError, pickle.UnpicklingError) as error:
        return None, SmaltiError(
            f"a process of the conversion cannot load the source or `transform`: {error}. Define it in a module that "
            f"can be imported, or use processes=1"
        )


def _portable(error: Exception) -> Exception:
    """Return the error, or its text if the parent might not be able to load it."""
    if isinstance(error, SmaltiError) or type(error).__module__ == "builtins":
        with contextlib.suppress(Exception):  # anything can go wrong in pickling what an error carries
            pickle.dumps(error)
            return error
    return SmaltiError(f"{type(error).__name__}: {error}")
