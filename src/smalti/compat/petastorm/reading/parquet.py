"""The Parquet files of a data set as one sequence of row groups, planned from their footers.

Here: footers, the choice of data files in a folder, partition columns from folder names, the bytes of row groups. Not
here: where files are (`sources`), the log of a Delta table (`delta`), the cache of row groups (`rows`).
"""

import hashlib
import io
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.compat.petastorm.errors import FilesNotAvailable
from smalti.compat.petastorm.reading import delta
from smalti.compat.petastorm.reading.sources import FileSource, Place
from smalti.errors import ChecksumMismatch, FormatError, SchemaError, StoreNotFound

_TAIL_BYTES = 1 << 16
"""Bytes to read from the end of a file at once: nearly every footer is shorter."""
_ENDING_BYTES = 8
"""The length of the footer (4 bytes), and `PAR1`."""
_MIN_FILE_BYTES = 12
_MAX_GAP_BYTES = 1 << 18
"""Maximal gap in bytes between two columns that are read with one request."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FOOTER_THREADS = 32
_POLL_SECONDS = 0.1
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Key of the pickled schema that Petastorm stores in `_common_metadata`. Smalti never unpickles it."""


@dataclass(frozen=True)
class Footer:
    """The footer of one file."""

    key: str
    num_bytes: int
    begin: int
    """Offset of the footer in the file."""
    digest: str
    """SHA-256 of the footer, hex."""
    metadata: Any = field(repr=False)
    """pyarrow's `FileMetaData`."""


def read_footer(source: FileSource, key: str, num_bytes: int | None = None) -> Footer:
    """Read the footer of a file from its end, by ranges.

    Raises:
        StoreNotFound: there is no such file.
        FormatError: the file is not a Parquet file, or is incomplete, damaged or encrypted.
    """
    size = source.size(key) if num_bytes is None else num_bytes
    where = source.locate(key)
    tail = b"" if size < _MIN_FILE_BYTES else source.read(key, max(0, size - _TAIL_BYTES), size)
    if tail[-4:] == b"PARE":
        raise FormatError(f"{where} is encrypted, which this reader does not support: write it unencrypted.", key=key)
    if len(tail) != min(size, _TAIL_BYTES) or tail[-4:] != b"PAR1":
        raise FormatError(
            f"{where}: expected a Parquet file, which ends with PAR1, found {size} bytes that end with "
            f"{tail[-4:]!r}; it is not a Parquet file or is incomplete: write it again, or remove it from the folder.",
            key=key,
        )
    length = int.from_bytes(tail[-8:-4], "little")
    begin = size - length - _ENDING_BYTES
    if begin < 4:
        raise _damaged(where, key, f"its footer should have {length} bytes, but the file has {size}")
    data = tail[begin - size :] if size - begin <= len(tail) else source.read(key, begin, size)
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        rows = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, key, str(error)) from error
    if rows != metadata.num_rows or rows < 0:
        raise _damaged(where, key, f"its row groups have {rows} rows, but the file {metadata.num_rows}")
    return Footer(key, size, begin, hashlib.sha256(data).hexdigest(), metadata)


def _is_unchanged(source: FileSource, footer: Footer) -> bool:
    """Return whether the file still ends with the same footer, which has the sizes and offsets of all its parts."""
    data = source.read(footer.key, footer.begin, footer.num_bytes + 1)
    return hashlib.sha256(data).hexdigest() == footer.digest


def _damaged(where: str, key: str, why: str) -> FormatError:
    return FormatError(f"{where}: the footer of this Parquet file is damaged: {why}. Write the file again.", key=key)


