"""The state of a table by the files of its folder: a table whose state is the same has the same rows. Needs no Spark.

Of Delta it is the newest commit of the log, of Iceberg every file of its metadata, of all others every file below the
folder. No file is read.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.errors import StoreNotFound
from smalti.redaction import redact
from smalti.storage import ObjectInfo, Store, open_store

_COMMIT = re.compile(r"_delta_log/\d{20}\.json")
_STAGED = re.compile(r"_delta_log/_(?:staged_)?commits/")
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

    The state is not certain in four cases: a file has neither ETag nor time; a file was put within the last three
    seconds; a folder is a link, which listings do not follow; a catalog holds commits of a Delta table that are not
    in its log yet.

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
    is_partial = kind != "delta" and _has_linked_folders(store)
    decisive = [] if is_partial else listed
    if kind == "delta":  # the file of the newest commit; none if a catalog may have a newer one
        is_staged = any(_STAGED.match(item.key) for item in listed)
        decisive = [] if is_staged else [item for item in listed if _COMMIT.fullmatch(item.key)][-1:]
    settled = all(item.modified and (item.changed or 0) < now - _SETTLED_SECONDS for item in decisive)
    digest = hashlib.sha256()
    for item in sorted(decisive or listed, key=lambda item: item.key):
        digest.update(f"{item.key}\0{item.num_bytes}\0{item.modified}\n".encode("utf-8", "surrogateescape"))
    return TableState(digest.hexdigest(), is_certain=bool(decisive) and settled)


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
