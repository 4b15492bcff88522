"""The file descriptors that all caches of this process hold: one for each mapped shard.

A process that has none left gets `EMFILE` at any call that opens something, its own code included. So all caches
together take half of what it may open at most; and when one of them gets the error all the same, they let go of half of
their maps, and the call is made again.
"""

import errno
import resource
import sys
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

_EXHAUSTED = {errno.EMFILE, errno.ENFILE}


class Holder(Protocol):
    """What holds descriptors that it can do without."""

    @property
    def num_held(self) -> int:
        """How many it holds."""

    def shed(self) -> int:
        """Let go of some of them, and return how many."""


_holders: dict[int, "weakref.ref[Holder]"] = {}


def register(holder: Holder) -> None:
    """Have `holder` asked to shed when descriptors run out, for as long as it lives."""
    number = id(holder)
    _holders[number] = weakref.ref(holder, lambda _: _holders.pop(number, None))


def detect_most_held() -> int:
    """Return how many descriptors all caches may hold: half of the files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // 2


def num_held() -> int:
    """Return how many descriptors all holders have."""
    living = [reference() for reference in list(_holders.values())]
    return sum(holder.num_held for holder in living if holder is not None)


def shed(*, but: Holder | None = None) -> int:
    """Ask all holders, all `but` one, to let go of descriptors; return how many they let go."""
    living = [reference() for reference in list(_holders.values())]
    return sum(holder.shed() for holder in living if holder is not None and holder is not but)


def is_exhausted(error: BaseException | None) -> bool:
    """Return whether an error, or what caused it, says that no descriptor is left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _EXHAUSTED:
            return True
        error = error.__cause__
    return False


def with_descriptors(call: Callable[[], T]) -> T:
    """Return what `call` returns; when it finds no descriptor left, caches shed some, and it is called again.

    Raises:
        BaseException: what `call` raised, once nothing is left to shed.
    """
    while True:
        try:
            return call()
        except OSError as error:  # noqa: PERF203 -- at most a few rounds
            if not is_exhausted(error) or not shed():
                raise
