"""Board: a JSON mapping that processes share and change one at a time, in a file without a name.

The content lies behind a header that says where. A change is written beside the old content, and the header last, so
that a process killed in the middle leaves the old content.
"""

import fcntl
import json
import os
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

from smalti.errors import SmaltiError
from smalti.storage.retry import Deadline

_HEADER = struct.Struct("<QQQ")  # how often it was changed, where the content begins, its bytes
_LOCK_SECONDS = 60.0  # the lock is held for microseconds; who holds it longer was stopped
_PAUSE_SECONDS = 0.001


class Board:
    """The mapping; picklable into a process that is being started, which then has the same one.

    Args:
        descriptor: of the file; by default of a new one.
        lock_seconds: longest wait for another process or thread.
    """

    def __init__(self, descriptor: int | None = None, *, lock_seconds: float = _LOCK_SECONDS) -> None:
        self._lock_seconds = lock_seconds
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        self._threads = threading.Lock()
        self._handles: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    @contextmanager
    def content(self) -> Iterator[dict[str, Any]]:
        """Give the mapping while no other process or thread changes it; changes made in the block are kept.

        Raises:
            SmaltiError: another process has kept it for too long.
        """
        deadline = Deadline(self._lock_seconds)
        if not self._threads.acquire(timeout=self._lock_seconds):
            raise self._stuck()
        try:
            # The kernel frees the lock of a process that dies.
            while not self._try_lock():
                if deadline.passed():
                    raise self._stuck()
                time.sleep(_PAUSE_SECONDS)
            try:
                changes, begin, old = self._read()
                content = json.loads(old)
                yield content
                new = json.dumps(content).encode()
                if new != old:
                    self._write(changes + 1, begin, begin + len(old), new)
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    @property
    def changes(self) -> int:
        """How often the content was changed; read without the lock."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        return int(_HEADER.unpack(header)[0]) if header else 0

    def forked(self) -> "Board":
        """Return the same board for a forked process, which may have copied the lock of threads while it was held."""
        self._threads = threading.Lock()
        return self

    def _stuck(self) -> SmaltiError:
        return SmaltiError(
            f"another process of this program has kept the place of its datasets locked for {self._lock_seconds:g} s: "
            "a loader worker or the program was stopped (SIGSTOP, a debugger). Let it go on, or end it."
        )

    def _try_lock(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _read(self) -> tuple[int, int, bytes]:
        header = os.pread(self._descriptor, _HEADER.size, 0)
        if not header:
            return 0, _HEADER.size, b"{}"
        changes, begin, length = _HEADER.unpack(header)
        return changes, begin, os.pread(self._descriptor, length, begin)

    def _write(self, changes: int, begin: int, end: int, new: bytes) -> None:
        place = _HEADER.size if _HEADER.size + len(new) <= begin else end
        os.pwrite(self._descriptor, new, place)
        os.pwrite(self._descriptor, _HEADER.pack(changes, place, len(new)), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        popen = context.get_spawning_popen()
        if popen is None:
            raise TypeError("a board goes to a process that is being started, and nowhere else")
        # Once for each process: a descriptor that is passed on twice cannot be passed on at all.
        handle = self._handles.get(popen)
        if handle is None:
            handle = self._handles[popen] = reduction.DupFd(self._descriptor)
        return _received, (handle,)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("smalti-board", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Process:
    """The boards of this process."""

    own: Board | None = None
    """For the workers of this process."""
    parent: Board | None = None
    """Of the process that started this one."""


def own_board() -> Board:
    """Return the board for the workers of this process; made when first asked for."""
    if _Process.own is None:
        _Process.own = Board()
    return _Process.own


def parent_board() -> Board | None:
    """Return the board of the process that started this one; None if it had none."""
    return _Process.parent


def _received(handle: Any) -> Board:
    if _Process.parent is None:
        _Process.parent = Board(handle.detach())
    return _Process.parent


def _after_fork() -> None:
    own, _Process.own = _Process.own, None
    _Process.parent = None if own is None else own.forked()


os.register_at_fork(after_in_child=_after_fork)
