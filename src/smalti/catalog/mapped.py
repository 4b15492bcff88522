"""A file as a memory map that is read once from end to end without staying in memory. Knows no Arrow, no shards."""

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from smalti.errors import IndexFileError

Buffer = bytes | mmap.mmap
State = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file: what changes when another one takes its place."""

_STEP = 8 << 20  # bytes that are hashed before their memory is given back


def map_file(path: Path) -> tuple[Buffer, State]:
    """The bytes of a file, and the state in which it was.

    Raises:
        OSError: it is not there, or cannot be mapped.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        if not found.st_size:
            return b"", state  # no map can be empty
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), state


@contextmanager
def checked_sha256(data: Buffer, expected: str, *, what: str, key: str) -> Iterator[None]:
    """Hash the bytes, large ones on a thread while the block looks at them, which must not trust them either way.

    Raises:
        IndexFileError: at the end, whatever the block raised: their SHA-256 is not this one, hex.
    """
    found: list[str] = []
    thread = Thread(target=lambda: found.append(_sha256(data)), name="smalti-sha256")
    if len(data) > _STEP:
        thread.start()
    else:
        thread.run()
    try:
        if found in ([], [expected]):
            yield
    finally:
        if thread.ident is not None:
            thread.join()
        if found != [expected]:
            raise IndexFileError(
                f"{what}: expected sha256 {expected}, found {''.join(found) or 'none'}; the object was changed or cut",
                key=key,
            )


def _sha256(data: Buffer) -> str:
    digest = hashlib.sha256()
    with memoryview(data) as view:
        for begin in range(0, len(data), _STEP):
            digest.update(view[begin : begin + _STEP])
            let_go(data, begin, min(_STEP, len(data) - begin))
    return digest.hexdigest()


def let_go(data: Buffer, begin: int = 0, length: int | None = None) -> None:
    """Give back the memory of a mapped file; what is needed again comes from the kernel's cache, or from the disk."""
    if isinstance(data, mmap.mmap) and hasattr(data, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, begin, len(data) - begin if length is None else length)
