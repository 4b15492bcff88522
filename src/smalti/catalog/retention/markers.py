"""Markers of writes in progress, by which a vacuum recognises the objects of Smalti's writers.

A writer puts its marker before its first shard, and removes it once its version is published or its shards are removed.
The marker of a writer that was killed stays; when the marker and everything below its write id are old by the store's
own times, a vacuum removes all of it. Without a marker, objects below an unpublished write id are not Smalti's.
"""

import json
from collections.abc import Iterable
from contextlib import suppress

from smalti.catalog.manifest import FOLDER
from smalti.errors import StoreError
from smalti.storage import Store

MARKERS = f"{FOLDER}/writes"
_SUFFIX = ".json"


def begin(store: Store, write_id: str) -> None:
    """Put the marker of a write, or renew it: its time is that of the last call.

    Raises:
        StoreError: the store did not take the marker.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id}).encode())


def end(store: Store, write_id: str) -> None:
    """Remove the marker of a write that has left nothing but what a version references. Best effort."""
    with suppress(StoreError):  # a marker that stays is harmless; a vacuum removes it
        store.delete(marker_key(write_id))


def remove_written(store: Store, keys: Iterable[str]) -> bool:
    """Remove objects of a write that no version names; return whether all are gone, so that its marker may end.

    Best effort: as long as the marker stays, a vacuum removes the others.
    """
    is_gone = True
    for key in sorted(keys):
        try:
            store.delete(key)
        except StoreError:  # noqa: PERF203 -- few objects
            is_gone = False
    return is_gone


def marker_key(write_id: str) -> str:
    """Return the key of a write's marker."""
    return f"{MARKERS}/{write_id}{_SUFFIX}"


def write_id_of(key: str) -> str | None:
    """Return the write id in the key of a marker; None for other keys."""
    name = key.removeprefix(f"{MARKERS}/")
    if name == key or "/" in name or not name.endswith(_SUFFIX):
        return None
    return name.removesuffix(_SUFFIX)
