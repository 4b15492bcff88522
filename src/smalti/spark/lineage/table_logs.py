"""Which version of a Delta or Iceberg table lies in a folder, from the table's own log; for when Spark does not tell.

Needs neither Delta nor Iceberg. What it gives is the newest version, which a query of an older one does not read; and
nothing where the folder alone cannot tell which that is, because a catalog elsewhere knows it.
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
"""A commit that a catalog counts before it lies beside the others, or that lost and never will."""
_METADATA = re.compile(r"metadata/(?:v(\d+)|(\d+)-[0-9a-f-]+)(?:\.gz\.metadata\.json|\.metadata\.json(?:\.gz)?)")
_HINT = "metadata/version-hint.text"
_LEVELS = 8
"""How many folders above the files are looked at: as many as a table has partition columns."""


def table_above(files: Sequence[str]) -> Store | None:
    """The folder of the Delta or Iceberg table that holds these files; only folders of this machine are looked at.

    Args:
        files: Addresses as Spark gives them, such as `file:///tables/t/day=1/part-0.parquet`.
    """
    first = urlsplit(files[0])
    if first.scheme not in ("", "file"):
        return None
    for folder in list(Path(unquote(first.path)).parents)[:_LEVELS]:
        if (folder / "_delta_log").is_dir():
            return open_store(folder)
        if folder.name == "data" and (folder.parent / "metadata").is_dir():
            return open_store(folder.parent)
    return None


def delta_version(table: Store) -> int | None:
    """The newest version of a Delta table; None if the folder holds none, or if only its catalog knows which it is."""
    keys = [item.key for item in table.list("_delta_log")]
    newest, staged = (
        max((int(match.group(1)) for key in keys if (match := name.fullmatch(key))), default=-1)
        for name in (_COMMIT, _STAGED)
    )
    return newest if newest >= max(staged, 0) else None


def iceberg_snapshot(table: Store) -> str | None:
    """The current snapshot of an Iceberg table.

    None if the folder holds no table, one without rows, or several: the name of one that was renamed can be given to
    another, which then lies in the same folder. None, too, if the newest metadata cannot be read, or there are two.
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
    if newest is None or len(keys) > 1 or not all(_is_of(newest, table, key) for key in _strangers(newest, numbered)):
        return None
    snapshot = newest.get("current-snapshot-id")
    return None if snapshot in (None, -1) else str(snapshot)


def _newest(table: Store, numbered: dict[int, list[str]]) -> int:
    """The number of the current metadata of a table without a catalog: Iceberg goes on from the hint, which may lag."""
    try:
        version = int(table.get(_HINT))
    except (StoreNotFound, ValueError):
        version = max(numbered)
    if version not in numbered:
        version = max(numbered)
    while version + 1 in numbered:
        version += 1
    return version


def _strangers(newest: dict[str, Any], numbered: dict[int, list[str]]) -> list[str]:
    """Metadata that the newest does not name as its own past, some of it: it forgets all but the last hundred."""
    past = {str(entry.get("metadata-file", "")).rpartition("/")[2] for entry in newest.get("metadata-log", [])}
    unknown = [keys for _, keys in sorted(numbered.items()) if not {key.rpartition("/")[2] for key in keys} <= past]
    doubled = [key for keys in unknown if len(keys) > 1 for key in keys]
    return [keys[0] for keys in (unknown[:1] + unknown[-2:])] + doubled


def _is_of(newest: dict[str, Any], table: Store, key: str) -> bool:
    """Whether this is metadata of the same table, and not of another in its folder."""
    found = _metadata(table, key)
    return found is not None and found.get("table-uuid") == newest.get("table-uuid")


def _metadata(table: Store, key: str) -> dict[str, Any] | None:
    """What a metadata file says; None for one that is gone or damaged, as while it is written."""
    try:
        data = table.get(key)
        found = json.loads(gzip.decompress(data) if ".gz" in key else data)
    except (StoreNotFound, ValueError, OSError, EOFError, zlib.error):
        return None
    return found if isinstance(found, dict) else None
