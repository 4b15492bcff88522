"""The Parquet files of a data set as one sequence of row groups, planned from their footers, and where they are.

Here: the common columns of the files, the bytes of row groups, and the files themselves, in Smalti's stores or in a
file system of pyarrow (HDFS, or a given one). Not here: footers and folders that are columns
(`smalti.conversion.sources.parquet`), the cache of row groups (`rows`).

Addresses of local files are read as Spark writes to them: the rest of `file:///a%20b#1` is the name of a folder.

The files of a Delta table are those of its newest version, from its log, which `deltalake` reads. The log is copied
into a temporary folder through the source of the data files: credentials and file systems are those of the reader, and
`deltalake` never opens a data file.
"""

import hashlib
import json
import posixpath
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from smalti.compat.petastorm.errors import FilesNotAvailable
from smalti.conversion.files import is_hidden
from smalti.conversion.sources.parquet import (
    Footer,
    first_type,
    is_unchanged,
    open_rows,
    partition_texts,
    read_footer,
    table_format,
)
from smalti.errors import (
    ChecksumMismatch,
    FormatError,
    MissingDependency,
    SchemaError,
    SmaltiError,
    StoreError,
    StoreNotFound,
)
from smalti.storage import LocalStore, ObjectInfo, Store, open_store
from smalti.writer.tables.columns import repeated

_URL = re.compile(r"(?P<root>(?:[A-Za-z][\w+.-]*:(?://[^/]*)?)?)(?P<path>.*)", re.DOTALL)
_LOCAL = ("file:", "file://", "file://localhost")
_THREADS = 32
_LOG_THREADS = 16
_POLL_SECONDS = 0.1
_LOG = "_delta_log/"
_CHECKPOINT = f"{_LOG}_last_checkpoint"
_VERSION = re.compile(r"(\d{20})\.")
_CONVERT = 'Read it with Spark (spark.read.format("delta").load(...)) and give the DataFrame to make_spark_converter.'
_PURGE = f"Run REORG TABLE ... APPLY (PURGE) on the table. Or: {_CONVERT}"


class ArrowSource:
    """A folder of a pyarrow file system."""

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self.filesystem, self.root, self.url = filesystem, root.rstrip("/"), url

    def list(self) -> list[ObjectInfo]:
        """List all files below the folder."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.root, allow_not_found=True, recursive=True)
        infos = list(self._call("list", "", lambda: self.filesystem.get_file_info(selector)))
        found = [
            ObjectInfo(posixpath.relpath(info.path, self.root), info.size or 0, str(info.mtime_ns or ""))
            for info in infos
            if info.type == FileType.File
        ]
        return sorted(found, key=lambda info: info.key)

    def size(self, key: str) -> int:
        """Return the size of a file in bytes."""
        from pyarrow.fs import FileType

        info = self._call("look up", key, lambda: self.filesystem.get_file_info(f"{self.root}/{key}"))
        if info.type != FileType.File:
            raise StoreNotFound(f"{self.locate(key)} does not exist", key=key, url=self.url)
        return int(info.size)

    def locate(self, key: str) -> str:
        """Return the full address of a key, for messages."""
        return f"{self.url.rstrip('/')}/{key}"

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002 -- as stores have it
        """Return None: files are read through the file system."""
        return None

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Read bytes [begin, end) of a file, fewer if the file ends before."""

        def read() -> bytes:
            with self.filesystem.open_input_file(f"{self.root}/{key}") as file:
                stop = min(end, file.size())
                return bytes(file.read_at(max(0, stop - begin), begin))

        data: bytes = self._call("read", key, read)
        return data

    def _call(self, action: str, key: str, call: Any) -> Any:
        try:
            return call()
        except FileNotFoundError as error:
            raise StoreNotFound(f"{self.locate(key)} does not exist", key=key, url=self.url) from error
        except OSError as error:
            raise StoreError(f"cannot {action} {self.locate(key)}: {error}", key=key, url=self.url) from error


FileSource: TypeAlias = Store | ArrowSource
"""Files by key below one folder; thread-safe."""
FoundFiles = dict[str, int]
"""Size of each file in bytes, by its key."""


def open_folder(url: str, options: Mapping[str, Any] | None = None, filesystem: Any = None) -> FileSource:
    """Return the folder at a URL, which need not exist.

    Raises:
        StoreError: the address cannot be used.
    """
    return _source(*_split(url), options, filesystem)


