"""Killing the process, or removing a file, at a chosen step of the cache's work on its folder.

For forked children only: Python's audit hooks see every opened, renamed and removed file, and cannot be removed.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.truncate", "fcntl.flock"}
"""Audit events that count as steps; `fsync`, which has no event, is added to them."""


def on_steps(folder: Path, seen: Callable[[str, Path | None, Any], None]) -> None:
    """Call `seen` before every step below a folder or on an open file in this process, and after every fsync."""

    def look(event: str, args: tuple[Any, ...]) -> None:
        if event not in STEPS or not args:
            return
        place = args[0]
        if isinstance(place, int):
            seen(event, None, args)
        elif place is not None and Path(os.fsdecode(place)).is_relative_to(folder):
            seen(event, Path(os.fsdecode(place)), args)

    fsync = os.fsync

    def watched(descriptor: int) -> None:
        seen("before fsync", None, descriptor)
        fsync(descriptor)
        seen("after fsync", None, descriptor)

    os.fsync = watched
    sys.addaudithook(look)


def record(folder: Path) -> list[str]:
    """Return a list to which the names of all further steps are appended."""
    steps: list[str] = []
    on_steps(folder, lambda event, *_: steps.append(event))
    return steps


def die_before(folder: Path, number: int) -> None:
    """Kill this process just before a step, counted from 1."""
    count = iter(range(1, number + 1))

    def seen(*_: Any) -> None:
        if next(count, number) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    on_steps(folder, seen)


def lose_before_opening(folder: Path, chosen: Callable[[int], bool]) -> list[Path]:
    """Remove copies just before they are opened for reading, at chosen openings; return a list of the removed ones."""
    opened, lost = [], []

    def seen(event: str, path: Path | None, args: Any) -> None:
        is_read = event == "open" and path is not None and not path.name.startswith(".") and path.is_file()
        if is_read and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY):
            opened.append(path)
            if chosen(len(opened)):
                lost.append(path)
                path.unlink()

    on_steps(folder, seen)
    return lost
