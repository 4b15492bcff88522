"""Parquet as a source: a file, a folder with or without partition columns in its folder names, or a pattern.

Row groups are the smallest pieces that can be read alone: a part is some row groups of one file. Columns of files are
matched by name; one that a file lacks is null there. Folders named `key=value` are columns, as Spark reads them.
"""

import datetime as dt
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.conversion.files import SourceFiles, list_files, open_random
from smalti.conversion.source import SourceOptions
from smalti.errors import FormatError, SchemaError, SmaltiError
from smalti.sources.listing import LeftOut
from smalti.storage import Store
from smalti.writer.tables.kinds import plain_type

_SUFFIXES = (".parquet", ".pq", ".parq")
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
_MAX_WHOLE_BYTES = 32 << 20
"""Larger row groups are read as streams: otherwise all of their columns are in memory at once."""
_STREAM_BYTES = 2 << 20
_READERS = 16  # threads that read footers: each takes the round trips of a store
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_FOLDER = re.compile(r"([^/=]+)=([^/]*)")
_LOGS = {"_delta_log": "Delta", "metadata": "Iceberg", ".hoodie": "Hudi"}
"""By folder beside the files of a table: the format whose log says which of the files are rows of the table now."""


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001  the interface of formats
    """Return whether most files are Parquet by their names."""
    return sum(name.lower().endswith(_SUFFIXES) for name in names) * 2 > len(names)


def open_source(place: Any, options: SourceOptions) -> "ParquetSource":
    """Return the Parquet files at a path, URL or pattern as a source; reads the footers of all files.

    Raises:
        SmaltiError: A file is no Parquet file, or the columns of two files do not fit each other.
        SchemaError: A column that was asked for is missing.
        FormatError: The folder is a table of Delta, Iceberg or Hudi, whose files are not all rows of it.
    """
    if options.settings:
        raise ValueError(f"Parquet has no settings, found {', '.join(map(repr, options.settings))}")
    found = list_files(place, options.storage_options).having(_SUFFIXES)
    if not found.pattern:
        _refuse_tables(found)
    return ParquetSource(found, options)


def _refuse_tables(found: SourceFiles) -> None:
    """Raise an error if a folder is a table with a log: its deleted and replaced rows are still in files there.

    Raises:
        FormatError: It is one.
    """
    for folder, name in _LOGS.items():
        logs = (each.key for each in found.store.list(folder))
        if any(folder != "metadata" or key.endswith(".metadata.json") for key in logs):
            raise FormatError(
                f"{found.url} is a {name} table: files of deleted and replaced rows are there too. Read the table with "
                "Spark and `dataframe_to_mds`, or give `convert` a pattern or list of the files that belong to it",
                url=found.url,
            )


class ParquetSource:
    """The rows of Parquet files, in the order of their names."""

    def __init__(self, found: SourceFiles, options: SourceOptions) -> None:
        self._files = found
        with ThreadPoolExecutor(min(_READERS, len(found.files)), thread_name_prefix="smalti-footer") as pool:
            self._footers = list(
                pool.map(lambda file: _read_footer(found.store, file.key, file.num_bytes), found.files)
            )
        folders = [dict(_partitions_in(file.key)) for file in found.files]
        self._values = _typed_values(folders, found)
        self._schema = _chosen(_with_partitions(self._joint_schema(), self._values), options.columns)

    @property
    def url(self) -> str:
        """Address of the files."""
        return self._files.url

    def schema(self) -> pa.Schema:
        """Return the columns of all files, and those of folder names at the end."""
        return self._schema

    def identity(self) -> Any:
        """Return a digest of the files as they are now."""
        return self._files.identity()

    @property
    def left_out(self) -> LeftOut:
        """Files at the place that are not read."""
        return self._files.left_out

    def parts(self) -> Sequence["ParquetPart"]:
        """Return one part per row group, in order."""
        parts = []
        for place, (file, footer) in enumerate(zip(self._files.files, self._footers, strict=True)):
            values = {name: column[place] for name, column in self._values.items() if name in self._schema.names}
            for group, (num_rows, num_bytes, raw_bytes) in enumerate(footer.groups):
                if num_rows:
                    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * num_rows // max(1, raw_bytes)))
                    parts.append(
                        ParquetPart(
                            self._files.store, file.key, file.num_bytes, group, num_bytes, rows, self._schema, values
                        )
                    )
        return parts

    def _joint_schema(self) -> pa.Schema:
        joint = self._footers[0].schema
        for file, footer in zip(self._files.files, self._footers, strict=True):
            if footer.schema.equals(joint):
                continue
            try:
                joint = pa.unify_schemas([joint, footer.schema], promote_options="permissive")
            except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
                first = self._files.files[0].key
                raise SmaltiError(
                    f"{self._files.store.locate(file.key)} has other columns than {first} and files between: {error}. "
                    f"Convert them on their own, or rewrite one with the types of the other",
                    key=file.key,
                ) from error
        return joint


@dataclass(frozen=True)
class _Footer:
    """The columns and row groups that a Parquet file declares."""

    schema: pa.Schema
    """Columns, in types without dictionaries and views."""
    groups: tuple[tuple[int, int, int], ...]
    """Of each row group: rows, bytes as stored, bytes without compression."""


def _read_footer(store: Store, key: str, num_bytes: int) -> _Footer:
    with _open(store, key, num_bytes) as file:
        footer = file.metadata
        int96 = {
            column.path for column in map(footer.schema.column, range(len(footer.schema.names)))
            if column.physical_type == "INT96"
        }  # fmt: skip
        schema = pa.schema([_plain_field(field, int96) for field in file.schema_arrow])
        groups = []
        for group in map(footer.row_group, range(footer.num_row_groups)):
            stored = sum(group.column(each).total_compressed_size for each in range(group.num_columns))
            groups.append((group.num_rows, stored, group.total_byte_size))
    return _Footer(schema, tuple(groups))


