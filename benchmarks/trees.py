"""What a process and all below it take, from /proc; nothing where there is none."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """Of a process, those that live."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc", str(pid), "task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def tree(pid: int, without: int | None = None) -> Iterator[int]:
    """A process and all below it, but for one of them and those below that."""
    if pid != without:
        yield pid
        for child in children(pid):
            yield from tree(child, without)


def tree_rss(pid: int, without: int | None = None) -> int:
    """Resident bytes; pages that several share count in each."""
    pages = 0
    for each in tree(pid, without):
        with suppress(OSError, ValueError, IndexError):
            pages += int(Path("/proc", str(each), "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int, without: int | None = None) -> float:
    """User and system time, and that of children which have ended and were waited for."""
    ticks = 0
    for each in tree(pid, without):
        with suppress(OSError):
            # The name, in brackets, may hold anything; utime is the 12th field after it.
            fields = Path("/proc", str(each), "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")
