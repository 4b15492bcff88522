"""The Parquet files of a data set as one run of row groups, planned from their footers."""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from smalti.compat.petastorm.errors import FilesNotAvailable
from smalti.compat.petastorm.footers import Footer, read_footer
from smalti.compat.petastorm.listing import data_files, partition_values
from smalti.compat.petastorm.row_groups import read_row_group
from smalti.compat.petastorm.sources import FileSource, Place
from smalti.errors import SchemaError, StoreNotFound

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