def _plain_field(field: pa.Field, int96: set[str]) -> pa.Field:
    # Spark writes moments as INT96, which says nothing of zones, and means UTC.
    kind = pa.timestamp("us", "UTC") if field.name in int96 else plain_type(field.type)
    notes = {key: value for key, value in (field.metadata or {}).items() if key.startswith(b"smalti.")}
    return pa.field(field.name, kind, field.nullable, notes or None)


def _open(store: Store, key: str, num_bytes: int, *, streams: bool = False) -> pq.ParquetFile:
    """Open a file; with `streams`, columns are read in pieces and not as a whole, which takes more requests."""
    try:
        file = open_random(store, key, num_bytes)
        return pq.ParquetFile(
            file,
            pre_buffer=not streams,
            buffer_size=_STREAM_BYTES if streams else 0,
            coerce_int96_timestamp_unit="us",
        )
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, SmaltiError):
            raise
        raise SmaltiError(f"{store.locate(key)} cannot be read as Parquet: {error}", key=key) from error


@dataclass(frozen=True)
class ParquetPart:
    """One row group of a file."""

    store: Store
    key: str
    file_bytes: int
    group: int
    """Number of the row group."""
    num_bytes: int
    """Stored size of the row group."""
    batch_rows: int
    """Rows of a batch, so that it has some megabytes."""
    columns: pa.Schema
    """Columns of the batches."""
    values: dict[str, Any]
    """Value of each partition column."""

    @property
    def name(self) -> str:
        """File and row group."""
        return f"{self.key}, row group {self.group}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the row group."""
        with _open(self.store, self.key, self.file_bytes, streams=self.num_bytes > _MAX_WHOLE_BYTES) as file:
            present = set(file.schema_arrow.names)
            names = [name for name in self.columns.names if name in present and name not in self.values]
            found = file.iter_batches(self.batch_rows, [self.group], names, use_threads=False)
            while True:
                try:
                    batch = next(found, None)
                except (pa.ArrowException, OSError) as error:
                    if isinstance(error, SmaltiError):
                        raise
                    raise SmaltiError(f"{self.store.locate(self.key)}, row group {self.group}: {error}") from error
                if batch is None:
                    return
                yield pa.RecordBatch.from_arrays(
                    [self._column(batch, each) for each in self.columns], schema=self.columns
                )

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.values:
            return pa.repeat(pa.scalar(self.values[field.name], field.type), batch.num_rows)
        place = batch.schema.get_field_index(field.name)
        if place < 0:
            return pa.nulls(batch.num_rows, field.type)
        array = batch.column(place)
        if array.type == field.type:
            return array
        try:
            return array.cast(field.type)
        except pa.ArrowException as error:
            raise SchemaError(
                f"{self.name}: column {field.name!r} is {array.type} in this file and {field.type} in others, and a "
                f"value does not fit: {error}",
                column=field.name,
            ) from error


def _partitions_in(key: str) -> Iterator[tuple[str, str | None]]:
    """Yield name and value of each folder `name=value` in a key."""
    for part in key.split("/")[:-1]:
        match = _FOLDER.fullmatch(part)
        if match is not None:
            yield unquote(match[1]), None if match[2] == _NULL_FOLDER else unquote(match[2])


def _typed_values(folders: list[dict[str, str | None]], found: SourceFiles) -> dict[str, pa.Array]:
    """Return the values of each partition column, one for each file, in the type that all of them have.

    Raises:
        SmaltiError: Some files are in such folders, and others are not.
    """
    names = list(folders[0])
    for file, values in zip(found.files, folders, strict=True):
        if list(values) != names:
            raise SmaltiError(
                f"{found.store.locate(file.key)} is in folders of the columns {', '.join(values) or 'none'}, and "
                f"{found.files[0].key} in {', '.join(names) or 'none'}; convert them on their own",
                key=file.key,
            )
    return {name: _typed([values[name] for values in folders]) for name in names}


def _typed(texts: list[str | None]) -> pa.Array:
    """Return texts as int32, int64, dates or text, whichever holds all of them first, as Spark decides."""
    for convert, kind in ((_whole, pa.int32()), (_whole, pa.int64()), (_date, pa.date32())):
        try:
            return pa.array([None if text is None else convert(text) for text in texts], kind)
        except (ValueError, pa.ArrowInvalid, OverflowError):  # noqa: PERF203 -- three types
            continue
    return pa.array(texts, pa.string())


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(text)
    return int(text)


def _date(text: str) -> dt.date:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        raise ValueError(text)
    return dt.date.fromisoformat(text)


def _with_partitions(schema: pa.Schema, values: dict[str, pa.Array]) -> pa.Schema:
    for name, column in values.items():
        field = pa.field(name, column.type)
        place = schema.get_field_index(name)
        schema = schema.append(field) if place < 0 else schema.set(place, field)
    return schema


def _chosen(schema: pa.Schema, names: tuple[str, ...] | None) -> pa.Schema:
    """Return the columns that are read.

    Raises:
        SchemaError: One is missing.
    """
    if names is None:
        return schema
    for name in names:
        if schema.names.count(name) > 1:
            raise SchemaError(f"the files have column {name!r} more than once; rename or drop one", column=name)
        if name not in schema.names:
            raise SchemaError(f"`columns` names {name!r}, the files have {', '.join(schema.names)}", column=name)
    return pa.schema([schema.field(name) for name in dict.fromkeys(names)])