def find_files(
    url_or_urls: str | Sequence[str],
    options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    *,
    wait_seconds: float = 0.0,
) -> tuple[FileSource, FoundFiles]:
    """Return the data files of the folder at a URL, or its file, or the files of several URLs of one scheme.

    Waits for listed files to appear.

    Raises:
        ValueError: no URL, one that is not text, several schemes, or a file twice.
        StoreNotFound: there are no files.
        FilesNotAvailable: listed files did not appear in time.
        StoreError: an address that cannot be used.
        FormatError: the folder is a table of another kind.
    """
    if isinstance(url_or_urls, str):
        path = _split(url_or_urls)[1]
        is_name = "/" in path.rstrip("/") and bool(posixpath.basename(path))
        source, keys = _listed([url_or_urls], options, filesystem) if is_name else (None, [])
        local = None if source is None else source.local_path(keys[0])
        if source is None or local is None or not local.is_file():
            folder = open_folder(url_or_urls, options, filesystem)
            infos = _data_files(folder)
            if infos:
                return folder, infos
            if source is None or not (wait_seconds or _size(source, keys[0]) is not None):
                raise StoreNotFound(f"{folder.url}: no Parquet files found; check the address.", url=folder.url)
    else:
        urls = list(url_or_urls)
        if not urls or not all(isinstance(url, str) for url in urls):
            raise ValueError(f"`dataset_url_or_urls` must be a URL or a list of URLs, found {url_or_urls!r}.")
        if len(set(urls)) != len(urls):
            twice = next(url for url in urls if urls.count(url) > 1)
            raise ValueError(f"`dataset_url_or_urls` contains {twice} twice; remove one.")
        source, keys = _listed(urls, options, filesystem)
    return source, _await(source, keys, wait_seconds)


def _listed(urls: Sequence[str], options: Mapping[str, Any] | None, filesystem: Any) -> tuple[FileSource, list[str]]:
    """Return the folder above these files, and their keys in it."""
    parts = [_split(url.rstrip("/")) for url in urls]
    roots = sorted({root for root, _ in parts})
    if len(roots) > 1:
        raise ValueError(f"all URLs must be of one scheme and bucket, found {' and '.join(roots)}.")
    paths = [_existing(path) if roots[0] in _LOCAL and filesystem is None else path for _, path in parts]
    folder = posixpath.commonpath([posixpath.dirname(path) or "." for path in paths])
    return _source(roots[0], folder, options, filesystem), [posixpath.relpath(path, folder) for path in paths]


def _data_files(source: FileSource) -> FoundFiles:
    """Return the data files of a folder: those of a Delta table's newest version, else those that Spark would read.

    Raises:
        MissingDependency: the folder is a Delta table, and `deltalake` is not installed.
        FormatError: the folder is an Iceberg or Hudi table, which also contains files that are no longer part of it, or
            a Delta table of a kind that is not supported.
    """
    infos = {info.key: info for info in source.list()}
    kind = table_format(infos)
    if kind == "Delta":
        keys = live_files(source, list(infos.values()))
        return {key: infos[key].num_bytes if key in infos else source.size(key) for key in keys}
    if kind is not None:
        article = "an" if kind == "Iceberg" else "a"
        raise FormatError(
            f"{source.url} is {article} {kind} table: its folder also contains files or rows that are no longer part "
            f"of it. "
            f'Read it with Spark (spark.read.format("{kind.lower()}").load(...)) and give the DataFrame to '
            "make_spark_converter, or give the list of its live files.",
            where=source.url,
        )
    return {key: info.num_bytes for key, info in infos.items() if not is_hidden(key)}


def _await(source: FileSource, keys: list[str], seconds: float) -> FoundFiles:
    """Wait until all files exist, and return their sizes then: a file may grow while others are awaited."""
    end, keys = time.monotonic() + seconds, list(dict.fromkeys(keys))
    missing = keys
    with ThreadPoolExecutor(min(_THREADS, len(keys)), "smalti-files") as pool:
        while True:
            found = list(pool.map(lambda key: _size(source, key), missing))
            sizes = {key: size for key, size in zip(missing, found, strict=True) if size is not None}
            if len(sizes) == len(keys):
                return sizes
            missing = [key for key in missing if key not in sizes]
            if not missing:
                missing = keys
                continue
            if time.monotonic() >= end:
                break
            time.sleep(_POLL_SECONDS)
    shown = ", ".join(source.locate(key) for key in missing[:5])
    raise FilesNotAvailable(
        f"{len(missing)} of {len(keys)} files did not appear within {seconds:g} s: {shown}"
        f"{', ...' if len(missing) > 5 else ''}. Were they deleted, or written to a disk of another machine?",
        missing=tuple(missing),
    )


def _size(source: FileSource, key: str) -> int | None:
    try:
        return source.size(key)
    except StoreNotFound:
        return None


def _existing(path: str) -> str:
    """Return the path of a local file: as it is written, or decoded where only that exists, as Spark lists files."""
    decoded = unquote(path)
    return decoded if decoded != path and not Path(path).exists() and Path(decoded).exists() else path


