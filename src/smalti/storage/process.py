"""Values that belong to one process: made on first use, made again after a fork, never pickled.

Clients of object stores hold sockets, threads and event loops that a forked child must not touch.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_making = threading.RLock()
_inherited: list[Any] = []
"""What a fork copied of its parent's values: let go of, they would close connections in threads that stayed behind."""


def _after_fork_in_child() -> None:
    # A thread of the parent may have held either lock at the moment of the fork; in the child nobody would release it.
    global _making  # noqa: PLW0603 -- one lock per process is the point
    _making = threading.RLock()
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:
        asyn.reset_lock()  # fsspec's own hook clears a variable of another name and leaves its lock held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class PerProcess(Generic[T]):
    """A value that each process makes for itself on first use; thread-safe, picklable when `make` is."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._slot: tuple[int, T] | None = None

    def get(self) -> T:
        """This process's value."""
        slot = self._slot
        if slot is not None and slot[0] == os.getpid():
            return slot[1]
        with _making:
            slot = self._slot
            if slot is None or slot[0] != os.getpid():
                if slot is not None:
                    _inherited.append(slot)
                slot = (os.getpid(), self._make())
                self._slot = slot
            return slot[1]

    def peek(self) -> T | None:
        """This process's value if it was made already."""
        slot = self._slot
        return slot[1] if slot is not None and slot[0] == os.getpid() else None

    def renew(self, old: T) -> None:
        """Forget the value, if it is still this one; the next `get` makes another."""
        with _making:
            if self._slot is not None and self._slot[1] is old:
                self._slot = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_slot": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
