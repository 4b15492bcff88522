"""Leases: files in which each process announces the shards that it will read soon, so that others do not evict them.

A process holds an exclusive lock on its lease file. The kernel releases the lock when the process dies, so an unlocked
lease is stale. Leases contain no timestamps, and clocks do not have to agree.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from smalti.cache.files import LEASES, is_held
from smalti.cache.locking import register_lock, unregister_lock

_MAX_CREATE_ATTEMPTS = 5  # a sweep by another process may remove the new file before this one locks it


@dataclass(frozen=True)
class LeaseContents:
    """The shards that one process will read soon."""

    order: str = ""
    """Identifies the order that it reads; processes that read the same one count the same steps."""
    current_step: int = 0
    """Step that it is reading; updated at every step."""
    next_use: Mapping[str, int] = field(default_factory=dict)
    """Step of the next use by file name, relative to the cache folder; updated occasionally, so entries may be past."""


class Lease:
    """The lease of this process on one cache folder; its file is created by the first `renew`.

    Args:
        root: The cache folder.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / LEASES
        self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
        self._descriptor = -1
        self._pid = os.getpid()

    def renew(self, contents: LeaseContents) -> None:
        """Write the lease. Best effort: a failed write is ignored and leaves the shards evictable."""
        body = json.dumps({"order": contents.order, "soon": dict(contents.next_use)}).encode()
        text = _step_line(contents.current_step) + body + b"\n"
        with suppress(OSError):
            if self._descriptor < 0 or not (self._folder / self.name).exists():
                self._create()
            os.pwrite(self._descriptor, text, 0)  # a concurrent reader stops at the end of the line
            os.ftruncate(self._descriptor, len(text))

    def advance(self, step: int) -> None:
        """Record the current step without rewriting the rest. Best effort."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                os.pwrite(self._descriptor, _step_line(step), 0)

    def release(self) -> None:
        """Remove the lease file and release its lock."""
        if self._descriptor >= 0 and self._pid == os.getpid():
            with suppress(OSError):
                (self._folder / self.name).unlink(missing_ok=True)
                read_leases(self._folder.parent)  # removes stale ones
                self._folder.rmdir()
            unregister_lock(self._descriptor)
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = -1

    def _create(self) -> None:
        self.release()
        for _ in range(_MAX_CREATE_ATTEMPTS):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            read_leases(self._folder.parent)  # removes stale ones
            self.name = f"{os.getpid()}.{secrets.token_hex(8)}"
            self._descriptor = _create_locked(self._folder / self.name)
            if self._descriptor >= 0:
                return


def _create_locked(path: Path) -> int:
    """Create a file and lock it; return its descriptor, or -1 if another process removed it as stale in between."""
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
    register_lock(descriptor)
    return descriptor


def read_leases(root: Path, own: str | None = None) -> list[LeaseContents]:
    """Return the leases of other living processes on a cache folder, and remove stale ones.

    Args:
        root: The cache folder.
        own: File name of this process's own lease, which is left out.
    """
    found = []
    for path in lease_paths(root):
        if path.name == own:
            continue
        if not is_held(path):
            with suppress(OSError):  # a folder is not a lease, and may stay
                path.unlink(missing_ok=True)
            continue
        found.append(_read(path))
    return found


def lease_paths(root: Path) -> list[Path]:
    """Return the files of all leases on a cache folder, stale ones included."""
    try:
        return sorted((root / LEASES).iterdir())
    except OSError:
        return []


def _step_line(step: int) -> bytes:
    return b"%020d\n" % step  # of constant length: it is overwritten in place


def _read(path: Path) -> LeaseContents:
    """Return the contents of a lease; empty while it is being renewed, and for a file that is not a lease."""
    try:
        first, body, *_ = path.read_bytes().split(b"\n", 2)
        step, fields = int(first), json.loads(body)
        order, next_use = fields["order"], fields["soon"]
        if type(order) is str and isinstance(next_use, dict):
            return LeaseContents(order, step, {name: use for name, use in next_use.items() if type(use) is int})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return LeaseContents()
