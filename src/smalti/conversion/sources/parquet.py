"""Parquet as a source: a file, a folder with or without partition columns in its folder names, or a pattern.

Row groups are the smallest pieces that can be read alone: a part is a row group of one file. Columns of files are
matched by name; one that a file lacks is null there. Folders named `key=value` are columns, as Spark reads them. Files
of the Hugging Face Hub say in their metadata which columns are images and classes.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from smalti.conversion.files import SourceFiles, StoredFile, list_files
from smalti.conversion.source import OpenedSource, SourceOptions, check_columns
from smalti.conversion.sources.huggingface import HuggingFaceColumn, dataset_columns, features_in
from smalti.conversion.sources.parquet_files import (
    LOG_FOLDERS,
    SUFFIXES,
    Footer,
    first_type,
    metadata_of,
    open_rows,
    partition_texts,
    read_footer,
    rows_in_summary,
    splits_of_hub,
    table_format,
)
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound, VersionNotFound
from smalti.format.index import MAX_INDEX_BYTES
from smalti.writer.tables.values import cast_array, plain_array, plain_type

_SUMMARY = "_metadata"
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
_BATCH_ROWS_OF_TEXT = 1 << 13
"""Text and bytes take their length for each row; footers count equal values of a column once."""
_SEARCHED_ROWS = 8
"""Rows that are read at once to find the first image of a column."""
_MAX_WHOLE_BYTES = 32 << 20
"""Larger row groups are read as streams: otherwise all of their columns are in memory at once."""
_READERS = 16  # threads that read footers: each takes the round trips of a store
_ABOUT = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"})
"""Files that `datasets` writes beside Parquet files about them."""
_ABOUT_SUFFIXES = frozenset({".md", ".rst", ".yaml", ".yml", ".crc", ".lock"})
_ABOUT_STEMS = frozenset({"readme", "license", "licence", "notice", "citation", "changelog"})


def recognises(place: object, names: Sequence[str]) -> bool:  # noqa: ARG001  the interface of formats
    """Return whether most files are Parquet by their names; pages and metadata about the files are not counted."""
    number = sum(map(_is_wanted, names))
    return number > 0 and number * 2 > sum(not _is_about(name) for name in names)


def _is_about(name: str) -> bool:
    path = PurePosixPath(name.lower())
    return path.name in _ABOUT or path.suffix in _ABOUT_SUFFIXES or path.stem in _ABOUT_STEMS


def _is_wanted(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def open_source(place: Any, options: SourceOptions) -> OpenedSource:
    """Return the Parquet files at a path, URL or pattern as a source; reads the footers of all files.

    Its columns are those of all files, and those of folder names at the end; its parts are row groups, in order.

    Raises:
        SmaltiError: The columns of two files do not fit each other.
        SchemaError: A column that was asked for is missing.
        FormatError: A file is no Parquet file, or is encrypted; some of the files are missing; or the folder is a
            table of Delta, Iceberg or Hudi, whose files are not all rows of it.
        VersionNotFound: The folder has several splits.
    """
    options.settings_of("Parquet files")
    what = f"no file there ends with {' or '.join(SUFFIXES)}"
    found = list_files(place, options.storage_options).wanted(_is_wanted, what=what)
    if not found.pattern:  # deleted and replaced rows of a table with a log are still in files there
        name = table_format(each.key for folder in LOG_FOLDERS for each in found.store.list(folder))
        if name is not None:
            raise FormatError(
                f"{found.url} is a {name} table: files of deleted and replaced rows are there too. Read the table with "
                "Spark and `dataframe_to_mds`, or give `convert` a pattern of the files that belong to it",
                url=found.url,
            )
    with ThreadPoolExecutor(min(_READERS, len(found.files)), thread_name_prefix="smalti-footer") as pool:
        footers = list(pool.map(lambda file: read_footer(found.store, file.key, file.num_bytes), found.files))
    texts = partition_texts([file.key for file in found.files], found.store.locate)
    values = {name: first_type(column, _PARTITION_TYPES) for name, column in texts.items()}
    stored = _joint_schema(found, footers)
    for name, column in values.items():
        added, place = pa.field(name, column.type), stored.get_field_index(name)
        stored = stored.append(added) if place < 0 else stored.set(place, added)
    if options.columns is not None:
        check_columns(found.url, options.columns, stored.names)
        stored = pa.schema([stored.field(name) for name in dict.fromkeys(options.columns)])
    features = {name: each for name, each in _features(found, footers).items() if name not in values}
    parts = list(_parts(found, footers, stored, values))

    def first_rows(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return (batch for part in parts for batch in part.stored(names, _SEARCHED_ROWS))

    columns = dataset_columns(found.url, stored, features, None, first_rows) if features else ()
    if files_in := {column.field.name: column for column in columns if column.is_file}:
        parts = [replace(part, files_in=files_in) for part in parts]
    fields = {column.field.name: column.field for column in columns if column.field.name in features}
    if not found.pattern:
        _check_summary(found, footers)
    return found.source(pa.schema([fields.get(column.name, column) for column in stored]), parts)


def _parts(
    found: SourceFiles, footers: Sequence[Footer], stored: pa.Schema, values: Mapping[str, pa.Array]
) -> Iterator["ParquetPart"]:
    """Yield one part per row group that has rows."""
    is_fixed = all(pt.is_primitive(kind) or pt.is_decimal(kind) or pt.is_null(kind) for kind in stored.types)
    most_rows = _BATCH_ROWS if is_fixed else _BATCH_ROWS_OF_TEXT
    for place, (file, footer) in enumerate(zip(found.each(), footers, strict=True)):
        of_file = {name: column[place] for name, column in values.items() if name in stored.names}
        raw_bytes = max(1, sum(group.num_bytes for group in footer.groups))
        for number, group in enumerate(footer.groups):
            if group.num_rows:
                num_bytes = footer.num_bytes * group.num_bytes // raw_bytes
                rows = max(1, min(most_rows, _BATCH_BYTES * group.num_rows // max(1, group.num_bytes)))
                yield ParquetPart(file, footer.digest, number, group.num_rows, num_bytes, rows, stored, of_file)


def _joint_schema(found: SourceFiles, footers: Sequence[Footer]) -> pa.Schema:
    joint = _plain(footers[0].schema)
    for footer in footers[1:]:
        schema = _plain(footer.schema)
        if schema.equals(joint):
            continue
        try:
            joint = pa.unify_schemas([joint, schema], promote_options="permissive")
        except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
            raise SmaltiError(
                f"{found.store.locate(footer.key)} has other columns than {footers[0].key} and files "
                f"between: {error}. Convert them on their own, or rewrite one with the types of the other",
                key=footer.key,
            ) from error
    return joint


def _features(found: SourceFiles, footers: Sequence[Footer]) -> Mapping[str, Any]:
    """Return the features of the dataset, if `datasets` wrote the files; the same for all of them."""
    first = footers[0]
    features = features_in(first.schema, found.store.locate(first.key))
    for footer in footers[1:]:
        others = features_in(footer.schema, found.store.locate(footer.key))
        differing = [name for name in others if name in features and others[name] != features[name]]
        if differing:
            raise SchemaError(
                f"{found.store.locate(footer.key)} describes column {differing[0]!r} in another way than "
                f"{first.key}, such as by other names of classes; convert them on their own",
                column=differing[0],
            )
    splits = splits_of_hub(file.key for file in found.files) if features and not found.pattern else []
    if len(splits) > 1:
        raise VersionNotFound(
            f"{found.url} has the splits {', '.join(splits)}: choose one by a pattern of its files, such as "
            f"{found.url}/**/{splits[0]}-*.parquet"
        )
    return features


def _check_summary(found: SourceFiles, footers: Sequence[Footer]) -> None:
    """Compare files with the `_metadata` file of a folder, which lists files and their rows, if there is one.

    Raises:
        FormatError: A file that it lists is missing, or has another number of rows.
    """
    try:
        data = found.store.get_limited(_SUMMARY, MAX_INDEX_BYTES)
    except StoreNotFound:
        return
    where = found.store.locate(_SUMMARY)
    advice = f"fetch the files again; or remove {_SUMMARY} if it is out of date"
    try:
        listed = rows_in_summary(data)
    except ValueError as error:
        raise FormatError(f"{where} cannot be read: {str(error)[:200]}; {advice}", key=_SUMMARY) from error
    present = {footer.key: footer.num_rows for footer in footers}
    for key, rows in listed.items():
        if present.get(key) != rows:
            state = "which is missing" if key not in present else f"which has {present[key]} rows"
            raise FormatError(f"{where} lists {key} with {rows} rows, {state}; {advice}", key=key)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema in types without dictionaries and views, with the metadata that Smalti knows."""
    fields = []
    for column in schema:
        notes = {key: value for key, value in (column.metadata or {}).items() if key.startswith(b"smalti.")}
        fields.append(pa.field(column.name, plain_type(column.type), column.nullable, notes or None))
    return pa.schema(fields)


