"""The newest version of a Delta or Iceberg table in a folder, read from the table's own log, for Spark Connect.

Needs neither Delta nor Iceberg. A query of an older version reads other rows than the newest one. There is no result if
the folder alone does not determine the newest version, because an external catalog does.
"""

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from smalti.errors import StoreNotFound
from smalti.storage import Store, open_store

_COMMIT = re.compile(r"_delta_log/(\d{20})(?:\.checkpoint(?:\.\d+\.\d+|\.[0-9a-f-]{36})?\.(?:parquet|json)|\.json)")
_STAGED = re.compile(r"_delta_log/_(?:staged_)?commits/(\d{20})\.[^/]+\.json")
"""A commit that a catalog may count already, although it is not in the log yet; or one that failed."""
_METADATA = re.compile(r"metadata/(?:v(\d+)|(\d+)-[0-9a-f-]+)(?:\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)")
_HINT = "metadata/version-hint.text"
_MAX_LEVELS = 8
"""Number of folders above the files that are searched for a table; each partition column adds one."""


def table_above(files: Sequence[str]) -> Store | None:
    """Return the folder of the Delta or Iceberg table that holds these files; None unless it is on this machine.

    Args:
        files: Addresses in Spark's form, such as `file:///tables/t/day=1/part-0.parquet`.
    """
    first = urlsplit(files[0])
    if first.scheme not in ("", "file"):
        return None
    for folder in list(Path(unquote(first.path)).parents)[:_MAX_LEVELS]:
        if (folder / "_delta_log").is_dir():
            return open_store(folder)
        if folder.name == "data" and (folder.parent / "metadata").is_dir():
            return open_store(folder.parent)
    return None


def delta_version(table: Store) -> int | None:
    """Return the newest version of a Delta table; None if there is no table, or only a catalog knows the version."""
    keys = [item.key for item in table.list("_delta_log")]
    newest, staged = (
        max((int(match.group(1)) for key in keys if (match := name.fullmatch(key))), default=-1)
        for name in (_COMMIT, _STAGED)
    )
    return newest if newest >= max(staged, 0) else None


def iceberg_snapshot(table: Store) -> str | None:
    """Return the current snapshot of an Iceberg table.

    None if the folder holds no table, a table without rows, or several tables: after a table was renamed, a new one of
    its former name shares its folder. None, too, if the newest metadata cannot be read, or two files have its number.
    """
    numbered: dict[int, list[str]] = {}
    is_hadoop = False
    for item in table.list("metadata"):
        match = _METADATA.fullmatch(item.key)
        if match is not None:
            is_hadoop = is_hadoop or match.group(1) is not None
            numbered.setdefault(int(match.group(1) or match.group(2)), []).append(item.key)
    if not numbered:
        return None
    keys = numbered[_newest(table, numbered) if is_hadoop else max(numbered)]
    newest = _metadata(table, keys[0])
    if newest is None or len(keys) > 1 or not all(_is_of(newest, table, key) for key in _unlisted(newest, numbered)):
        return None
    snapshot = newest.get("current-snapshot-id")
    return None if snapshot in (None, -1) else str(snapshot)


def _newest(table: Store, numbered: dict[int, list[str]]) -> int:
    """Return the number of the current metadata of a table without a catalog; the hint may lag behind it."""
    try:
        version = int(table.get(_HINT))
    except (StoreNotFound, ValueError):
        version = max(numbered)
    if version not in numbered:
        version = max(numbered)
    while version + 1 in numbered:
        version += 1
    return version


def _unlisted(newest: dict[str, Any], numbered: dict[int, list[str]]) -> list[str]:
    """Return a sample of the metadata files that the newest one does not list as its past.

    They may be of another table, or older than the hundred entries that the list keeps.
    """
    past = {str(entry.get("metadata-file", "")).rpartition("/")[2] for entry in newest.get("metadata-log", [])}
    unknown = [keys for _, keys in sorted(numbered.items()) if not {key.rpartition("/")[2] for key in keys} <= past]
    doubled = [key for keys in unknown if len(keys) > 1 for key in keys]
    return [keys[0] for keys in (unknown[:1] + unknown[-2:])] + doubled


def _is_of(newest: dict[str, Any], table: Store, key: str) -> bool:
    """Return whether a metadata file is of the same table as the newest one, not of another in its folder."""
    found = _metadata(table, key)
    return found is not None and found.get("table-uuid") == newest.get("table-uuid")


def _metadata(table: Store, key: str) -> dict[str, Any] | None:
    """Return the content of a metadata file; None if it is gone or damaged, as while it is being written."""
    try:
        data = table.get(key)
        found = json.loads(gzip.decompress(data) if ".gz" in key else data)
    except (StoreNotFound, ValueError, OSError, EOFError, zlib.error):
        return None
    return found if isinstance(found, dict) else None
