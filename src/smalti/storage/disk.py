"""Disks below local folders: which one a folder lies on, and bytes on their way to it before anybody waits for them."""

import ctypes
import os
import platform
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: start writing what is dirty, wait for nothing


@dataclass(frozen=True)
class Disk:
    """A folder as one running kernel sees it: who sees an equal one can sync files that the other wrote."""

    boot_id: str
    """Of the kernel; another one after every start of a machine."""
    device: int
    inode: int


@dataclass(frozen=True)
class Watch:
    """A disk from some moment on, with all that is put there unsynced since."""

    disk: Disk | None
    """None where nothing may be left to be synced."""
    sync: Callable[[Collection[str]], None]
    """Returns when the objects with these keys cannot be lost any more; raises `StoreError` if one may be."""


def disk_of(folder: Path) -> Disk | None:
    """The disk of a folder; None where files that another process wrote cannot be synced for certain.

    That is: no Linux from 5.8 on, no such folder, or a file system without a block device of its own. Behind such a one
    (NFS, FUSE) stands somebody with rules of his own for what is on disk, and when.
    """
    if not _tells_errors():
        return None
    try:
        boot_id, stat = _BOOT_ID.read_text().strip(), folder.stat()
    except OSError:
        return None
    return Disk(boot_id, stat.st_dev, stat.st_ino) if boot_id and os.major(stat.st_dev) else None


def begin_writing(file: BinaryIO) -> None:
    """Have the disk begin with what was written and flushed; waits for nothing, and promises nothing."""
    call = _from_c("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call is not None:
        call(file.fileno(), 0, 0, _WRITE)  # an error of the disk is told by the fsync that follows anyway


def sync_path(path: Path) -> None:
    """Return when the file is on disk, whoever wrote it.

    Raises:
        OSError: it is not, and may never be. An error that came while nobody had the file open is told here as long as
            the kernel remembers the file; `sync_file_system` tells the others.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Return when everything on the file system is on disk.

    Raises:
        OSError: something could not be written since the descriptor was opened, be it forgotten by now. Linux tells
            this since 5.8 (syncfs(2)); `disk_of` is None before.
    """
    call = _from_c("syncfs", ctypes.c_int)
    if call is not None and call(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _tells_errors() -> bool:
    """Whether `sync_file_system` does what it says."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    is_new = found is not None and (int(found[1]), int(found[2])) >= (5, 8)
    return platform.system() == "Linux" and is_new and _from_c("syncfs", ctypes.c_int) is not None


@cache
def _from_c(name: str, *arguments: Any) -> Any:
    """A function of the C library that Python has no name for; None where there is none, as on macOS."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    call.argtypes = list(arguments)
    return call
