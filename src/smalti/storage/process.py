"""Values of one process: created on first use, created again after a fork, never pickled.

Clients of object stores hold sockets, threads and event loops, which a forked child must not use.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_creation_lock = threading.RLock()
_inherited: list[Any] = []
"""Copies of the parent's values after a fork, kept alive: their finalizers use threads that only the parent has."""


def _after_fork_in_child() -> None:
    # A thread of the parent may have held either lock during the fork; in the child it would never be released.
    global _creation_lock  # noqa: PLW0603 -- one lock per process is the point
    _creation_lock = threading.RLock()
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()  # fsspec's own hook clears a variable of another name and leaves its lock held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


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
