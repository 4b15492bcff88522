"""One process per host at a time: a lock file with `flock`, which the kernel frees when its holder dies."""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from smalti.errors import StoreError, StoreTimeout
from smalti.storage.retry import Deadline, jitter

NO_LOCKS = {errno.ELOOP, errno.EMLINK, errno.ENXIO}
"""What opening a link, a socket or the like in the place of a lock gives."""
_held: set[int] = set()


def _close_inherited() -> None:
    # A forked child shares the parent's open lock: were it to keep it, the lock would outlive a killed parent.
    for descriptor in list(_held):
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


def hold(descriptor: int) -> None:
    """Sees to it that a fork does not keep this lock, too."""
    _held.add(descriptor)


def forget_held(descriptor: int) -> None:
    """The lock is given back."""
    _held.discard(descriptor)


class FileLock:
    """An exclusive lock on a path, for processes and threads alike; the file is removed again on release.

    Raises:
        StoreTimeout: somebody else held it until the deadline.
    """

    def __init__(self, path: Path, deadline: Deadline, what: str, *, longest_pause: float = 0.05) -> None:
        self._path = path
        self._deadline = deadline
        self._what = what
        self._descriptor = -1
        self._longest_pause = longest_pause
        self.is_new = False
        """Whether this holder made the file: nobody was killed who had it."""

    def __enter__(self) -> "FileLock":
        pause = 0.002
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
        """Says in the lock file's size how much room its holder needs; it takes none."""
        os.ftruncate(self._descriptor, num_bytes)

    def say(self, name: str) -> None:
        """Writes into the lock file which file its holder writes now, for those who wait for it (`early.py`)."""
        with suppress(OSError):  # on a full disk: then nobody reads that file before it is whole
            os.pwrite(self._descriptor, name.encode() + b"\0", 0)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        forget_held(descriptor)
        # Removed while still held: whoever waits on this file notices that the name is gone and starts over.
        self._path.unlink(missing_ok=True)
        # Explicitly, for a child forked meanwhile shares the open file and closing would not free it.
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
            if error.errno in NO_LOCKS:  # a link or the like, in a folder that is ours alone
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
        hold(descriptor)
        self._descriptor, self.is_new = descriptor, is_new
        return True

    def _is_current(self, descriptor: int) -> bool:
        """Whether the locked file is still the one under the name."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(descriptor), there)
