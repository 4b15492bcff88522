"""The Parquet files of a data set as one sequence of row groups, planned from their footers.

Here: the choice of data files in a folder, their common columns, the bytes of row groups. Not here: footers and folders
that are columns (`smalti.conversion.sources.parquet_files`), where files are (`sources`), the log of a Delta table
(`delta`), the cache of row groups (`rows`).
"""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from smalti.compat.petastorm.errors import FilesNotAvailable
from smalti.compat.petastorm.reading import delta
from smalti.compat.petastorm.reading.sources import FileSource, ListedSource
from smalti.conversion.files import is_hidden
from smalti.conversion.sources.parquet_files import (
    Footer,
    first_type,
    is_unchanged,
    open_rows,
    partition_texts,
    read_footer,
    table_format,
)
from smalti.errors import ChecksumMismatch, FormatError, SchemaError, SmaltiError, StoreNotFound
from smalti.storage import ObjectInfo
from smalti.writer.tables.columns import repeated

_INTEGER = r"-?(0|[1-9][0-9]{0,17})"
_FOOTER_THREADS = 32
_POLL_SECONDS = 0.1
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Key of the pickled schema that Petastorm stores in `_common_metadata`. Smalti never unpickles it."""


def _read_row_group(source: FileSource, footer: Footer, number: int, columns: Sequence[str]) -> pa.Table:
    """Read columns of one row group as they are stored, and check the page checksums where the file has them.

    The footer is compared again after the bytes were read, so that the decoded bytes belong to the planned file.

    Raises:
        StoreNotFound: the file is missing.
        ChecksumMismatch: the file was replaced or changed since it was planned.
        FormatError: a page is damaged or encrypted.
    """
    where = f"row group {number} of {source.locate(footer.key)}"
    fault: Exception | None = None
    try:
        with open_rows(source, footer.key, footer.num_bytes, metadata=footer.metadata) as file:
            table = file.read_row_group(number, columns=list(columns), use_threads=False)
            table.validate()
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, SmaltiError):
            raise
        fault = error
    if not is_unchanged(source, footer):
        raise ChecksumMismatch(
            f"{where}: the file changed since this reader was opened (expected {footer.num_bytes} bytes with the "
            f"footer {footer.digest[:12]}). A data set must not change while it is read: open a new reader, and write "
            "new data to a new folder.",
            key=footer.key,
        )
    if fault is not None:
        raise FormatError(
            f"{where} cannot be decoded: {fault}. The file is damaged or encrypted: write it again, or restore it.",
            key=footer.key,
            row_group=number,
        ) from fault
    expected = footer.groups[number].num_rows
    if columns and table.num_rows != expected:
        raise FormatError(f"{where} has {table.num_rows} rows, but its footer says {expected}.", key=footer.key)
    return table


def data_files(source: FileSource) -> dict[str, ObjectInfo | None]:
    """Return the data files of a folder, as they are listed there.

    Of a Delta table these are the files of its newest version; else those that Spark would read.

    Raises:
        MissingDependency: the folder is a Delta table, and `deltalake` is not installed.
        FormatError: the folder is an Iceberg or Hudi table, which also contains files that are no longer part of it, or
            a Delta table of a kind that is not supported.
    """
    infos = {info.key: info for info in source.list()}
    kind = table_format(infos)
    if kind == "Delta":
        return {key: infos.get(key) for key in delta.live_files(source, list(infos.values()))}
    if kind is not None:
        article = "an" if kind == "Iceberg" else "a"
        raise FormatError(
            f"{source.url} is {article} {kind} table: its folder also contains files or rows that are no longer part "
            f"of it. "
            f'Read it with Spark (spark.read.format("{kind.lower()}").load(...)) and give the DataFrame to '
            "make_spark_converter, or give the list of its live files.",
            where=source.url,
        )
    return {key: info for key, info in infos.items() if not is_hidden(key)}


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
        partitions: dict[str, pa.Array],
    ) -> None:
        self.source, self.footers, self.schema, self._partitions = source, tuple(footers), schema, partitions
        self.row_groups = tuple(
            RowGroup(at, number, group.num_rows, group.num_bytes)
            for at, footer in enumerate(footers)
            for number, group in enumerate(footer.groups)
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
        stored = [name for name in columns if name not in self._partitions]
        found: dict[str, Any] = {}
        if stored:
            table = _read_row_group(self.source, self.footers[group.file], group.number, stored)
            found = dict(zip(table.column_names, table.columns, strict=True))
        for name in columns:
            if name in self._partitions:
                found[name] = pa.repeat(self._partitions[name][group.file], group.num_rows)
        return pa.table({name: found[name] for name in columns})


def open_set(place: ListedSource, *, wait_seconds: float = 0.0) -> ParquetSet:
    """Open a data set: read the footers of its files, in many threads; wait for listed files to appear.

    Raises:
        StoreNotFound: there are no files.
        FilesNotAvailable: listed files did not appear in time.
        FormatError: a file is not a Parquet file or damaged, or the folder is a table of another kind.
        SchemaError: files have different columns.
    """
    source = place.source
    infos = data_files(source) if place.keys is None else dict.fromkeys(place.keys)
    if not infos and place.as_file is not None:
        file = place.as_file
        if wait_seconds or _exists(file.source, (file.keys or ("",))[0]):
            return open_set(file, wait_seconds=wait_seconds)
    if not infos:
        raise StoreNotFound(f"{source.url}: no Parquet files found; check the address.", url=source.url)
    keys = list(infos)
    if place.keys is not None:
        _await(source, keys, wait_seconds)

    def footer_of(key: str) -> Footer:
        info = infos[key]
        return read_footer(source, key, source.size(key) if info is None else info.num_bytes)

    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(keys)), "smalti-footers") as pool:
        footers = list(pool.map(footer_of, keys))
    partitions = {
        name: first_type(texts, ((_INTEGER, int, pa.int64()),))
        for name, texts in partition_texts(keys, source.locate).items()
    }
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


def _schema(source: FileSource, footers: Sequence[Footer], partitions: dict[str, pa.Array]) -> pa.Schema:
    first = footers[0]
    schema = first.schema.remove_metadata()
    for footer in footers[1:]:
        other = footer.schema.remove_metadata()
        if other != schema and _types(other) != _types(schema):
            differing = sorted(set(_types(other).items()) ^ set(_types(schema).items()))
            raise SchemaError(
                f"{source.locate(footer.key)} has other columns than {first.key}: "
                f"{', '.join(f'{name}: {kind}' for name, kind in differing[:6])} are in only one of them. All files of "
                "a data set must have the same columns: write it again, or read those files separately.",
                key=footer.key,
            )
    if doubled := repeated(schema.names):
        raise SchemaError(f"{source.locate(first.key)} has several columns named {doubled[0]!r}; rename them.")
    for name, values in partitions.items():
        if name not in schema.names:
            schema = schema.append(pa.field(name, values.type))
    return schema


def _types(schema: pa.Schema) -> dict[str, str]:
    """Return names and types, without nullability, in which Spark's writers differ."""
    return {field.name: str(field.type) for field in schema}
