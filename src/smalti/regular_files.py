"""Opening files for reading: only regular files are opened, so that no read waits for the other end of a pipe.

Every module that opens a file by a path which a user or a data set names does it here. Opening a FIFO waits until a
program writes to it, and a device may never end.
"""

import io
import os
import stat
from errno import EISDIR, ENXIO
from typing import Literal, overload

from smalti.errors import StoreError
from smalti.texts import printable

_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def kind_of(mode: int) -> str:
    """Return what a file of this mode is, such as "a socket"; "" for a regular file or a folder."""
    return _KINDS.get(stat.S_IFMT(mode), "")


@overload
def open_regular(path: str | os.PathLike[str], buffering: Literal[0]) -> io.FileIO: ...
@overload
def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader: ...
def open_regular(path: str | os.PathLike[str], buffering: int = -1) -> io.FileIO | io.BufferedReader:
    """Open a regular file, or a symbolic link to one, for reading bytes.

    Args:
        path: the file.
        buffering: 0 for a file without a buffer.

    Raises:
        StoreError: it is a named pipe, a socket or a device.
        OSError: it cannot be opened; `IsADirectoryError` for a folder.
    """
    return open(open_descriptor(path), "rb", buffering)  # type: ignore[return-value]


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file; raises as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_regular_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Return the content of a regular file as text; raises as `open_regular` does, and `UnicodeDecodeError`."""
    return read_regular(path).decode(encoding)


def open_descriptor(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading, and return its descriptor; raises as `open_regular` does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == ENXIO:  # of a socket, and of a device without its driver
            raise _not_regular(path, os.stat(path).st_mode) from error  # noqa: PTH116 -- bytes and text alike
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR), os.fspath(path))
    raise _not_regular(path, mode)


def _not_regular(path: str | os.PathLike[str], mode: int) -> StoreError:
    kind, shown = kind_of(mode) or "no file", printable(str(path))
    error = StoreError(
        f"{shown} is {kind}; only regular files are read: remove it, or put a file in its place", path=shown
    )
    error.strerror = f"it is {kind}; only regular files are read"  # for callers with a message of their own
    return error
