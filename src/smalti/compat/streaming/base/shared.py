"""MosaicML's objects in named shared memory, for code that uses them; the engine itself has no named shared memory.

`SharedMemory` is the class to read first: the others are arrays, a number, a barrier and a register of folders in it.
Blocks of memory, intended behaviour; anything else is a bug:
1. The process that created a block removes it at its end. One that is killed removes nothing.
2. Each process that has a block therefore holds a shared lock on it, which the kernel releases when the process ends: a
   block that no process holds was left behind, and is replaced.

The barrier:
1. No process leaves a round before all have entered it. A process may enter the next round while others still leave.
2. The last process that enters inverts `flag`, and the others wait for that; `flag` cannot be inverted again before
   all of them have seen it, because the next round needs them too.
3. Only the process that creates the memory initialises it; memory of processes that have all ended is created anew. A
   wait has a deadline.

The register of the local folders that jobs of one machine use: an entry is a block of memory named after its number.
The kernel lets only one process create it, so two jobs never share a number. It ends with its creator; what a killed
one left is removed by the next search, which leaves entries of MosaicML's own processes alone: they do not have `_OURS`
behind their end, where MosaicML's reader does not look.
"""

import atexit
import fcntl
import math
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory as BuiltinSharedMemory
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.compat.paths import serve
from smalti.compat.streaming.base import world as dist  # `barrier` is a module here
from smalti.compat.streaming.base.constant import LOCALS, TICK
from smalti.compat.streaming.base.world import World

__all__ = ["SharedArray", "SharedBarrier", "SharedMemory", "get_shm_prefix", "SharedScalar"]

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
        self._pid = os.getpid()
        is_new = create is not False
        try:
            self.shm = BuiltinSharedMemory(name, create=True, size=size) if is_new else attached(name)
        except FileExistsError:
            if create:
                raise
            self.shm = attached(name)
            is_new = not is_held(self.shm)
            if is_new:  # of processes that have all ended
                self.shm.close()
                remove_left_over(self.shm.name)
                self.shm = BuiltinSharedMemory(name, create=True, size=size)
        self.created_shms = [self.shm] if is_new else []
        self.opened_shms = [] if is_new else [self.shm]
        _hold(self.shm)
        _all.add(self)
        if auto_cleanup:
            atexit.register(self.cleanup)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hold the block in a process that gets it by a pickle."""
        vars(self).update(state)
        _hold(self.shm)

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
    if sys.version_info >= (3, 13):
        return BuiltinSharedMemory(name, track=False)
    # Python's resource tracker would remove the block when this process ends.
    with _register_lock:
        register = resource_tracker.register

        def register_others(name: str, kind: str) -> None:
            if kind != "shared_memory":
                register(name, kind)

        resource_tracker.register = register_others  # type: ignore[assignment]
        try:
            return BuiltinSharedMemory(name)
        finally:
            resource_tracker.register = register


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
    """Hold the block until this process, and those that it forks, end or close it.

    Another process may be just looking whether it is held. A system without locks on memory raises an OSError.
    """
    with suppress(OSError):
        _wait(lambda: _try_lock(_descriptor(memory), fcntl.LOCK_SH), _LOCK_SECONDS, f"the lock of {memory.name}")


def _descriptor(memory: BuiltinSharedMemory) -> int:
    return int(memory._fd)  # type: ignore[attr-defined]


def _unlink(memory: BuiltinSharedMemory) -> None:
    try:
        memory.unlink()
    except FileNotFoundError:  # another process has removed it, so Python's tracker need not
        resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]


class SharedArray:
    """A numpy array of fixed shape and dtype in named shared memory, zero when it is created.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        name: Name of the memory, which is created or attached to.

    Raises:
        ValueError: a running process has memory of this name that is too small.
    """

    def __init__(self, shape: int | tuple[int, ...], dtype: type, name: str) -> None:
        self.shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        self.dtype = dtype
        self.name = name
        size = math.prod(self.shape) * np.dtype(dtype).itemsize
        self.shm = SharedMemory(name=name, size=size)
        if len(self.shm.buf) < size:
            raise ValueError(
                f"the shared memory {name!r} of a running process has {len(self.shm.buf)} bytes, and an array of "
                f"{self.shape} {np.dtype(dtype)} needs {size}; give the same shape and dtype in every process."
            )

    def numpy(self) -> NDArray[Any]:
        """Return the array itself; it is not kept, so that this object can be passed to spawned processes."""
        return np.ndarray(self.shape, buffer=self.shm.buf, dtype=self.dtype)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        return self.numpy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.numpy()[index] = value


class SharedScalar:
    """A number of fixed dtype in named shared memory.

    Args:
        dtype: Its dtype.
        name: Name of the memory, which is created or attached to.
    """

    def __init__(self, dtype: type, name: str) -> None:
        self.dtype = dtype
        self.name = name
        self.arr = SharedArray(1, dtype, name)

    def get(self) -> Any:
        """Return the number."""
        return self.arr[0]

    def set(self, value: Any) -> None:
        """Replace the number."""
        self.arr[0] = value


TIMEOUT = 60
"""Longest wait for the lock, which is only held for a few assignments, seconds."""
BARRIER_SECONDS = 3600.0
"""Longest wait for the other processes."""


def _element(place: int, kind: type, doc: str) -> Any:
    """Return an attribute of a barrier that is an element of its array."""

    def get(barrier: "SharedBarrier") -> Any:
        return kind(barrier._arr[place])

    def set_to(barrier: "SharedBarrier", value: Any) -> None:
        barrier._arr[place] = value

    return property(get, set_to, doc=doc)


class SharedBarrier:
    """A barrier of processes of one machine.

    Args:
        filelock_path: Path of a lock file, the same in all processes.
        shm_name: Name of the memory, the same in all processes.
    """

    def __init__(self, filelock_path: str, shm_name: str) -> None:
        self.filelock_path = filelock_path
        with self._locked():
            self._arr = SharedArray(3, np.int32, shm_name)
            if self._arr.shm.created_shms:
                self.num_enter, self.num_exit, self.flag = 0, -1, True

    num_enter = _element(0, int, "Number of processes that wait in this round.")
    num_exit = _element(1, int, "Number that have left the last round; -1 if there was none, or all have left it.")
    flag = _element(2, bool, "State that each round inverts.")

    def __call__(self, num_procs: int) -> None:
        """Wait until `num_procs` processes have called this.

        Raises:
            TimeoutError: they have not within an hour.
        """
        with self._locked():
            before = self.flag
            self.num_enter += 1
            if self.num_enter == num_procs:
                self.num_enter, self.num_exit, self.flag = 0, 0, not before
        _wait(lambda: self.flag != before, BARRIER_SECONDS, f"{num_procs} processes to reach the barrier")
        with self._locked():
            self.num_exit = -1 if self.num_exit + 1 == num_procs else self.num_exit + 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, which the kernel releases if the process dies."""
        with Path(self.filelock_path).open("ab") as file:
            _wait(lambda: _try_lock(file.fileno(), fcntl.LOCK_EX), TIMEOUT, f"the lock of {self.filelock_path}")
            yield


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(is_done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}; check that all processes still run.")
        time.sleep(TICK)


