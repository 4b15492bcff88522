"""Parquet as a source: a file, a folder with or without partition columns in its folder names, or a pattern.

Row groups are the smallest pieces that can be read alone: a part is a row group of one file. Columns of files are
matched by name; one that a file lacks is null there. Folders named `key=value` are columns, as Spark reads them. Files
of the Hugging Face Hub say in their metadata which columns are images and classes.

Also here: the rules of Parquet files before their rows are read, which the readers of `smalti.compat.petastorm` share:
footers, folders that are columns, tables with a log, missing parts. pyarrow ends the process when Python asks it for a
column chunk whose metadata are encrypted (`RowGroupMetaData.column`): nothing here asks for column chunks.
"""

import datetime as dt
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from smalti.conversion.files import NUMBERED, Files, SourceFiles, StoredFile, list_files, open_random
from smalti.conversion.source import OpenedSource, SourceOptions, check_columns
from smalti.conversion.sources.huggingface import HuggingFaceColumn, dataset_columns, features_in
from smalti.errors import FormatError, SchemaError, SmaltiError, StoreNotFound, VersionNotFound
from smalti.format.index import MAX_INDEX_BYTES
from smalti.writer.tables.values import cast_array, plain_array, plain_type, replace_leaves

SUFFIXES = (".parquet", ".pq", ".parq")
_TAIL_BYTES = 1 << 16
"""Bytes to read from the end of a file at once: nearly every footer is shorter."""
_ENDING_BYTES = 8
"""The length of the footer (4 bytes), and `PAR1`."""
_MIN_FILE_BYTES = 12
_MAX_FOOTER_BYTES = 1 << 28
"""Footers of 100,000 columns and 20 row groups have a tenth of it."""
_SIGNATURE_BYTES = 28
"""Signature behind the metadata in the readable footer of a file with encrypted columns."""
_STREAM_BYTES = 2 << 20
_CHILD_SECONDS = 120
_PRINT_SUMMARY = """
import json, sys
from pyarrow import dataset
found = dataset.parquet_dataset(sys.argv[1]).get_fragments()
print(json.dumps([(each.path, group.num_rows) for each in found for group in each.row_groups]))
"""
"""The program that prints file and rows of each row group that a `_metadata` file lists."""
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_LOGS = {"Delta": r"_delta_log/.*", "Iceberg": r"metadata/[^/]*\.metadata\.json", "Hudi": r"\.hoodie/.*"}
"""By format of tables whose log says which files belong to the table now: a pattern of the log's files."""
LOG_FOLDERS = ("_delta_log", "metadata", ".hoodie")
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
_WHOLE = r"[+-]?[0-9]{1,19}"
_PARTITION_TYPES = (
    (_WHOLE, int, pa.int32()),
    (_WHOLE, int, pa.int64()),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", dt.date.fromisoformat, pa.date32()),
)
"""Types of the values of folder names, as Spark decides; text is the last."""


@dataclass(frozen=True)
class RowGroup:
    """The size of one row group, by the footer."""

    num_rows: int
    num_bytes: int
    """Bytes of all columns, encoded and not compressed."""


@dataclass(frozen=True)
class Footer:
    """The footer of one file."""

    key: str
    num_bytes: int
    """Size of the file."""
    begin: int
    """Offset of the footer in the file."""
    digest: str
    """SHA-256 of the footer, hex."""
    metadata: Any = field(repr=False)
    """pyarrow's `FileMetaData`; its column chunks must not be asked for."""
    schema: pa.Schema = field(repr=False)
    """Columns, in the types that pyarrow reads them in; with the metadata of the file."""
    groups: tuple[RowGroup, ...] = field(repr=False)
    """Row groups, in order."""


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
    present = {footer.key: footer.metadata.num_rows for footer in footers}
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


