"""The Parquet files of a data set as one sequence of row groups, planned from their footers.

Here: the common columns of the files, the bytes of row groups. Not here: footers and folders that are columns
(`smalti.conversion.sources.parquet_files`), which files there are (`sources`), the cache of row groups (`rows`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import pyarrow as pa

from smalti.compat.petastorm.reading.sources import FileSource, find_files
from smalti.conversion.sources.parquet_files import (
    Footer,
    first_type,
    is_unchanged,
    open_rows,
    partition_texts,
    read_footer,
)
from smalti.errors import ChecksumMismatch, FormatError, SchemaError, SmaltiError
from smalti.writer.tables.columns import repeated

_INTEGER = r"-?(0|[1-9][0-9]{0,17})"
_FOOTER_THREADS = 32
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
"""Key of the pickled schema that Petastorm stores in `_common_metadata`. Smalti never unpickles it."""


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
        self.row_groups = tuple(group for footer in footers for group in footer.groups)
        self.places = tuple((file, at) for file, footer in enumerate(footers) for at in range(len(footer.groups)))
        """Index of the file of each row group, and its index in the file."""
        self.num_rows = sum(group.num_rows for group in self.row_groups)
        """Rows of all files."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the files' names, sizes and footers, hex; it changes with their contents."""
        digest = hashlib.sha256()
        for footer in self.footers:
            digest.update(f"{footer.key}\n{footer.num_bytes}\n{footer.digest}\n".encode())
        return digest.hexdigest()

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Read columns of one row group, with partition columns, and check the page checksums if the file has them.

        The footer is compared again after the bytes were read, so that the decoded bytes belong to the planned file.

        Raises:
            StoreNotFound: the file is missing.
            ChecksumMismatch: the file was replaced or changed since it was planned.
            FormatError: a page is damaged or encrypted.
        """
        place, at = self.places[number]
        footer, num_rows = self.footers[place], self.row_groups[number].num_rows
        parts = {
            name: pa.repeat(values[place], num_rows) for name, values in self._partitions.items() if name in columns
        }
        stored = [name for name in columns if name not in parts]
        if not stored:
            return pa.table({name: parts[name] for name in columns})
        where = f"row group {at} of {self.source.locate(footer.key)}"
        fault: Exception | None = None
        try:
            with open_rows(self.source, footer.key, footer.num_bytes, metadata=footer.metadata) as file:
                table = file.read_row_group(at, columns=stored, use_threads=False)
                table.validate()
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, SmaltiError):
                raise
            fault = error
        if not is_unchanged(self.source, footer):
            raise ChecksumMismatch(
                f"{where}: the file changed since this reader was opened (expected {footer.num_bytes} bytes with the "
                f"footer {footer.digest[:12]}). A data set must not change while it is read: open a new reader, and "
                "write new data to a new folder.",
                key=footer.key,
            )
        if fault is not None:
            raise FormatError(
                f"{where} cannot be decoded: {fault}. The file is damaged or encrypted: write it again, or restore it.",
                key=footer.key,
                row_group=at,
            ) from fault
        if table.num_rows != num_rows:
            raise FormatError(f"{where} has {table.num_rows} rows, but its footer says {num_rows}.", key=footer.key)
        parts |= dict(zip(table.column_names, table.columns, strict=True))
        return pa.table({name: parts[name] for name in columns})


def open_set(
    url_or_urls: str | Sequence[str],
    options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    *,
    wait_seconds: float = 0.0,
) -> ParquetSet:
    """Open the data set at a URL or several: find its files, and read their footers in many threads.

    Raises:
        ValueError, StoreNotFound, FilesNotAvailable, StoreError: see `find_files`.
        FormatError: a file is not a Parquet file or damaged, or the folder is a table of another kind.
        SchemaError: files have different columns.
    """
    source, sizes = find_files(url_or_urls, options, filesystem, wait_seconds=wait_seconds)
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(sizes)), "smalti-footers") as pool:
        footers = list(pool.map(lambda item: read_footer(source, *item), sizes.items()))
    partitions = {
        name: first_type(texts, ((_INTEGER, int, pa.int64()),))
        for name, texts in partition_texts(list(sizes), source.locate).items()
    }
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
    return ParquetSet(source, footers, schema, partitions)


def _types(schema: pa.Schema) -> dict[str, str]:
    """Return names and types, without nullability, in which Spark's writers differ."""
    return {field.name: str(field.type) for field in schema}