@dataclass(frozen=True)
class ParquetPart:
    """One row group of a file."""

    file: StoredFile
    digest: str
    """Digest of the footer."""
    group: int
    """Number of the row group."""
    num_rows: int
    """Rows of the row group, by the footer."""
    num_bytes: int
    """Stored size of about the row group."""
    batch_rows: int
    """Rows of a batch, so that it has some megabytes."""
    columns: pa.Schema
    """Columns as they are in the files, in plain types."""
    values: dict[str, Any]
    """Value of each partition column."""
    files_in: Mapping[str, HuggingFaceColumn] = field(default_factory=dict)
    """Columns that hold files, with their contents in the batches."""

    @property
    def name(self) -> str:
        """File and row group."""
        return f"{self.file.key}, row group {self.group}"

    @property
    def where(self) -> str:
        """Address of the file, and row group."""
        return f"{self.file.url}, row group {self.group}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the row group.

        Raises:
            FormatError: It is damaged, or has another number of rows than its footer says.
            SchemaError: A value does not fit the type that other files have.
        """
        count = 0
        for batch in self.stored(self.columns.names, self.batch_rows):
            arrays = [self._column(batch, field) for field in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, self.columns.names)
            count += batch.num_rows
        if count != self.num_rows:
            raise FormatError(
                f"{self.where}: it has {count} rows, and its footer says {self.num_rows}", key=self.file.key
            )

    def stored(self, wanted: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns, as they are stored."""
        streams = self.num_bytes > _MAX_WHOLE_BYTES
        place = self.file.store, self.file.key, self.file.num_bytes
        with open_rows(*place, metadata=metadata_of(*place, self.digest), streams=streams) as file:
            present = set(file.schema_arrow.names)
            names = [name for name in wanted if name in present and name not in self.values]
            try:
                yield from file.iter_batches(batch_rows, [self.group], names, use_threads=False)
            except SmaltiError:
                raise
            except (pa.ArrowException, OSError, ValueError) as error:
                raise FormatError(
                    f"{self.where} cannot be read: {str(error)[:300]}; the file is damaged or encrypted: fetch or "
                    "write it again",
                    key=self.file.key,
                ) from error

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self.values:
            return pa.repeat(pa.scalar(self.values[field.name], field.type), batch.num_rows)
        place = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if place < 0 else batch.column(place)
        try:
            cast = cast_array(plain_array(array), field.type)
        except pa.ArrowException as error:
            raise SchemaError(
                f"{self.name}: column {field.name!r} is {array.type} in this file and {field.type} in others, and a "
                f"value does not fit: {error}",
                column=field.name,
            ) from error
        return self.files_in[field.name].array(cast, self.where) if field.name in self.files_in else cast


_WHOLE = r"[+-]?[0-9]{1,19}"
_PARTITION_TYPES = (
    (_WHOLE, int, pa.int32()),
    (_WHOLE, int, pa.int64()),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", dt.date.fromisoformat, pa.date32()),
)
"""Types of the values of folder names, as Spark decides; text is the last."""