def _read_row_group(source: FileSource, footer: Footer, number: int, columns: Sequence[str]) -> pa.Table:
    """Read columns of one row group as they are stored, and check the page checksums where the file has them.

    The footer is compared again after the bytes were read, so that the decoded bytes belong to the planned file.

    Raises:
        StoreNotFound: the file is missing.
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
    if not _is_unchanged(source, footer):
        raise _changed(where, footer)
    try:
        with (
            pa.PythonFile(_RangesFile(parts, footer.num_bytes), mode="r") as handle,
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
        raise FormatError(f"{where} has {table.num_rows} rows, but its footer says {expected}.", key=footer.key)
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
                    f"{where}: column {chunk.path_in_schema} is at bytes [{begin}, {end}) by the footer, outside "
                    f"the file's data; the footer is damaged: write the file again.",
                    key=footer.key,
                )
            spans.append((begin, end))
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin - merged[-1][1] <= _MAX_GAP_BYTES:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _changed(where: str, footer: Footer) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"{where}: the file changed since this reader was opened (expected {footer.num_bytes} bytes with the footer "
        f"{footer.digest[:12]}). A data set must not change while it is read: open a new reader, and write new data to "
        "a new folder.",
        key=footer.key,
    )


class _RangesFile(io.RawIOBase):
    """A file object over some byte ranges of a file; every read of pyarrow lies within one of them."""

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


def data_files(source: FileSource) -> dict[str, int | None]:
    """Return the data files of a folder, with their sizes where they are known.

    Of a Delta table these are the files of its newest version; else those that Spark would read: neither their name
    nor a folder's starts with `_` or `.`.

    Raises:
        MissingDependency: the folder is a Delta table, and `deltalake` is not installed.
        FormatError: the folder is an Iceberg table, which also contains files that are no longer part of it, or a Delta
            table of a kind that is not supported.
    """
    infos = source.list()
    sizes = {info.key: info.num_bytes for info in infos}
    if any(key.startswith(delta.LOG) for key in sizes):
        return {key: sizes.get(key) for key in delta.live_files(source, infos)}
    if any(key.startswith("metadata/") and key.endswith(".metadata.json") for key in sizes):
        raise FormatError(
            f"{source.url} is an Iceberg table: its folder also contains files or rows that are no longer part of it. "
            'Read it with Spark (spark.read.format("iceberg").load(...)) and give the DataFrame to '
            "make_spark_converter, or give the list of its live files.",
            where=source.url,
        )
    return {key: size for key, size in sizes.items() if not any(part[0] in "_." for part in key.split("/"))}


def _partition_values(keys: list[str], where: str) -> list[dict[str, int | str | None]]:
    """Return the partition values of each file, from folders `name=value`; all-integer columns become numbers."""
    texts_by_file = [_partition_texts(key) for key in keys]
    names = [tuple(each) for each in texts_by_file]
    for key, found in zip(keys, names, strict=True):
        if found != names[0]:
            raise FormatError(
                f"{where}: {key} is partitioned by {', '.join(found) or 'no column'}, and {keys[0]} by "
                f"{', '.join(names[0]) or 'no column'}; all files of a data set must be partitioned alike.",
                where=where,
            )
    values: list[dict[str, int | str | None]] = [{} for _ in keys]
    for name in names[0] if names else ():
        texts = [each[name] for each in texts_by_file]
        whole = all(text is None or _INTEGER.fullmatch(text) for text in texts)
        for into, text in zip(values, texts, strict=True):
            into[name] = int(text) if whole and text is not None else text
    return values


def _partition_texts(key: str) -> dict[str, str | None]:
    pairs = (part.partition("=") for part in key.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, _, value in pairs}


@dataclass(frozen=True)
class RowGroup:
    """One row group of the data set."""

    file: int
    """Index of its file."""
    number: int
    """Index of the row group in the file."""
    num_rows: int
    num_bytes: int
    """Bytes of its columns, decompressed but still encoded, from the footer."""


class ParquetSet:
    """All row groups of the files, in the order of the files; `schema` has stored columns and partition columns."""

    def __init__(
        self,
        source: FileSource,
        footers: Sequence[Footer],
        schema: pa.Schema,
        partitions: Sequence[dict[str, int | str | None]],
    ) -> None:
        self.source, self.footers, self.schema, self.partitions = source, tuple(footers), schema, tuple(partitions)
        self.row_groups = tuple(
            RowGroup(at, number, group.num_rows, group.total_byte_size)
            for at, footer in enumerate(footers)
            for number in range(footer.metadata.num_row_groups)
            for group in [footer.metadata.row_group(number)]
        )

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return sum(group.num_rows for group in self.row_groups)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the files' names, sizes and footers, hex; it changes with their contents."""
        digest = hashlib.sha256()
        for footer in self.footers:
            digest.update(f"{footer.key}\n{footer.num_bytes}\n{footer.digest}\n".encode())
        return digest.hexdigest()

    def where(self, number: int) -> str:
        """Return the name of a row group for messages."""
        group = self.row_groups[number]
        return f"row group {group.number} of {self.source.locate(self.footers[group.file].key)}"

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of one row group, including partition columns.

        Raises:
            StoreError, FormatError: see `_read_row_group`.
        """
        group = self.row_groups[number]
        partition = self.partitions[group.file]
        stored = [name for name in columns if name not in partition]
        found: dict[str, Any] = {}
        if stored:
            table = _read_row_group(self.source, self.footers[group.file], group.number, stored)
            found = dict(zip(table.column_names, table.columns, strict=True))
        for name in columns:
            if name in partition:
                found[name] = pa.array([partition[name]] * group.num_rows, self.schema.field(name).type)
        return pa.table({name: found[name] for name in columns})


def open_set(place: Place, *, wait_seconds: float = 0.0) -> ParquetSet:
    """Open a data set: read the footers of its files, in many threads; wait for listed files to appear.

    Raises:
        StoreNotFound: there are no files.
        FilesNotAvailable: listed files did not appear in time.
        FormatError: a file is not a Parquet file or damaged, or the folder is a table of another kind.
        SchemaError: files have different columns.
    """
    source = place.source
    sizes = data_files(source) if place.keys is None else dict.fromkeys(place.keys)
    keys = list(sizes)
    if not keys:
        raise StoreNotFound(f"{source.url}: no Parquet files found; check the address.", url=source.url)
    if place.keys is not None:
        _await(source, keys, wait_seconds)
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(keys)), "smalti-footers") as pool:
        footers = list(pool.map(lambda key: read_footer(source, key, sizes[key]), keys))
    partitions = _partition_values(keys, source.url)
    return ParquetSet(source, footers, _schema(source, footers, partitions), partitions)


def _await(source: FileSource, keys: list[str], seconds: float) -> None:
    """Wait until all files exist."""
    end, missing = time.monotonic() + seconds, list(keys)
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(keys)), "smalti-files") as pool:
        while True:
            there = list(pool.map(lambda key: _exists(source, key), missing))
            missing = [key for key, found in zip(missing, there, strict=True) if not found]
            if not missing:
                return
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
    shown = ", ".join(source.locate(key) for key in missing[:5])
    raise FilesNotAvailable(
        f"{len(missing)} of {len(keys)} files did not appear within {seconds:g} s: {shown}"
        f"{', ...' if len(missing) > 5 else ''}. Were they deleted, or written to a disk of another machine?",
        missing=tuple(missing),
    )


def _exists(source: FileSource, key: str) -> bool:
    try:
        source.size(key)
    except StoreNotFound:
        return False
    return True


def _schema(
    source: FileSource, footers: Sequence[Footer], partitions: Sequence[dict[str, int | str | None]]
) -> pa.Schema:
    first = footers[0]
    schema = first.metadata.schema.to_arrow_schema().remove_metadata()
    for footer in footers[1:]:
        other = footer.metadata.schema.to_arrow_schema().remove_metadata()
        if other != schema and _types(other) != _types(schema):
            differing = sorted(set(_types(other).items()) ^ set(_types(schema).items()))
            raise SchemaError(
                f"{source.locate(footer.key)} has other columns than {first.key}: "
                f"{', '.join(f'{name}: {kind}' for name, kind in differing[:6])} are in only one of them. All files of "
                "a data set must have the same columns: write it again, or read those files separately.",
                key=footer.key,
            )
    doubled = [name for name in schema.names if schema.names.count(name) > 1]
    if doubled:
        raise SchemaError(f"{source.locate(first.key)} has several columns named {doubled[0]!r}; rename them.")
    for name in partitions[0]:
        if name in schema.names:
            continue
        kinds = {type(each[name]) for each in partitions if each[name] is not None}
        schema = schema.append(pa.field(name, pa.int64() if kinds == {int} else pa.string()))
    return schema


def _types(schema: pa.Schema) -> dict[str, str]:
    """Return names and types, without nullability, in which Spark's writers differ."""
    return {field.name: str(field.type) for field in schema}
