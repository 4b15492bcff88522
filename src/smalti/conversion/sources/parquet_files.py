"""Parquet files before their rows are read: footers, folders that are columns, tables with a log, missing parts.

`convert` and the readers of `smalti.compat.petastorm` share these rules. pyarrow ends the process when Python asks it
for a column chunk whose metadata are encrypted (`RowGroupMetaData.column`): nothing here asks for column chunks.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from smalti.conversion.exported import NUMBERED
from smalti.conversion.files import Files, open_random
from smalti.errors import FormatError, SmaltiError
from smalti.writer.tables.values import replace_leaves

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

    @cached_property
    def num_rows(self) -> int:
        """Rows of the file."""
        return sum(group.num_rows for group in self.groups)


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
        if not pa.types.is_timestamp(kind):
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
