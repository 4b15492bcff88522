"""Callbacks that do not keep their object alive, so that a dropped cache lets go of its descriptors at once.

A cache is called back by what it owns: without this, both would live until the garbage collector looks, and as long as
any thread of the cache waits for work.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def weakly(method: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls a bound method and holds its object weakly.

    It raises `ReferenceError` once the object is gone.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        found = reference()
        if found is None:
            raise ReferenceError(f"{method_name} is called after its object was dropped")
        return found(*args, **kwargs)

    method_name = getattr(method, "__qualname__", "a method")
    return call


def when_dropped(owner: object, close: Callable[[], Any]) -> None:
    """Call `close`, which must not refer to `owner`, when `owner` is dropped; not in a fork, and not at exit."""
    weakref.finalize(owner, _close_here, close, os.getpid()).atexit = False


def _close_here(close: Callable[[], Any], pid: int) -> None:
    if os.getpid() == pid:  # a fork's copy has none of the threads, and may have inherited a locked lock
        close()
