"""Processes of the soak, told by a mark in their environment, which what they start inherits; what they hold."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "SMALTI_SOAK"
_KIB = 1024


def marked(run: str) -> list[int]:
    """Ids of all living processes of a run but this one."""
    wanted, found = f"{MARK}={run}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return sorted(found)


def command_of(pid: int) -> str:
    """The command line of a process; "" when it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def children(pid: int) -> list[int]:
    """Ids of a process's children, zombies and Python's own helper left out."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if "resource_tracker" not in (said := command_of(child)) and said]


@dataclass(frozen=True)
class Held:
    """What a process holds at one moment."""

    at: float
    """Seconds since 1970."""
    descriptors: int
    anonymous: int
    """Bytes of memory of its own: without mapped files, which the cache has too."""
    resident: int
    """Bytes, with mapped files."""


def held(pid: int, at: float) -> Held | None:
    """What it holds; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        sizes = [int(fields[name].split()[0]) * _KIB for name in ("RssAnon", "VmRSS")]
    except (OSError, KeyError):
        return None
    return Held(at, descriptors, *sizes)


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line through the points by least squares; 0 where there are not two."""
    if len(points) < 2:
        return 0.0
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def send(pid: int, number: int) -> bool:
    """Sends a signal; whether the process was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(pid: int) -> bool:
    """Kills a process and all of its group, which may outlive it; whether there was anybody."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return send(pid, signal.SIGKILL)  # it has not made its group yet, or is gone
    return True
