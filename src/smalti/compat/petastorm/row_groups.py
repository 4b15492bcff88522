"""Reading one row group: the bytes of the columns that are wanted, checked, then decoded."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.compat.petastorm.footers import Footer, is_unchanged
from smalti.compat.petastorm.sources import FileSource
from smalti.errors import ChecksumMismatch, FormatError

_MERGED_GAP = 1 << 18
"""Bytes between two columns that are read along rather than asked for apart."""


def read_row_group(source: FileSource, footer: Footer, number: int, columns: Sequence[str]) -> pa.Table:
    """The columns of one row group, as they are stored; checksums of pages are checked where the file has them.

    The footer is compared again after the bytes were read, so that what is decoded belongs to the file that was
    planned.

    Raises:
        StoreNotFound: the file is gone.
        ChecksumMismatch: the file was replaced or changed since it was planned.
        FormatError: a page is damaged.
    """
    where = f"row group {number} of {source.locate(footer.key)}"
    parts = []
    for begin, end in _ranges(footer, number, columns, where):
        data = source.read(footer.key, begin, end)
        parts.append((begin, data))
        if len(data) != end - begin:
            raise _changed(where, footer)
    if not is_unchanged(source, footer):
        raise _changed(where, footer)
    try:
        with (
            pa.PythonFile(_Parts(parts, footer.num_bytes), mode="r") as handle,
            pq.ParquetFile(handle, metadata=footer.metadata, page_checksum_verification=True) as file,
        ):
            table = file.read_row_group(number, columns=list(columns), use_threads=False)
            table.validate()
    except (pa.ArrowException, OSError) as error:
        raise FormatError(
            f"{where} cannot be decoded: {error}. The file is damaged: write it again, or restore it.",
            key=footer.key,
            row_group=number,
        ) from error
    expected = footer.metadata.row_group(number).num_rows
    if columns and table.num_rows != expected:
        raise FormatError(f"{where} has {table.num_rows} rows, and its footer says {expected}.", key=footer.key)
    return table


def _ranges(footer: Footer, number: int, columns: Sequence[str], where: str) -> list[tuple[int, int]]:
    group = footer.metadata.row_group(number)
    spans = []
    for each in range(group.num_columns):
        chunk = group.column(each)
        if any(chunk.path_in_schema == name or chunk.path_in_schema.startswith(f"{name}.") for name in columns):
            begins = [chunk.data_page_offset]
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                begins.append(chunk.dictionary_page_offset)
            begin = min(begins)
            end = begin + chunk.total_compressed_size
            if not 4 <= begin <= end <= footer.begin:
                raise FormatError(
                    f"{where}: column {chunk.path_in_schema} is said to lie at bytes [{begin}, {end}), outside of the "
                    f"file's data; its footer is damaged: write the file again.",
                    key=footer.key,
                )
            spans.append((begin, end))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin - merged[-1][1] <= _MERGED_GAP:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _changed(where: str, footer: Footer) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"{where}: the file changed since this reader was opened (expected {footer.num_bytes} bytes with the footer "
        f"{footer.digest[:12]}). A data set that is read must not change: open a new reader, and write new data to a "
        "new folder.",
        key=footer.key,
    )


class _Parts(io.RawIOBase):
    """A file of which only some parts are here; what pyarrow reads lies inside one of them."""

    def __init__(self, parts: list[tuple[int, bytes]], num_bytes: int) -> None:
        self._parts, self._num_bytes, self._at = parts, num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._num_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> Any:
        for begin, data in self._parts:
            if begin <= self._at < begin + len(data):
                start = self._at - begin
                found = memoryview(data)[start : len(data) if size < 0 else start + size]
                self._at += len(found)
                return found.tobytes()
        return b""
