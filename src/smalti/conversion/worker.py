"""One process that runs tasks of a conversion, one after the other, for the process that started it.

It is started as `python -c`, not by `multiprocessing`: the program that converts is not imported again, so that a
script needs no `if __name__ == "__main__"`. It ends with its parent, and leaves no shards if it is asked to end.
"""

import contextlib
import pickle
import signal
import sys
import time
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

import pyarrow as pa

from smalti.conversion.job import Report
from smalti.errors import SmaltiError
from smalti.process import end_with_parent
from smalti.writer.tables.plan import WritePlan

_REPORT_SECONDS = 0.25
DONE, FAILED, ROWS = "done", "failed", "rows"
"""Kinds of messages to the parent."""


def main(descriptor: int, parent: int) -> None:
    """Run the tasks that arrive on a connection until it is closed. Blocks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and decides
    signal.signal(signal.SIGTERM, _end)
    end_with_parent(parent)
    pa.set_cpu_count(1)  # the other cores have processes of their own
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _serve(connection)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to remove


def _end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001  the interface of signals
    sys.exit(128 + number)


def _serve(connection: Connection) -> None:
    plan, plan_fault = _receive(connection)
    while True:
        message, fault = _receive(connection)  # until the parent closes its end, or is gone
        fault = plan_fault or fault
        connection.send((FAILED, fault) if fault is not None else _outcome(message, plan, _Reports(connection)))


def _receive(connection: Connection) -> tuple[Any, SmaltiError | None]:
    """Return a message of the parent, or the error that this process cannot load it."""
    try:
        return connection.recv(), None
    except (ImportError, AttributeError, pickle.UnpicklingError) as error:
        return None, SmaltiError(
            f"a process of the conversion cannot load the source or `transform`: {error}. Define it in a module that "
            f"can be imported, or use processes=1"
        )


def _outcome(message: Any, plan: WritePlan, report: Report) -> tuple[str, Any]:
    """Return the answer of a task, or its error, for the parent."""
    work, attempt = message
    try:
        return DONE, work(plan, attempt, report)
    except Exception as error:  # noqa: BLE001  the parent raises it
        return FAILED, _portable(error)


class _Reports:
    """Sends the number of rows that a task has read, not more often than a person can follow."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._due = 0.0

    def __call__(self, rows: int) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _REPORT_SECONDS
            self._connection.send((ROWS, rows))


def _portable(error: Exception) -> Exception:
    """Return the error, or its text if the parent might not be able to load it."""
    if not isinstance(error, SmaltiError) and type(error).__module__ != "builtins":
        return SmaltiError(f"{type(error).__name__}: {error}")
    try:
        pickle.dumps(error)
    except Exception:  # noqa: BLE001  anything can go wrong in pickling what an error carries
        return SmaltiError(f"{type(error).__name__}: {error}")
    return error
