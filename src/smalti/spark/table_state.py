"""The state of a table by the files of its folder: a table whose state is the same has the same rows. Needs no Spark.

Of Delta it is the newest commit of the log, of Iceberg the current metadata file, of all others every file below the
folder.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.errors import StoreNotFound
from smalti.spark.lineage import iceberg_metadata, newest_delta_version
from smalti.storage import ObjectInfo, Store, open_store
from smalti.storage.redact import redact

_SETTLED_SECONDS = 3.0  # some stores keep times in seconds: a file may change twice in one, and keep its size


@dataclass(frozen=True)
class TableState:
    """The state of a table at one moment."""

    digest: str
    """Another one whenever the table changes."""
    is_certain: bool
    """False if the rows may change while the digest stays, so that they have to be read again."""


def table_state(
    address: str | Path,
    kind: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.time,
) -> TableState:
    """Return the state of the table in a folder.

    It is not certain where a file has neither ETag nor time, a file was put in these seconds, a
    folder is a link, which listings do not follow, or a log is unusual: one whose newest commit only a catalog knows.

    Args:
        address: The folder; or one file on this machine.
        kind: `delta`, `iceberg`, or any other format of Spark's.
        storage_options: Credentials and endpoint of the store.
        clock: Seconds since 1970.

    Raises:
        StoreNotFound: Nothing is listed: there is no such folder, or it is empty, or the address has a pattern.
        StoreError: The folder cannot be listed.
    """
    store, now = open_store(address, storage_options), clock()
    below = {"delta": "_delta_log", "iceberg": "metadata"}.get(kind, "")
    one = _one_file(store)
    listed = one or list(store.list(below))
    if not listed:
        raise StoreNotFound(f"{redact(store.url)} has no file of a table: check the address, the mount and the format")
    if kind == "delta":
        decisive = _delta_commit(listed)
    elif kind == "iceberg":
        decisive = _iceberg_metadata(store, listed)
    else:
        decisive = [] if _has_linked_folders(store) else listed
    settled = all(item.modified and (item.changed or 0) < now - _SETTLED_SECONDS for item in decisive)
    return TableState(_digest_of(decisive or listed), is_certain=bool(decisive) and settled)


def _delta_commit(log: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return the file of the newest commit, or the checkpoint of its version; empty if it is not in the log."""
    version = newest_delta_version([item.key for item in log])
    if version is None:
        return []
    files = [item for item in log if item.key.startswith(f"_delta_log/{version:020}.")]
    return [item for item in files if item.key == f"_delta_log/{version:020}.json"] or files


def _iceberg_metadata(store: Store, listed: list[ObjectInfo]) -> list[ObjectInfo]:
    """Return the current metadata file; nothing if it is not known."""
    found = iceberg_metadata(store)
    return [item for item in listed if found is not None and item.key == found[0]]


def _one_file(store: Store) -> list[ObjectInfo]:
    """Return the file at the address, if that is none of a folder; only on this machine."""
    inside = store.local_path("any")
    if inside is None or not inside.parent.is_file():
        return []
    stat = inside.parent.stat()
    return [ObjectInfo(inside.parent.name, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime)]


def _has_linked_folders(store: Store) -> bool:
    root = store.local_path("any")
    if root is None:
        return False
    return any(Path(folder, name).is_symlink() for folder, names, _ in os.walk(root.parent) for name in names)


def _digest_of(files: Iterable[ObjectInfo]) -> str:
    digest = hashlib.sha256()
    for item in sorted(files, key=lambda item: item.key):
        digest.update(f"{item.key}\0{item.num_bytes}\0{item.modified}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
