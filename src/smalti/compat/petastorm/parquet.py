"""The Parquet files of a data set as one run of row groups, planned from their footers.

The footer of a Parquet file: read from its end by ranges, checked, and remembered by its hash.

Reading one row group: the bytes of the columns that are wanted, checked, then decoded.

Which files of a folder are data, and what their folders' names say; decided by names alone.

Errors that Petastorm's users catch by these names.
"""

import hashlib
import io
import re
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.compat.petastorm.sources import FileSource, Place
from smalti.errors import ChecksumMismatch, FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.storage import ObjectInfo

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


NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def data_files(infos: Iterable[ObjectInfo], where: str) -> list[ObjectInfo]:
    """The files that Spark would read: not those whose name, or a folder's, begins with `_` or `.`.

    Raises:
        FormatError: it is a Delta or Iceberg table: its folder also holds files that are no longer part of it.
    """
    infos = list(infos)
    for kind, is_sign in (("Delta", _is_delta), ("Iceberg", _is_iceberg)):
        if any(is_sign(info.key) for info in infos):
            raise FormatError(
                f"{where} is a {kind} table: its folder also holds files that are no longer part of it, or hides rows "
                f'of those that are. Read it with Spark (spark.read.format("{kind.lower()}").load(...)) and give '
                "the DataFrame to make_spark_converter, or give the list of its live files.",
                where=where,
            )
    return [info for info in infos if not any(part[0] in "_." for part in info.key.split("/"))]


def _is_delta(key: str) -> bool:
    return key.startswith("_delta_log/")


def _is_iceberg(key: str) -> bool:
    return key.startswith("metadata/") and key.endswith(".metadata.json")


def partition_values(keys: list[str], where: str) -> list[dict[str, int | str | None]]:
    """What the folders `name=value` of each file say; a column of whole numbers only becomes numbers.

    Raises:
        FormatError: some files have other such folders than others.
    """
    told = [_told(key) for key in keys]
    names = [tuple(each) for each in told]
    for key, found in zip(keys, names, strict=True):
        if found != names[0]:
            raise FormatError(
                f"{where}: {key} lies in folders for {', '.join(found) or 'no column'}, and {keys[0]} in folders for "
                f"{', '.join(names[0]) or 'no column'}; all files of a data set are partitioned alike.",
                where=where,
            )
    values: list[dict[str, int | str | None]] = [{} for _ in told]
    for name in names[0] if names else ():
        texts = [each[name] for each in told]
        whole = all(text is None or _WHOLE.fullmatch(text) for text in texts)
        for into, text in zip(values, texts, strict=True):
            into[name] = int(text) if whole and text is not None else text
    return values


def _told(key: str) -> dict[str, str | None]:
    pairs = (part.partition("=") for part in key.split("/")[:-1] if "=" in part)
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, _, value in pairs}


class NoDataAvailableError(SmaltiError):
    """There is not one row to read."""


class FilesNotAvailable(StoreNotFound, RuntimeError):  # noqa: N818 -- named for what happened, as smalti.errors is
    """Files of a converted DataFrame did not appear in time."""


_FOOTER_THREADS = 32
_POLL_SECONDS = 0.1
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Under it Petastorm keeps a pickle of its schema, in `_common_metadata`. It is never loaded here."""


@dataclass(frozen=True)
class RowGroup:
    """One row group of the data set."""

    file: int
    """Number of its file."""
    number: int
    """Its number in the file."""
    num_rows: int
    num_bytes: int
    """Bytes of its columns, decompressed but still encoded, as the footer says."""


class ParquetSet:
    """All row groups of the files, in the files' order.

    Args:
        source: where the files lie.
        footers: of each file, in order.
        schema: columns as they are stored, and as the folders' names say.
        partitions: of each file, what its folders' names say.
    """

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
        """SHA-256 over the files' names, sizes and footers: it changes with what they hold; hex."""
        told = hashlib.sha256()
        for footer in self.footers:
            told.update(f"{footer.key}\n{footer.num_bytes}\n{footer.digest}\n".encode())
        return told.hexdigest()

    def where(self, number: int) -> str:
        """A row group, for messages."""
        group = self.row_groups[number]
        return f"row group {group.number} of {self.source.locate(self.footers[group.file].key)}"

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """The columns of one row group, those among them that its folders' names say.

        Raises:
            StoreError, FormatError: as `read_row_group` has it.
        """
        group = self.row_groups[number]
        told = self.partitions[group.file]
        stored = [name for name in columns if name not in told]
        found: dict[str, Any] = {}
        if stored:
            table = read_row_group(self.source, self.footers[group.file], group.number, stored)
            found = dict(zip(table.column_names, table.columns, strict=True))
        for name in columns:
            if name in told:
                found[name] = pa.array([told[name]] * group.num_rows, self.schema.field(name).type)
        return pa.table({name: found[name] for name in columns})


def open_set(place: Place, *, wait_seconds: float = 0.0) -> ParquetSet:
    """The data set at a place: its footers are read, by many threads at once.

    Args:
        place: a folder, or files that were named.
        wait_seconds: how long files that were named may take to appear.

    Raises:
        StoreNotFound: there is no file.
        FilesNotAvailable: files that were named did not appear in time.
        FormatError: a file is no Parquet file, or damaged, or the folder is a table of another kind.
        SchemaError: files have different columns.
    """
    source, sizes = place.source, {}
    if place.keys is None:
        sizes = {info.key: info.num_bytes for info in data_files(source.list(), source.url)}
    keys = list(sizes) if place.keys is None else list(place.keys)
    if not keys:
        raise StoreNotFound(f"{source.url}: no Parquet file is there; check the address.", url=source.url)
    if place.keys is not None:
        _await(source, keys, wait_seconds)
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(keys)), "smalti-footers") as pool:
        footers = list(pool.map(lambda key: read_footer(source, key, sizes.get(key)), keys))
    partitions = partition_values(keys, source.url)
    return ParquetSet(source, footers, _schema(source, footers, partitions), partitions)


def _await(source: FileSource, keys: list[str], seconds: float) -> None:
    """Returns once all files are there."""
    end, missing = time.monotonic() + seconds, list(keys)
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(keys)), "smalti-files") as pool:
        while True:
            there = list(pool.map(lambda key: _is_there(source, key), missing))
            missing = [key for key, found in zip(missing, there, strict=True) if not found]
            if not missing:
                return
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
    shown = ", ".join(source.locate(key) for key in missing[:5])
    raise FilesNotAvailable(
        f"{len(missing)} of {len(keys)} files are not there after {seconds:g} s: {shown}"
        f"{', ...' if len(missing) > 5 else ''}. Were they deleted, or not written to a place that this machine sees?",
        missing=tuple(missing),
    )


def _is_there(source: FileSource, key: str) -> bool:
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
                f"{', '.join(f'{name}: {kind}' for name, kind in differing[:6])} are in one of them only. All files of "
                "a data set have the same columns: write it anew, or read those files by themselves.",
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
    """Names and types; whether a column may hold nulls is not compared, as Spark's writers differ there."""
    return {field.name: str(field.type) for field in schema}