def read_footer(files: Files, key: str, num_bytes: int) -> Footer:
    """Read the footer of a file from its end, by ranges.

    Raises:
        StoreNotFound: There is no such file.
        FormatError: The file is no Parquet file, or is incomplete or damaged.
        SmaltiError: It is encrypted.
    """
    where = files.locate(key)
    tail = b"" if num_bytes < _MIN_FILE_BYTES else files.get_range(key, max(0, num_bytes - _TAIL_BYTES), num_bytes)
    if tail[-4:] == b"PARE":
        raise _encrypted(where, key)
    if len(tail) != min(num_bytes, _TAIL_BYTES) or tail[-4:] != b"PAR1":
        raise FormatError(
            f"{where} cannot be read as Parquet: expected a file that ends with PAR1, found {num_bytes} bytes that end "
            f"with {tail[-4:]!r}; it is not a Parquet file or is incomplete: write it again, or remove it from the "
            "folder",
            key=key,
        )
    length = int.from_bytes(tail[-_ENDING_BYTES:-4], "little")
    begin = num_bytes - length - _ENDING_BYTES
    if begin < 4:
        raise _damaged(where, key, f"its footer should have {length} bytes, but the file has {num_bytes}")
    if length > _MAX_FOOTER_BYTES:
        raise FormatError(
            f"{where}: its footer has {length} bytes, and at most {_MAX_FOOTER_BYTES} are read; write files with fewer "
            "columns and row groups",
            key=key,
        )
    data = tail[begin - num_bytes :] if num_bytes - begin <= len(tail) else files.get_range(key, begin, num_bytes)
    try:
        metadata = pq.read_metadata(pa.BufferReader(data))
        schema = metadata.schema.to_arrow_schema()
        groups = tuple(
            RowGroup(group.num_rows, group.total_byte_size)
            for group in map(metadata.row_group, range(metadata.num_row_groups))
        )
        schema = _with_moments(schema, metadata)
        _ = schema.names  # raises an error for names that are not UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(where, key, str(error)[:300]) from error
    rows = sum(group.num_rows for group in groups)
    if rows != metadata.num_rows or any(group.num_rows < 0 for group in groups):
        raise _damaged(where, key, f"its row groups have {rows} rows, but the file {metadata.num_rows}")
    if metadata.serialized_size + _SIGNATURE_BYTES == length:
        raise _encrypted(where, key)
    return Footer(key, num_bytes, begin, hashlib.sha256(data).hexdigest(), metadata, schema, groups)


_recent: "OrderedDict[str, Any]" = OrderedDict()
"""Metadata of the last files that were read in this process, by the digest of the footer."""
_recent_lock = threading.Lock()
_MAX_RECENT = 4


def metadata_of(files: Files, key: str, num_bytes: int, digest: str) -> Any:
    """Return the metadata of a footer with this digest; parsed once for row groups that follow each other.

    Raises:
        SmaltiError: The file has another footer now.
    """
    with _recent_lock:
        if digest in _recent:
            _recent.move_to_end(digest)
            return _recent[digest]
    footer = read_footer(files, key, num_bytes)
    if footer.digest != digest:
        raise SmaltiError(f"{files.locate(key)} changed while it was read; convert again when it is complete", key=key)
    with _recent_lock:
        _recent[digest] = footer.metadata
        while len(_recent) > _MAX_RECENT:
            _recent.popitem(last=False)
    return footer.metadata


def is_unchanged(files: Files, footer: Footer) -> bool:
    """Return whether a file still ends with the same footer, which has the sizes and offsets of all its parts."""
    data = files.get_range(footer.key, footer.begin, footer.num_bytes + 1)
    return hashlib.sha256(data).hexdigest() == footer.digest


