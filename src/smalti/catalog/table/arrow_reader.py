"""Reading an Arrow file that others wrote, without trust: what pyarrow believes is looked at first. Knows no shards.

A file as a memory map that is read once from end to end without staying in memory. Knows no Arrow, no shards.
"""

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from smalti.errors import IndexFileError

if TYPE_CHECKING:
    import pyarrow as pa

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


_ROWS = 1 << 17
"""Texts that are checked at once: some megabytes."""
_MAGIC = b"ARROW1\0\0"
_VERSION_FIELD = 0  # of the flatbuffer table Message
_VERSION = 4  # that is V5, of 2020; in files of older ones pyarrow takes compression from another place
_HEADER_FIELD = 2  # of Message
_DATA_FIELD = 1  # of DictionaryBatch: the RecordBatch that holds its values
_COMPRESSION_FIELD = 3  # of RecordBatch


def read_arrow_file(data: Buffer, *, checked: bool = False) -> "pa.Table":
    """The table in an Arrow IPC file, with every offset and text in it checked, so that no access leaves the file.

    Memory follows the size of the file: compressed columns, which may inflate without bound, are refused. Nothing
    that Smalti writes has them.

    Args:
        data: The whole file; the table refers to it.
        checked: Whether it was read here before: then offsets and texts are not checked again, which takes a look at
            every byte.

    Raises:
        ValueError: It is no such file, or damaged.
    """
    import pyarrow as pa

    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as an Arrow file")
    # The body of a file is a stream; the footer, which could name other places, is not needed.
    body = pa.py_buffer(data).slice(len(_MAGIC))
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
            metadata = message.metadata.to_pybytes()
            if not _is_current(metadata):
                raise ValueError("it has another version of Arrow's format than V5")
            if message.type != "schema" and _is_compressed(metadata, message.type):
                raise ValueError("its columns are compressed")
        table = pa.ipc.open_stream(pa.BufferReader(body)).read_all()
        # pyarrow trusts the offsets and indices in a file, and a wrong one reads or ends the process's memory.
        if checked:
            table.validate()
        else:
            _validate(table, data)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"Arrow cannot read it: {str(error)[:200]}") from error
    return table


def _validate(table: "pa.Table", data: Buffer) -> None:
    """Check every offset, index and text, in parts, so that a mapped file need not be in memory as a whole."""
    import pyarrow as pa

    table.validate()  # sizes of buffers: without them no part could be cut out
    for column in table.columns:
        step = _ROWS if pa.types.is_string(column.type) else max(1, len(column))
        for begin in range(0, max(1, len(column)), step):
            column.slice(begin, step).validate(full=True)
            let_go(data)


def _is_current(metadata: bytes) -> bool:
    place = _place(metadata, _uint(metadata, 0), _VERSION_FIELD)
    return place != 0 and _uint(metadata, place, 2) == _VERSION


def _is_compressed(metadata: bytes, kind: str) -> bool:
    batch = _child(metadata, _uint(metadata, 0), _HEADER_FIELD)
    if kind == "dictionary":
        batch = _child(metadata, batch, _DATA_FIELD)
    return _place(metadata, batch, _COMPRESSION_FIELD) != 0


def _child(data: bytes, table: int, field: int) -> int:
    """Where the flatbuffer table lies that `field` of the table at `table` refers to."""
    place = _place(data, table, field)
    return place + _uint(data, place)


def _place(data: bytes, table: int, field: int) -> int:
    """Where a field of the flatbuffer table at `table` lies; 0 where it is absent."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * field
    if entry >= _uint(data, vtable, 2):
        return 0
    offset = _uint(data, vtable + entry, 2)
    return table + offset if offset else 0


def _uint(data: bytes, place: int, size: int = 4) -> int:
    return int.from_bytes(data[place : place + size], "little")
