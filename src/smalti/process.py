"""Facts of one process: values that a fork does not share, the end with the parent, variables, the children's Python.

`PerProcess` is for clients of object stores, which hold sockets, threads and event loops: a forked child must not use
them. Imports no PySpark.
"""

import ctypes
import encodings.idna  # noqa: F401 -- sockets import it at the first connection: see `_before_fork`
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_creation_lock = threading.RLock()
_forking = threading.local()
MAX_FORK_WAIT_SECONDS = 10.0
"""Time that a fork waits for another thread to create a value."""
_inherited: list[Any] = []
"""Copies of the parent's values after a fork, kept alive: their finalizers use threads that only the parent has."""
_num_pauses = 0
"""Pauses of the garbage collector that have not ended, of all threads."""
POLL_SECONDS = 1.0
GRACE_SECONDS = 10.0
"""Time for a process whose parent has died to save its work."""
_PR_SET_PDEATHSIG = 1
_starter: int | None = None
"""The process with which this one ends, if it does."""
_DEFAULT_PYTHON = "python3"  # of PySpark's workers, 3.5 to 4.3, if PYSPARK_PYTHON is not set


def _before_fork() -> None:
    # Another thread may be creating a client, and import modules for it: in the child, their locks would stay held.
    # Modules that the first request of a client imports are therefore imported before.
    _forking.holds_lock = _creation_lock.acquire(timeout=MAX_FORK_WAIT_SECONDS)


def _after_fork_in_parent() -> None:
    if _forking.holds_lock:
        _creation_lock.release()


def _after_fork_in_child() -> None:
    # A thread of the parent may have held either lock during the fork; in the child it would never be released.
    global _creation_lock, _num_pauses  # noqa: PLW0603 -- one lock per process is the point
    _creation_lock = threading.RLock()
    if _num_pauses:  # the thread that would end the pause is not in the child
        _num_pauses = 0
        gc.enable()
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()  # fsspec's own hook clears a variable of another name and leaves its lock held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause Python's garbage collector, for code that makes many objects that stay.

    They would set off a collection of the whole heap, which takes 0.1 s in a process that has imported torch.
    """
    global _num_pauses  # noqa: PLW0603 -- the collector is one for the process
    was_enabled = gc.isenabled()
    _num_pauses += was_enabled
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            _num_pauses = max(0, _num_pauses - 1)
            gc.enable()


class PerProcess(Generic[T]):
    """A value that each process creates on first use; thread-safe, and picklable if `make` is."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._slot: tuple[int, T] | None = None

    def get(self) -> T:
        """Return this process's value; creates it on the first call."""
        slot = self._slot
        if slot is not None and slot[0] == os.getpid():
            return slot[1]
        with _creation_lock:
            slot = self._slot
            if slot is None or slot[0] != os.getpid():
                if slot is not None:
                    _inherited.append(slot)
                slot = (os.getpid(), self._make())
                self._slot = slot
            return slot[1]

    def peek(self) -> T | None:
        """Return this process's value if it exists, else None."""
        slot = self._slot
        return slot[1] if slot is not None and slot[0] == os.getpid() else None

    def renew(self, old: T) -> None:
        """Discard the value if it is still `old`; the next `get` creates another."""
        with _creation_lock:
            if self._slot is not None and self._slot[1] is old:
                self._slot = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_slot": None}


def request_death_signal(number: signal.Signals) -> None:
    """Ask the kernel to send `number` to this process when its parent dies; a no-op except on Linux.

    The kernel sends it when the *thread* that started this process ends, so that thread has to wait for this process.
    The death of a parent before the call goes unnoticed: check for it after the call.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def end_with_parent(parent: int) -> None:
    """End this process when process `parent`, which started it, has died.

    The process gets SIGTERM, so that it can save its work, and exits `GRACE_SECONDS` later. On Linux the kernel sends
    SIGTERM at once; on all systems a thread checks for the parent every `POLL_SECONDS`.
    """
    global _starter  # noqa: PLW0603 -- a process has one parent
    _starter = parent
    request_death_signal(signal.SIGTERM)
    threading.Thread(target=_end_after, args=(parent,), name="smalti-orphan-watch", daemon=True).start()


def is_orphan() -> bool:
    """Return whether this process ends because its parent has died; see `end_with_parent`."""
    return _starter is not None and os.getppid() != _starter


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the body."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_connect(spark: Any) -> bool:
    """Return whether a Spark session is one of Spark Connect, which has no `sparkContext`."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def use_driver_python(spark: Any) -> None:
    """Make Python workers that a local master starts from now on run the interpreter of this process.

    PySpark uses PYSPARK_PYTHON, else the first `python3` on PATH: in a virtual environment that is not activated, that
    is another Python, of another version or without the packages. A no-op if PYSPARK_PYTHON is set, if the session has
    another interpreter already, and on a cluster or Spark Connect, whose workers are on other machines.
    """
    if is_connect(spark) or not sys.executable:
        return
    context = spark.sparkContext
    chosen = os.environ.get("PYSPARK_PYTHON") or spark.conf.get("spark.pyspark.python", None)
    if context.master.startswith("local") and not chosen and context.pythonExec == _DEFAULT_PYTHON:
        context.pythonExec = sys.executable
