"""Board: a JSON mapping in an unnamed file, which processes share and change one at a time.

A header contains the place of the content. A change is written next to the old content, and the header last, so that a
process that is killed while it writes leaves the old content.
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

_HEADER = struct.Struct("<QQQ")  # number of changes; offset and length of the content in bytes
_LOCK_SECONDS = 60.0  # the lock is held for microseconds; a process that holds it longer was stopped
_PAUSE_SECONDS = 0.001  # between two attempts to lock


class Board:
    """A shared mapping; picklable into a process that is being started, which then shares it.

    Args:
        descriptor: descriptor of the file; by default of a new one.
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
        """Yield the mapping under an exclusive lock; changes made in the block are saved.

        Raises:
            SmaltiError: another process has held the lock for too long.
        """
        deadline = Deadline(self._lock_seconds)
        if not self._threads.acquire(timeout=self._lock_seconds):
            raise self._stuck()
        try:
            # The kernel releases the lock of a process that dies.
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
        """Number of changes of the content; read without the lock."""
        header = os.pread(self._descriptor, _HEADER.size, 0)
        return int(_HEADER.unpack(header)[0]) if header else 0

    def forked(self) -> "Board":
        """Return the board for use in a forked process, with a new lock for threads: the copied one may be locked."""
        self._threads = threading.Lock()
        return self

    def _stuck(self) -> SmaltiError:
        return SmaltiError(
            f"another process of this program has locked the place of its datasets for {self._lock_seconds:g} s: a "
            "loader worker or the program was stopped (SIGSTOP, a debugger). Resume it, or end it."
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
            raise TypeError("a board can be pickled only for a process that is being started")
        # Once for each process: multiprocessing refuses to pass a descriptor twice.
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
    """The boards that this process uses."""

    own: Board | None = None
    """Board of this process for its workers."""
    parent: Board | None = None
    """Board of the process that started this one."""


def own_board() -> Board:
    """Return the board of this process for its workers; created on first use."""
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
