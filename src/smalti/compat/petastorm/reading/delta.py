"""The files of the newest version of a Delta table, from its log, which `deltalake` reads.

The log is copied into a temporary folder through the source of the data files: credentials and file systems are those
of the reader, and `deltalake` never opens a data file. Not here: reading of rows (`parquet`).
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from smalti.compat.petastorm.reading.sources import FileSource
from smalti.errors import FormatError, MissingDependency, StoreNotFound
from smalti.storage import ObjectInfo

LOG = "_delta_log/"
_CHECKPOINT = f"{LOG}_last_checkpoint"
_THREADS = 16
_VERSION = re.compile(r"(\d{20})\.")
_CONVERT = 'Read it with Spark (spark.read.format("delta").load(...)) and give the DataFrame to make_spark_converter.'
_PURGE = f"Run REORG TABLE ... APPLY (PURGE) on the table. Or: {_CONVERT}"


def live_files(source: FileSource, infos: Sequence[ObjectInfo]) -> list[str]:
    """Return the keys of the files that belong to the newest version of the table, in order of their names.

    Raises:
        MissingDependency: `deltalake` is not installed.
        FormatError: the log is damaged, or the table has a feature that is not in the files themselves: deletion
            vectors of live files, column mapping, files of another table, partition columns without folders.
    """
    deltalake = _deltalake(source.url)
    with tempfile.TemporaryDirectory(prefix="smalti-delta-") as folder:
        _copy_log(source, infos, Path(folder))
        try:
            table = deltalake.DeltaTable(folder)
            paths = sorted(pa.table(table.get_add_actions())["path"].to_pylist())
        except (deltalake.exceptions.DeltaError, OSError) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(f"{source.url} is a Delta table whose log cannot be read: {reason} {_CONVERT}") from error
        _check_features(table, source.url)
    _check_inside(paths, source.url)
    keys = [unquote(path) for path in paths]
    _check_folders(keys, list(table.metadata().partition_columns), source.url)
    return keys


def _deltalake(where: str) -> Any:
    try:
        return import_module("deltalake")
    except ImportError as error:
        raise MissingDependency(
            f"{where} is a Delta table: its folder also contains files that are no longer part of it, and the package "
            "that reads its log is not installed: pip install 'smalti[delta]' (or deltalake). Or give the list of its "
            "live files, such as spark.read.format('delta').load(...).inputFiles().",
            extra="delta",
        ) from error


def _copy_log(source: FileSource, infos: Sequence[ObjectInfo], folder: Path) -> None:
    """Copy the log into a folder, without what is older than its newest checkpoint."""
    sizes = {info.key: info.num_bytes for info in infos if info.key.startswith(LOG) and not _leaves(info.key)}
    oldest = _checkpoint_version(source, sizes)

    def copy(key: str) -> None:
        target = folder / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.get_range(key, 0, sizes[key]))

    versions = {key: _VERSION.match(key.removeprefix(LOG)) for key in sizes}
    newer = [key for key, version in versions.items() if version is None or int(version[1]) >= oldest]
    with ThreadPoolExecutor(_THREADS, "smalti-delta") as pool:
        list(pool.map(copy, newer))


def _leaves(key: str) -> bool:
    """Return whether a key is an address, or leads out of the folder."""
    return key.startswith("/") or ".." in key.split("/") or re.match(r"[A-Za-z][\w+.-]*:", key) is not None


def _checkpoint_version(source: FileSource, sizes: Mapping[str, int]) -> int:
    if _CHECKPOINT not in sizes:
        return 0
    try:
        return int(json.loads(source.get_range(_CHECKPOINT, 0, sizes[_CHECKPOINT]))["version"])
    except (StoreNotFound, ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{source.locate(_CHECKPOINT)} is damaged: {error}. Remove it, or restore it.") from error


def _check_features(table: Any, where: str) -> None:
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise FormatError(f"{where}: this Delta table maps names of columns, which is not supported. {_CONVERT}")
    if "deletionVectors" in (table.protocol().reader_features or ()) and _has_deletion_vectors(table):
        raise FormatError(
            f"{where}: rows of this Delta table are deleted by deletion vectors, which is not supported. {_PURGE}"
        )


def _has_deletion_vectors(table: Any) -> bool:
    """Return whether a live file has one. Those in files of their own are not copied: deltalake fails to open them."""
    try:
        return int(pa.table(table.deletion_vectors()).num_rows) > 0
    except import_module("deltalake").exceptions.DeltaError:
        return True


def _check_inside(paths: Sequence[str], where: str) -> None:
    outside = [path for path in paths if _leaves(path) or _leaves(unquote(path))]
    if outside:
        raise FormatError(
            f"{where}: {outside[0]} of this Delta table (a shallow clone) is not in its folder, which is not "
            f"supported. {_CONVERT}"
        )


def _check_folders(keys: Sequence[str], columns: list[str], where: str) -> None:
    for key in keys:
        if [part.partition("=")[0] for part in key.split("/")[:-1] if "=" in part] != columns:
            raise FormatError(
                f"{where}: {key} is not in folders of the partition columns {', '.join(columns) or '(none)'} of this "
                f"Delta table, which is not supported. {_CONVERT}"
            )
