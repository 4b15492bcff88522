"""The file descriptors that all caches of this process hold: one for each mapped shard.

A process that has none left gets `EMFILE` at any call that opens something. Then the caches that are not at work let go
of half of their maps, and the call is made again.
"""

import errno
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

_EXHAUSTED = {errno.EMFILE, errno.ENFILE}


class Holder(Protocol):
    """What holds descriptors that it can do without."""

    def shed(self) -> int:
        """Let go of some of them, and return how many."""


_holders: dict[int, "weakref.ref[Holder]"] = {}


def register(holder: Holder) -> None:
    """Have `holder` asked to shed when descriptors run out, for as long as it lives."""
    number = id(holder)
    _holders[number] = weakref.ref(holder, lambda _: _holders.pop(number, None))


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
