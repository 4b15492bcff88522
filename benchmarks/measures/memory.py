"""How much memory something took above what the process had before: the imports."""

import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """Counts from where it is made. On Linux, children count as well: the peak of each, pages shared included."""

    def __init__(self) -> None:
        # The kernel remembers the largest size ever; writing a 5 makes it begin anew from the size of now.
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _peak("self")

    def added_mb(self) -> float:
        """The largest resident size since then, less the size of then, MB."""
        return (_peak("self") - self._before + sum(map(_peak, _descendants("self")))) / 1e6


def _peak(process: str) -> int:
    """The largest resident size, bytes; 0 for a process that has ended."""
    with suppress(OSError):
        for line in Path("/proc", process, "status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    if process != "self":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _descendants(process: str) -> Iterator[str]:
    with suppress(OSError):
        for task in Path("/proc", process, "task").iterdir():
            for child in (task / "children").read_text().split():
                yield child
                yield from _descendants(child)
