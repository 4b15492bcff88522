"""The footer of a Parquet file: read from its end by ranges, checked, and remembered by its hash."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.compat.petastorm.sources import FileSource
from smalti.errors import FormatError

_TAIL_BYTES = 1 << 16
"""Read at once from a file's end: nearly every footer is shorter."""
_ENDING_BYTES = 8
"""Length of the footer, and `PAR1`."""
_LEAST_BYTES = 12


@dataclass(frozen=True)
class Footer:
    """What one file's end says."""

    key: str
    num_bytes: int
    begin: int
    """Where in the file it begins."""
    digest: str
    """SHA-256 of it, hex."""
    metadata: Any = field(repr=False)
    """pyarrow's `FileMetaData`."""


def read_footer(source: FileSource, key: str, num_bytes: int | None = None) -> Footer:
    """The footer of a file.

    Raises:
        StoreNotFound: no such file.
        FormatError: the file is no Parquet file, incomplete, damaged or encrypted.
    """
    size = source.size(key) if num_bytes is None else num_bytes
    where = source.locate(key)
    tail = b"" if size < _LEAST_BYTES else source.read(key, max(0, size - _TAIL_BYTES), size)
    if tail[-4:] == b"PARE":
        raise FormatError(f"{where} is encrypted, and this reader has no keys: write it unencrypted.", key=key)
    if len(tail) != min(size, _TAIL_BYTES) or tail[-4:] != b"PAR1":
        raise FormatError(
            f"{where}: expected a Parquet file, which ends with PAR1, found {size} bytes that end with "
            f"{tail[-4:]!r}; it is none, or was not written to its end: write it again, or take it out of the folder.",
            key=key,
        )
    length = int.from_bytes(tail[-8:-4], "little")
    begin = size - length - _ENDING_BYTES
    if begin < 4:
        raise _damaged(where, key, f"it says that its footer has {length} bytes, and the file has {size}")
    data = tail[begin - size :] if size - begin <= len(tail) else source.read(key, begin, size)
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, key, str(error)) from error
    if rows != metadata.num_rows or rows < 0:
        raise _damaged(where, key, f"its row groups have {rows} rows, and the file {metadata.num_rows}")
    return Footer(key, size, begin, hashlib.sha256(data).hexdigest(), metadata)


def is_unchanged(source: FileSource, footer: Footer) -> bool:
    """Whether the file still ends as it did: its footer tells sizes, places and extremes of everything in it."""
    data = source.read(footer.key, footer.begin, footer.num_bytes + 1)
    return hashlib.sha256(data).hexdigest() == footer.digest


def _damaged(where: str, key: str, why: str) -> FormatError:
    return FormatError(f"{where}: the footer of this Parquet file is damaged: {why}. Write the file again.", key=key)