def _split(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    return ("", url) if match is None else (match["root"], match["path"])


def _source(root: str, path: str, options: Mapping[str, Any] | None, filesystem: Any) -> FileSource:
    if filesystem is not None:
        bucket = root.partition("://")[2]
        return ArrowSource(filesystem, f"{bucket}{path}", f"{root}{path}")
    if root.startswith(("hdfs:", "viewfs:")):
        from pyarrow.fs import FileSystem

        found, inner = FileSystem.from_uri(f"{root}{path}")
        return ArrowSource(found, inner, f"{root}{path}")
    if root in _LOCAL and path:
        return LocalStore(path)
    return open_store(f"{root}{path}", options)


# ------------------------------------------------------------------ Delta tables


def live_files(source: FileSource, infos: Sequence[ObjectInfo]) -> list[str]:
    """Return the keys of the files that belong to the newest version of a Delta table, in order of their names.

    Raises:
        MissingDependency: `deltalake` is not installed.
        FormatError: the log is damaged, or the table has a feature that is not in the files themselves: deletion
            vectors of live files, column mapping, files of another table, partition columns without folders.
    """
    where = source.url
    try:
        deltalake = import_module("deltalake")
    except ImportError as error:
        raise MissingDependency(
            f"{where} is a Delta table: its folder also contains files that are no longer part of it, and the package "
            "that reads its log is not installed: pip install 'smalti[delta]' (or deltalake). Or give the list of its "
            "live files, such as spark.read.format('delta').load(...).inputFiles().",
            extra="delta",
        ) from error
    with tempfile.TemporaryDirectory(prefix="smalti-delta-") as folder:
        _copy_log(source, infos, Path(folder))
        try:
            table = deltalake.DeltaTable(folder)
            paths = sorted(pa.table(table.get_add_actions())["path"].to_pylist())
        except (deltalake.exceptions.DeltaError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(f"{where} is a Delta table whose log cannot be read: {reason} {_CONVERT}") from error
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise FormatError(f"{where}: this Delta table maps names of columns, which is not supported. {_CONVERT}")
        if "deletionVectors" in (table.protocol().reader_features or ()):
            try:
                has_vectors = int(pa.table(table.deletion_vectors()).num_rows) > 0
            except deltalake.exceptions.DeltaError:  # those in files of their own are not copied
                has_vectors = True
            if has_vectors:
                raise FormatError(
                    f"{where}: rows of this Delta table are deleted by deletion vectors, which is not supported. "
                    f"{_PURGE}"
                )
    keys = [unquote(path) for path in paths]
    _check_places(paths, keys, list(table.metadata().partition_columns), where)
    return keys


def _copy_log(source: FileSource, infos: Sequence[ObjectInfo], folder: Path) -> None:
    """Copy the log into a folder, without what is older than its newest checkpoint."""
    sizes = {info.key: info.num_bytes for info in infos if info.key.startswith(_LOG) and not _leaves(info.key)}
    oldest = 0
    if _CHECKPOINT in sizes:
        try:
            oldest = int(json.loads(source.get_range(_CHECKPOINT, 0, sizes[_CHECKPOINT]))["version"])
        except (StoreNotFound, ValueError, TypeError, KeyError) as error:
            raise FormatError(f"{source.locate(_CHECKPOINT)} is damaged: {error}. Remove it, or restore it.") from error

    def copy(key: str) -> None:
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.get_range(key, 0, sizes[key]))

    versions = {key: _VERSION.match(key.removeprefix(_LOG)) for key in sizes}
    newer = [key for key, version in versions.items() if version is None or int(version[1]) >= oldest]
    with ThreadPoolExecutor(_LOG_THREADS, "smalti-delta") as pool:
        list(pool.map(copy, newer))


def _leaves(key: str) -> bool:
    """Return whether a key is an address, or leads out of the folder."""
    return key.startswith("/") or ".." in key.split("/") or re.match(r"[A-Za-z][\w+.-]*:", key) is not None


def _check_places(paths: Sequence[str], keys: Sequence[str], columns: list[str], where: str) -> None:
    """Check that all files are in the table's folder, below folders of its partition columns."""
    outside = [path for path, key in zip(paths, keys, strict=True) if _leaves(path) or _leaves(key)]
    if outside:
        raise FormatError(
            f"{where}: {outside[0]} of this Delta table (a shallow clone) is not in its folder, which is not "
            f"supported. {_CONVERT}"
        )
    for key in keys:
        if [part.partition("=")[0] for part in key.split("/")[:-1] if "=" in part] != columns:
            raise FormatError(
                f"{where}: {key} is not in folders of the partition columns {', '.join(columns) or '(none)'} of this "
                f"Delta table, which is not supported. {_CONVERT}"
            )


# ------------------------------------------------------------------ the set

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
