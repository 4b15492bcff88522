"""What other processes need soon: each that reads under a budget says so in a file, which it holds locked as it lives.

A lease of a dead process is told by its lock, which the kernel has freed; there is no time in it that could be wrong.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from smalti.cache.contents import LEASES, is_held
from smalti.cache.locking import forget_held, hold


class Lease:
    """What this process needs soon of one folder; renewed as it reads on."""

    def __init__(self, root: Path) -> None:
        self._folder = root / LEASES
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        self._descriptor = -1
        self._pid = os.getpid()

    def renew(self, needed: Mapping[str, int]) -> None:
        """Says what is needed: names below the folder, and in how many steps. What cannot be said is not said."""
        text = json.dumps(needed).encode()
        with suppress(OSError):
            if self._descriptor < 0 or not (self._folder / self.name).exists():
                self._open()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)

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
        self._folder.mkdir(mode=0o700, exist_ok=True)
        needed_by_others(self._folder.parent)  # forgets the dead
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        descriptor = os.open(self._folder / self.name, flags, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hold(descriptor)
        self._descriptor = descriptor


def needed_by_others(root: Path, mine: str | None = None) -> dict[str, int]:
    """Names below the folder that other living processes need, and in how many steps; forgets those of dead ones."""
    needed: dict[str, int] = {}
    for path in leases_of(root):
        if path.name == mine:
            continue
        if not is_held(path):
            path.unlink(missing_ok=True)
            continue
        for name, steps in _told(path).items():
            needed[name] = min(needed.get(name, steps), steps)
    return needed


def leases_of(root: Path) -> list[Path]:
    """The files of all leases on the folder, of living processes and of dead ones."""
    try:
        return sorted((root / LEASES).iterdir())
    except OSError:
        return []


def _told(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # it is being renewed at this moment
    return {name: steps for name, steps in found.items() if type(steps) is int} if isinstance(found, dict) else {}