_SIZE_BYTES = 4
_OURS = b"smalti"


def _get_path(prefix_int: int, name: str) -> str:
    """Return the name of a block of memory with this number."""
    return f"{prefix_int:06}_{name}"


def _pack_locals(dirnames: list[str], prefix_int: int) -> bytes:
    """Return the bytes of an entry: their number, the folders, and the entry's number."""
    text = "\0".join([*dirnames, str(prefix_int)]).encode()
    return (_SIZE_BYTES + len(text)).to_bytes(_SIZE_BYTES, sys.byteorder) + text


def _unpack_locals(data: bytes) -> tuple[list[str], int]:
    """Return the folders and the number of an entry; bytes after its end are ignored."""
    size = int.from_bytes(data[:_SIZE_BYTES], sys.byteorder)
    *dirnames, prefix_int = data[_SIZE_BYTES:size].decode().split("\0")
    return dirnames, int(prefix_int or 0)


def get_shm_prefix(
    streams_local: list[str], streams_remote: list[str | None], world: World, retry: int = 100
) -> tuple[int, SharedMemory]:
    """Return the number of this job's entry, and its memory; the first rank of the machine registers it.

    Args:
        streams_local: Local folder of each stream.
        streams_remote: Remote folder of each stream; local folders without one may be shared by jobs.
        world: The place of this process among the ranks.
        retry: Further checks of a folder that another job still uses, one each polling interval.

    Raises:
        ValueError: a folder occurs twice, or a running job downloads into it; or `retry` is negative.
        RuntimeError: the first rank of the machine has registered no such folders.
    """
    if retry < 0:
        raise ValueError(f"Specify at least zero retries (provided {retry}).")
    repeated = [folder for folder, times in Counter(streams_local).items() if times > 1]
    if repeated:
        raise ValueError(f"Reused local directory: {repeated}. Provide a different one.")
    if world.is_local_leader:
        downloads = {local for local, remote in zip(streams_local, streams_remote, strict=True) if remote is not None}
        found = _register(streams_local, downloads, retry)
        dist.barrier()
        return found
    dist.barrier()
    for number, memory, folders in _entries():
        if folders == streams_local:
            return number, memory
    raise RuntimeError(
        f"Internal error: shared memory for {streams_local} was not registered by local leader. This may be because "
        "you specified different ``local`` parameters from different ranks."
    )


def _register(folders: list[str], downloads: set[str], retry: int) -> tuple[int, SharedMemory]:
    """Create an entry with the first free number, once no other entry has one of the folders to download into."""
    for attempt in range(retry + 1):
        used = sorted({folder for _, _, theirs in _entries() for folder in theirs} & downloads)
        if not used:
            break
        if attempt == retry:
            raise ValueError(
                f"Reused local directory: {folders} vs {used}. Provide a different one: that is the local directory of "
                "a running job. If it is of this process, call `streaming.base.util.clean_stale_shared_memory()`."
            )
        time.sleep(TICK)
    number = 0
    while True:
        data = _pack_locals(folders, number) + _OURS
        with suppress(FileExistsError, PermissionError):
            memory = SharedMemory(_get_path(number, LOCALS), create=True, size=len(data))
            memory.buf[: len(data)] = data
            return number, memory
        number += 1


def _entries() -> Iterator[tuple[int, SharedMemory, list[str]]]:
    """Yield number, memory and folders of all entries, up to the first free number."""
    for number in count():
        name = _get_path(number, LOCALS)
        try:
            memory = attached(name)
            entry = bytes(memory.buf or b"")
            size = int.from_bytes(entry[:_SIZE_BYTES], sys.byteorder)
            is_left_over = entry[size : size + len(_OURS)] == _OURS and not is_held(memory)
            memory.close()
            if is_left_over:  # one of ours, whose processes have all ended
                remove_left_over(name)
                continue
            shared = SharedMemory(name, create=False, auto_cleanup=False)
        except PermissionError:  # of another user
            continue
        except FileNotFoundError:
            return
        yield number, shared, _unpack_locals(bytes(shared.buf))[0]


serve(__name__, "array", "barrier", "memory", "prefix", "scalar")
