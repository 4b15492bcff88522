"""Reading untrusted Arrow files: everything that pyarrow takes for granted is checked first. Knows no shards.

Files are memory-mapped; while a file is hashed and checked, the pages that were read are released again.
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
"""Device, inode, size and modification time of a file, by which a replaced file is detected."""

_HASH_BYTES = 8 << 20  # bytes that are hashed before their pages are released
_ROWS = 1 << 17
"""Texts that are checked at once: some megabytes."""
_MAGIC = b"ARROW1\0\0"
_VERSION_FIELD = 0  # of the flatbuffer table Message
_VERSION = 4  # V5, of 2020; in files of older versions pyarrow reads the compression from another field
_HEADER_FIELD = 2  # of Message
_DATA_FIELD = 1  # of DictionaryBatch: the RecordBatch that holds its values
_COMPRESSION_FIELD = 3  # of RecordBatch


def map_file(path: Path) -> tuple[Buffer, State]:
    """Map a file; return its bytes and its state.

    Raises:
        OSError: it does not exist, or cannot be mapped.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        state = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        if not found.st_size:
            return b"", state  # an empty file cannot be mapped
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), state


@contextmanager
def checked_sha256(data: Buffer, expected: str, *, what: str, key: str) -> Iterator[None]:
    """Hash the bytes, in a thread if there are many, while the block parses them. The block must not trust them.

    Raises:
        IndexFileError: the SHA-256 is not `expected`, in hex; raised at the end, in place of errors of the block.
    """
    found: list[str] = []
    thread = Thread(target=lambda: found.append(_sha256(data)), name="smalti-sha256")
    if len(data) > _HASH_BYTES:
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
        for begin in range(0, len(data), _HASH_BYTES):
            digest.update(view[begin : begin + _HASH_BYTES])
            release_pages(data, begin, min(_HASH_BYTES, len(data) - begin))
    return digest.hexdigest()


def release_pages(data: Buffer, begin: int = 0, length: int | None = None) -> None:
    """Release the pages of a mapped file; they are read again on access, from the page cache or the disk."""
    if isinstance(data, mmap.mmap) and hasattr(data, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
        data.madvise(mmap.MADV_DONTNEED, begin, len(data) - begin if length is None else length)


def read_arrow_file(data: Buffer, *, checked: bool = False) -> "pa.Table":
    """Read an Arrow IPC file, with every offset and text checked, so that no access can leave the file.

    Memory is bounded by the size of the file: compressed columns, which could inflate without bound, are refused.
    Smalti writes none.

    Args:
        data: The whole file; the table refers to it.
        checked: Whether this was called for the same bytes before. Offsets and texts are not checked again then, which
            saves reading every byte.

    Raises:
        ValueError: it is not such a file, or is damaged.
    """
    import pyarrow as pa

    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as an Arrow file")
    # The body of a file is a stream. The footer is not used: it could point to other places.
    body = pa.py_buffer(data).slice(len(_MAGIC))
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
            metadata = message.metadata.to_pybytes()
            if not _is_current(metadata):
                raise ValueError("it has another version of Arrow's format than V5")
            if message.type != "schema" and _is_compressed(metadata, message.type):
                raise ValueError("its columns are compressed")
        table = pa.ipc.open_stream(pa.BufferReader(body)).read_all()
        # pyarrow trusts the offsets and indices in a file; a wrong one reads foreign memory or crashes the process.
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

    table.validate()  # checks the sizes of buffers, which slicing relies on
    for column in table.columns:
        step = _ROWS if pa.types.is_string(column.type) else max(1, len(column))
        for begin in range(0, max(1, len(column)), step):
            column.slice(begin, step).validate(full=True)
            release_pages(data)


def _is_current(metadata: bytes) -> bool:
    place = _place(metadata, _uint(metadata, 0), _VERSION_FIELD)
    return place != 0 and _uint(metadata, place, 2) == _VERSION


def _is_compressed(metadata: bytes, kind: str) -> bool:
    batch = _child(metadata, _uint(metadata, 0), _HEADER_FIELD)
    if kind == "dictionary":
        batch = _child(metadata, batch, _DATA_FIELD)
    return _place(metadata, batch, _COMPRESSION_FIELD) != 0


def _child(data: bytes, table: int, field: int) -> int:
    """Return the position of the flatbuffer table that `field` of the table at `table` refers to."""
    place = _place(data, table, field)
    return place + _uint(data, place)


def _place(data: bytes, table: int, field: int) -> int:
    """Return the position of a field of the flatbuffer table at `table`; 0 if it is absent."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * field
    if entry >= _uint(data, vtable, 2):
        return 0
    offset = _uint(data, vtable + entry, 2)
    return table + offset if offset else 0


def _uint(data: bytes, place: int, size: int = 4) -> int:
    return int.from_bytes(data[place : place + size], "little")