def open_rows(files: Files, key: str, num_bytes: int, *, metadata: Any = None, streams: bool = False) -> pq.ParquetFile:
    """Open a file for reading its rows; checksums of pages are verified where the file has them.

    With `streams`, columns are read in pieces and not as a whole, which takes more requests.

    Raises:
        FormatError: It is no Parquet file.
    """
    try:
        return pq.ParquetFile(
            open_random(files, key, num_bytes),
            metadata=metadata,
            pre_buffer=not streams,
            buffer_size=_STREAM_BYTES if streams else 0,
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
    except SmaltiError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(files.locate(key), key, str(error)[:300]) from error


def _with_moments(schema: pa.Schema, metadata: Any) -> pa.Schema:
    """Return the schema with INT96 as moments: Spark writes them so, which says nothing of zones and means UTC."""
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    columns = {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    if not columns:
        return schema

    def as_moment(kind: pa.DataType) -> pa.DataType:
        if not pt.is_timestamp(kind):
            return kind
        return pa.timestamp("us", "UTC" if kind == pa.timestamp("ns") else kind.tz)

    fields = [each.with_type(replace_leaves(each.type, as_moment)) if each.name in columns else each for each in schema]
    return pa.schema(fields, schema.metadata)


def _encrypted(where: str, key: str) -> SmaltiError:
    return SmaltiError(
        f"{where} is encrypted, or some of its columns are, which is not read: write it decrypted", key=key
    )


def _damaged(where: str, key: str, why: str) -> FormatError:
    return FormatError(
        f"{where} cannot be read as Parquet: its footer is damaged: {why}; write the file again", key=key
    )


def table_format(keys: Iterable[str]) -> str | None:
    """Return the name of the format of a table with a log, by the keys of its files; None if there is no log."""
    return next((name for key in keys for name, pattern in _LOGS.items() if re.fullmatch(pattern, key)), None)


def partition_texts(keys: Sequence[str], locate: Callable[[str], str]) -> dict[str, list[str | None]]:
    """Return the values of each column that is in folder names `column=value`: one text for each file, None for null.

    Raises:
        FormatError: Some files are in such folders, and others are not; or a name is no text.
    """
    by_file: list[dict[str, str | None]] = []
    for key in keys:
        texts: dict[str, str | None] = {}
        for part in key.split("/")[:-1]:
            name, equals, value = part.partition("=")
            if not name or not equals:
                continue
            try:
                column, text = (unquote(each, errors="strict") for each in (name, value))
            except UnicodeDecodeError as error:
                raise FormatError(
                    f"{locate(key)}: the folder {part!r:.200} is no UTF-8 ({error.reason}); rename it, with "
                    "%XX for the bytes of characters in UTF-8",
                    key=key,
                ) from error
            if column in texts:
                raise FormatError(f"{locate(key)}: two folders have one column; rename one of them", key=key)
            texts[column] = None if value == _NULL_FOLDER else text
        by_file.append(texts)
        if list(texts) != list(by_file[0]):
            raise FormatError(
                f"{locate(key)} is in folders of the columns {', '.join(texts) or 'none'}, and {keys[0]} in "
                f"{', '.join(by_file[0]) or 'none'}; read them on their own",
                key=key,
            )
    return {name: [texts[name] for texts in by_file] for name in (by_file[0] if by_file else ())}


def first_type(texts: Sequence[str | None], kinds: Sequence[tuple[str, Callable[[str], Any], pa.DataType]]) -> pa.Array:
    """Return texts in the first type that holds all of them, or as text.

    Args:
        texts: The texts; None for null.
        kinds: Of each type a pattern that its texts match, a function that makes the value of one, and the type.
    """
    filled = [text for text in texts if text is not None]
    for pattern, convert, kind in kinds:
        if all(re.fullmatch(pattern, text) for text in filled):
            try:
                return pa.array([None if text is None else convert(text) for text in texts], kind)
            except (ValueError, pa.ArrowInvalid, OverflowError):
                continue
    return pa.array(texts, pa.string())


def splits_of_hub(keys: Iterable[str]) -> list[str]:
    """Return the names of the splits in file names such as `data/train-00000-of-00002.parquet`, sorted."""
    matches = (NUMBERED.fullmatch(key.rpartition("/")[2]) for key in keys)
    return sorted({match["begin"].removesuffix("-") for match in matches if match and match["begin"].endswith("-")})


def rows_in_summary(data: bytes) -> dict[str, int]:
    """Return the rows of each file that a `_metadata` file lists, by the file's place below its folder.

    It is read in a process of its own, because pyarrow ends the process if column chunks are encrypted.

    Raises:
        ValueError: It is no such file, or damaged.
    """
    with tempfile.TemporaryDirectory(prefix="smalti-parquet-") as folder:
        path = Path(folder) / "_metadata"
        path.write_bytes(data)
        command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_PRINT_SUMMARY}", str(path)]
        try:
            child = subprocess.run(command, capture_output=True, timeout=_CHILD_SECONDS, check=False)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"pyarrow has not read it after {_CHILD_SECONDS} s") from error
        if child.returncode:
            lines = child.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ValueError(lines[-1] if lines else "pyarrow gave no reason")
        rows: dict[str, int] = Counter()
        for path_of_file, number in json.loads(child.stdout):
            rows[os.path.relpath(path_of_file, folder)] += number
    return rows
