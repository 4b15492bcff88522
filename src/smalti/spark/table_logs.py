"""Which version of a Delta or Iceberg table lies in a folder, from the table's own log; for when Spark does not tell.

Needs neither Delta nor Iceberg. What it gives is the newest version, which a query of an older one does not read.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from smalti.errors import StoreNotFound
from smalti.storage import Store, open_store

_COMMIT = re.compile(r"_delta_log/(\d{20})(?:\.checkpoint(?:\.\d+\.\d+)?\.parquet|\.json)")
_METADATA = re.compile(r"metadata/(?:v(\d+)|(\d+)-[0-9a-f-]+)(?:\.gz)?\.metadata\.json")
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
    """The newest version of a Delta table; None if the folder holds none."""
    found = [match for item in table.list("_delta_log") if (match := _COMMIT.fullmatch(item.key))]
    return max((int(match.group(1)) for match in found), default=None)


def iceberg_snapshot(table: Store) -> str | None:
    """The current snapshot of an Iceberg table; None if the folder holds none, or a table without rows."""
    numbered = {
        int(match.group(1) or match.group(2)): item.key
        for item in table.list("metadata")
        if (match := _METADATA.fullmatch(item.key)) and not item.key.endswith(".gz.metadata.json")
    }
    if not numbered:
        return None
    snapshot = json.loads(table.get(numbered[_hinted(table, max(numbered))])).get("current-snapshot-id")
    return None if snapshot in (None, -1) else str(snapshot)


def _hinted(table: Store, newest: int) -> int:
    """The number of the current metadata file: Hadoop tables keep it in a file of its own."""
    try:
        return min(newest, int(table.get("metadata/version-hint.text")))
    except (StoreNotFound, ValueError):
        return newest
