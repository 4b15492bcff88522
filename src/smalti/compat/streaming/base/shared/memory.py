"""`SharedMemory`: a named block of memory that the process that created it removes at its end.

A process that is killed removes nothing. Each process that has a block therefore holds a shared lock on it, which the
kernel releases when the process ends: a block that no process holds was left behind, and is replaced.
"""

import atexit
import fcntl
import os
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as BuiltinSharedMemory
from typing import Any

from smalti.compat.streaming.base.constant import TICK

_LOCK_SECONDS = 60.0
"""Longest wait for a lock that others hold for one call."""
_register_lock = threading.Lock()
_all: "weakref.WeakSet[SharedMemory]" = weakref.WeakSet()
"""The blocks that this process has created or attached to."""


class SharedMemory:
    """A named block of shared memory. Only the process that created it removes the name.

    Args:
        name: Name of the block; None for a new one.
        create: True creates it, False attaches to an existing one, None does either; then a block of processes that
            have all ended is replaced by a new one.
        size: Size of a new block, bytes.
        auto_cleanup: Whether `cleanup` is called at the end of the process.

    Raises:
        FileExistsError: it is to be created, and exists.
        FileNotFoundError: it is to be attached to, and does not exist.
        PermissionError: it belongs to another user.
    """

    def __init__(
        self,
        name: str | None = None,
        create: bool | None = None,  # noqa: FBT001 - MosaicML's signature
        size: int = 0,
        auto_cleanup: bool = True,  # noqa: FBT001, FBT002 - MosaicML's signature
    ) -> None:
        self.created_shms: list[BuiltinSharedMemory] = []
        self.opened_shms: list[BuiltinSharedMemory] = []
        self._pid = os.getpid()
        if create is False:
            self.shm = self._attach(name)
        else:
            try:
                self.shm = BuiltinSharedMemory(name, create=True, size=size)
                self.created_shms.append(self.shm)
            except FileExistsError:
                if create:
                    raise
                self.shm = self._attach_or_replace(name, size)
        _hold(self.shm)
        _all.add(self)
        if auto_cleanup:
            atexit.register(self.cleanup)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hold the block in a process that gets it by a pickle."""
        vars(self).update(state)
        _hold(self.shm)

    def _attach_or_replace(self, name: str | None, size: int) -> BuiltinSharedMemory:
        """Attach to the block if a running process has it, else create it anew."""
        present = self._attach(name)
        if is_held(present):
            return present
        self.opened_shms.remove(present)
        present.close()
        remove_left_over(present.name)
        created = BuiltinSharedMemory(name, create=True, size=size)
        self.created_shms.append(created)
        return created

    def _attach(self, name: str | None) -> BuiltinSharedMemory:
        memory = attached(name)
        self.opened_shms.append(memory)
        return memory

    @property
    def buf(self) -> memoryview:
        """The memory."""
        buffer = self.shm.buf
        if buffer is None:
            raise ValueError(f"the shared memory {self.shm.name!r} was cleaned up; it cannot be used any more.")
        return buffer

    def cleanup(self) -> None:
        """Detach, and remove the names that this process has created. Idempotent."""
        is_owner = os.getpid() == self._pid  # a fork must not remove its parent's
        for memory in self.created_shms if is_owner else ():
            _unlink(memory)
        for memory in (*self.created_shms, *self.opened_shms):
            with suppress(BufferError):  # an array over it is still in use: it is unmapped with the process
                memory.close()
        self.created_shms, self.opened_shms = [], []


def unlink_own(kinds: Collection[str]) -> None:
    """Remove the names of the blocks that this process has created as `get_shm_prefix` names them; they stay mapped.

    Args:
        kinds: the names after the number, such as `locals`.
    """
    for block in list(_all):
        for memory in list(block.created_shms) if block._pid == os.getpid() else ():
            number, _, kind = memory.name.partition("_")
            if number.isdecimal() and kind in kinds:
                _unlink(memory)
                block.created_shms.remove(memory)
                block.opened_shms.append(memory)


def attached(name: str | None) -> BuiltinSharedMemory:
    """Return an existing block, which this process neither holds nor removes."""
    options: dict[str, Any] = {"track": False} if sys.version_info >= (3, 13) else {}
    with _untracked():
        return BuiltinSharedMemory(name, **options)


def is_held(memory: BuiltinSharedMemory) -> bool:
    """Return whether a running process holds the block; True where the system has no locks on memory.

    The caller must not hold it by this object.
    """
    try:
        fcntl.flock(_descriptor(memory), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # BlockingIOError if another process holds it
        return True
    fcntl.flock(_descriptor(memory), fcntl.LOCK_UN)
    return False


def remove_left_over(name: str) -> None:
    """Remove a block that no process holds."""
    with suppress(FileNotFoundError):  # another process was first
        memory = BuiltinSharedMemory(name)  # tracked by Python, because `unlink` ends that
        memory.unlink()
        memory.close()


def _hold(memory: BuiltinSharedMemory) -> None:
    """Hold the block until this process, and those that it forks, end or close it."""
    end = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < end:
        try:
            fcntl.flock(_descriptor(memory), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203 -- another process is just looking whether it is held
            time.sleep(TICK)
        except OSError:  # a system without locks on memory
            return
        else:
            return


def _descriptor(memory: BuiltinSharedMemory) -> int:
    return int(memory._fd)  # type: ignore[attr-defined]


def _unlink(memory: BuiltinSharedMemory) -> None:
    try:
        memory.unlink()
    except FileNotFoundError:  # another process has removed it, so Python's tracker need not
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]


@contextmanager
def _untracked() -> Iterator[None]:
    """Attach without Python's resource tracker, which would remove the block when this process ends.

    Python 3.13 has an option for that.
    """
    with _register_lock:
        register = resource_tracker.register

        def register_others(name: str, kind: str) -> None:
            if kind != "shared_memory":
                register(name, kind)

        resource_tracker.register = register_others  # type: ignore[assignment]
        try:
            yield
        finally:
            resource_tracker.register = register
