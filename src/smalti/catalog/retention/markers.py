"""Markers of writes that are under way: how a vacuum tells what writers of Smalti left from what others put there.

A writer puts its marker before its first shard, and takes it away once its version is published or its shards are
removed. The marker of a writer that was killed stays: when it and everything below its write id is old by the store's
own times, a vacuum removes the lot. Without its marker, files below an unpublished write id are a stranger's.
"""

import json
from contextlib import suppress

from smalti.catalog.header import FOLDER
from smalti.errors import StoreError
from smalti.storage import Store

MARKERS = f"{FOLDER}/writes"
_SUFFIX = ".json"


def begin(store: Store, write_id: str) -> None:
    """Say that a write has begun, or that it goes on: its time is that of the last call.

    Raises:
        StoreError: the store did not take the marker.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id}).encode())


def end(store: Store, write_id: str) -> None:
    """Say that nothing of this write is left but what a version names; a marker that stays does no harm."""
    with suppress(StoreError):  # the write itself has its outcome already, and a vacuum takes the marker away
        store.delete(marker_key(write_id))


def marker_key(write_id: str) -> str:
    """Where the marker of a write lies."""
    return f"{MARKERS}/{write_id}{_SUFFIX}"


def write_id_of(key: str) -> str | None:
    """The write id that a marker's key names; None for other keys."""
    name = key.removeprefix(f"{MARKERS}/")
    if name == key or "/" in name or not name.endswith(_SUFFIX):
        return None
    return name.removesuffix(_SUFFIX)
