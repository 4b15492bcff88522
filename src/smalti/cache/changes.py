"""Noticing that a mapped file was changed by others, by its inode, size and modification time. Reads no contents.

A file that is cut short under a map ends the process by SIGBUS when a page behind its new end is read, and one that is
rewritten in place gives samples of both contents. So files are compared before each batch. What remains is a file that
is cut short, or rewritten, while a batch is gathered from it: a window of about a millisecond for each batch.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKS_PER_SECOND = 2_000.0
"""Files that are compared per second at most: about one percent of a core, at some microseconds each."""
_SAVED_SECONDS = 2.0
"""Time whose comparisons may be made at once, at the start and after a pause."""
_SKIPPED_CALLS = 63
"""Samples read one by one before the clock is looked at again: looking takes a tenth of the time of such a read."""


@dataclass(frozen=True)
class FileState:
    """What tells that a file was changed."""

    path: str
    device: int
    inode: int
    num_bytes: int
    time: int
    """Of the last modification, nanoseconds."""


States = tuple[FileState, ...]


def states_of(paths: Sequence[Path]) -> States:
    """Return the states in which the files are now.

    Raises:
        OSError: a file cannot be looked at.
    """
    states = []
    for path in map(os.fspath, paths):
        found = os.stat(path)  # noqa: PTH116 -- links are followed: what counts is the content
        states.append(FileState(path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))
    return tuple(states)


def are_changed(states: States) -> bool:
    """Return whether any of the files is not as it was. One that was unlinked is: its map stays good."""
    for state in states:
        try:
            found = os.stat(state.path)  # noqa: PTH116
        except FileNotFoundError:
            continue
        except OSError:
            return True  # whoever opens it again says why
        if found.st_mtime_ns != state.time or found.st_size != state.num_bytes or found.st_ino != state.inode:
            return True
    return False


def is_rewritten(before: States, now: States) -> bool:
    """Return whether any file is still the same one and has other contents, not replaced by another file."""
    return any(
        was != each and (was.device, was.inode) == (each.device, each.inode)
        for was, each in zip(before, now, strict=True)
    )


class CheckBudget:
    """How many files may be compared now, so that it costs a percent of the time at most.

    A loop that does nothing but read compares only some of its files. One that takes its time, as any training does,
    compares all of them. Not exact where several threads ask at once.

    Args:
        clock: Seconds from any fixed point.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._due, self._skipped = clock, -math.inf, 0
        """`due`: when so much time has passed that another comparison may be made."""

    def allows(self, count: int) -> bool:
        """Return whether so many files may be compared, and count them."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = max(self._due, now - _SAVED_SECONDS) + count / CHECKS_PER_SECOND
        return True

    def allows_one(self) -> bool:
        """Return whether one file may be compared; while none may, it looks at the clock every few calls only."""
        if self._skipped:
            self._skipped -= 1
            return False
        if self.allows(1):
            return True
        self._skipped = _SKIPPED_CALLS
        return False
