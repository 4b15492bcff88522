"""What other processes need soon: each that reads under a budget says so in a file, which it holds locked as it lives.

A lease of a dead process is told by its lock, which the kernel has freed; there is no time in it that could be wrong.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from smalti.cache.contents import LEASES, is_held
from smalti.cache.locking import forget_held, hold
from smalti.cache.turns import Place, Seat

_SEAT_NUMBERS = 3
_FIRST_LINE = 63  # bytes
_TRIES = 5  # to get a file that nobody takes for a dead one's


@dataclass(frozen=True)
class Needs:
    """What one process needs soon."""

    order: str = ""
    """Names the order that it reads; processes that read the same one count the same steps."""
    floor: int = 0
    """The step that it is at; told at each."""
    soon: Mapping[str, int] = field(default_factory=dict)
    """Names below the folder, and the step that needs each; told now and then, so that some may be over."""
    place: Place | None = None
    """Where it is, beside others of the same order; told at each shard. None: it does not read now, or has no seat."""
    seat: Seat | None = None
    """Which of the order's readers it is."""


class Lease:
    """What this process needs soon of one folder; renewed as it reads on."""

    def __init__(self, root: Path) -> None:
        self._folder = root / LEASES
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        self._descriptor = -1
        self._pid = os.getpid()

    def renew(self, needs: Needs) -> None:
        """Says what is needed. What cannot be said is not said."""
        seat = None if needs.seat is None else [needs.seat.rank, needs.seat.worker, needs.seat.num_workers]
        told = {"order": needs.order, "soon": dict(needs.soon), "seat": seat}
        text = _first_line(needs.floor, needs.place) + json.dumps(told).encode() + b"\n"
        with suppress(OSError):
            if self._descriptor < 0 or not (self._folder / self.name).exists():
                self._open()
            os.pwrite(self._descriptor, text, 0)  # who looks meanwhile reads to the end of the line
            os.ftruncate(self._descriptor, len(text))

    def reached(self, floor: int, place: Place | None = None) -> None:
        """Says at which step it is, and at which place."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                os.pwrite(self._descriptor, _first_line(floor, place), 0)

    def close(self) -> None:
        """Needs nothing any more."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                (self._folder / self.name).unlink(missing_ok=True)
                needed_by_others(self._folder.parent)  # forgets the dead
                self._folder.rmdir()
            forget_held(self._descriptor)
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> None:
        self.close()
        for _ in range(_TRIES):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            needed_by_others(self._folder.parent)  # forgets the dead
            self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
            self._descriptor = _locked_new(self._folder / self.name)
            if self._descriptor >= 0:
                return


def _locked_new(path: Path) -> int:
    """A new file that is held locked; -1 if somebody looked just then, and took it for a dead one's."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            return -1
        raise
    hold(descriptor)
    return descriptor


def needed_by_others(root: Path, mine: str | None = None) -> list[Needs]:
    """What other living processes need of the folder; forgets those of dead ones."""
    needed = []
    for path in leases_of(root):
        if path.name == mine:
            continue
        if not is_held(path):
            with suppress(OSError):  # a folder may stay: it is nobody's lease
                path.unlink(missing_ok=True)
            continue
        needed.append(_told(path))
    return needed


def first_lines(root: Path) -> list[bytes]:
    """Where the holders of all leases are, to see whether somebody has moved."""
    found = []
    for path in leases_of(root):
        with suppress(OSError), path.open("rb", buffering=0) as file:
            found.append(file.read(_FIRST_LINE))
    return found


def leases_of(root: Path) -> list[Path]:
    """The files of all leases on the folder, of living processes and of dead ones."""
    try:
        return sorted((root / LEASES).iterdir())
    except OSError:
        return []


def _first_line(floor: int, place: Place | None) -> bytes:
    # Always as long: it is written over the one before.
    return b"%020d %020d %020d\n" % (floor, *((-1, -1) if place is None else place))


def _told(path: Path) -> Needs:
    try:
        first, told, *_ = path.read_bytes().split(b"\n", 2)
        floor, step, shard = map(int, first.split())
        found = json.loads(told)
        order, soon, seat = found["order"], found["soon"], found["seat"]
        if type(order) is str and isinstance(soon, dict):
            known = {name: use for name, use in soon.items() if type(use) is int}
            return Needs(order, floor, known, None if step < 0 else (step, shard), _seat(seat))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass  # it is being renewed at this moment, or nothing of ours
    return Needs()


def _seat(told: object) -> Seat | None:
    if isinstance(told, list) and len(told) == _SEAT_NUMBERS and all(type(each) is int for each in told):
        seat = Seat(*told)
        return seat if seat.num_workers > 0 else None
    return None
