"""Lock files with `flock`: one process of a host at a time; the kernel releases a lock when its holder dies."""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from smalti.errors import StoreError, StoreTimeout
from smalti.storage.retry import Deadline, jitter

NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO}
"""Errors of opening a lock file in whose place a link, a socket or the like was put."""
_FIRST_PAUSE = 0.002  # seconds between two attempts at a lock; grows by half each time
_locked: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _close_inherited() -> None:
    # A forked child shares the parent's open lock: if it kept it, the lock would outlive a killed parent.
    for descriptor in list(_locked):
        with suppress(OSError):
            os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_close_inherited)


def register_lock(descriptor: int) -> None:
    """Have forks of this process close the descriptor of a lock, so that they do not keep it."""
    _locked.add(descriptor)


def unregister_lock(descriptor: int) -> None:
    """Record that a lock is about to be released."""
    _locked.discard(descriptor)


class FileLock:
    """An exclusive lock on a path, between processes and threads; a context manager that removes the file on release.

    Args:
        path: The lock file.
        deadline: For waiting for another holder.
        what: The thing that is locked, for messages.
        longest_pause: Seconds between two attempts at most.

    Raises:
        StoreTimeout: another process or thread held it until the deadline.
    """

    def __init__(self, path: Path, deadline: Deadline, what: str, *, longest_pause: float = 0.05) -> None:
        self._path = path
        self._deadline = deadline
        self._what = what
        self._descriptor = -1
        self._longest_pause = longest_pause
        self.is_new = False
        """True if this holder created the file, so that no process was killed while it held the lock."""

    def __enter__(self) -> "FileLock":
        pause = _FIRST_PAUSE
        while True:
            if self._try():
                return self
            if self._deadline.passed():
                raise StoreTimeout(
                    f"{self._what}: another process of this host was fetching it (lock {self._path}) and did "
                    "not finish "
                    f"within {self._deadline.seconds:.0f} s; raise `download_timeout`, or look at that process",
                    path=str(self._path),
                )
            time.sleep(min(pause, self._deadline.left()) * jitter(0.5, 1.0))
            pause = min(pause * 1.5, self._longest_pause)

    @property
    def path(self) -> Path:
        """The lock file."""
        return self._path

    def reserve(self, num_bytes: int) -> None:
        """Reserve bytes for the holder: they are the size of the lock file, which is sparse and takes no space."""
        os.ftruncate(self._descriptor, num_bytes)

    def announce(self, name: str) -> None:
        """Write into the lock file the name of the file that the holder writes now, for `EarlyReader`. Best effort."""
        with suppress(OSError):  # on a full disk: the file is then read when it is complete
            os.pwrite(self._descriptor, name.encode() + b"\0", 0)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        unregister_lock(descriptor)
        # Removed while still locked: a waiting process notices that the name is gone and starts over.
        self._path.unlink(missing_ok=True)
        # Explicitly: a child that was forked in between shares the open file, and closing would not unlock it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _try(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            try:
                descriptor, is_new = os.open(self._path, flags | os.O_EXCL, 0o600), True
            except FileExistsError:
                descriptor, is_new = os.open(self._path, flags, 0o600), False
        except OSError as error:
            if error.errno in NOT_A_FILE:  # a link or the like, in a folder of this user alone
                self._path.unlink(missing_ok=True)
            elif error.errno != errno.EISDIR:
                raise
            else:
                raise StoreError(f"{self._path} is a folder, and stands where a lock belongs; remove it") from error
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        if not self._is_current(descriptor):
            os.close(descriptor)
            return False
        register_lock(descriptor)
        self._descriptor, self.is_new = descriptor, is_new
        return True

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the locked file is still the one under the name."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), there)
