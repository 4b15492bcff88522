"""`SharedMemory`: a named block of memory that the process that created it removes at its end."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as BuiltinSharedMemory
from typing import Any

_register_lock = threading.Lock()
_all: "weakref.WeakSet[SharedMemory]" = weakref.WeakSet()
"""The blocks that this process has created or attached to."""


class SharedMemory:
    """A named block of shared memory. Only the process that created it removes the name.

    Args:
        name: Name of the block; None for a new one.
        create: True creates it, False attaches to an existing one, None does either.
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
                self.shm = self._attach(name)
        _all.add(self)
        if auto_cleanup:
            atexit.register(self.cleanup)

    def _attach(self, name: str | None) -> BuiltinSharedMemory:
        options: dict[str, Any] = {"track": False} if sys.version_info >= (3, 13) else {}
        with _untracked():
            memory = BuiltinSharedMemory(name, **options)
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
