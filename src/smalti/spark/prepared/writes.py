"""Markers of writes of prepared images: one small object for each write, stored before its first part.

<path>/_writes/<write id>.json    stays for as long as any object of the write exists

By its marker, vacuum distinguishes a write of Smalti from objects of other programs. Before vacuum removes a write, it
marks it as dead (`give_up`) and then reads the tables again; an update stores its table and then reads its marker
(`check_own`). So one of the two sees the other, however long either paused in between.
"""

import json
import re
from contextlib import suppress

from smalti.errors import CommitConflict, StoreError, StoreNotFound
from smalti.storage import Store

WRITES = "_writes"
_MARKER = re.compile(rf"{WRITES}/([0-9a-z-]+)\.json", re.ASCII)
_GIVEN_UP = "given_up"


def begin(store: Store, write_id: str) -> None:
    """Store the marker of a write that starts to put parts; also reverts `give_up`.

    Raises:
        StoreError: The marker cannot be stored.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id}).encode())


def give_up(store: Store, write_id: str) -> None:
    """Mark a write as dead: no new table may name its parts any more.

    Raises:
        StoreError: The marker cannot be stored.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id, _GIVEN_UP: True}).encode())


def end(store: Store, write_id: str) -> None:
    """Remove the marker of a write without parts. Best effort: vacuum removes markers that remain."""
    with suppress(StoreError):
        store.delete(marker_key(write_id))


def is_given_up(store: Store, write_id: str) -> bool:
    """Return whether vacuum marked the write as dead, or has removed its marker already.

    Raises:
        StoreError: The store cannot be read.
    """
    try:
        found = json.loads(store.get(marker_key(write_id)))
    except StoreNotFound:
        return True
    except ValueError:  # incomplete, because its writer died
        return False
    return isinstance(found, dict) and bool(found.get(_GIVEN_UP))


def check_own(store: Store, write_id: str) -> None:
    """Return only if vacuum has not marked this write of the caller as dead.

    Raises:
        CommitConflict: It has, because the write paused for longer than vacuum's limit.
    """
    if is_given_up(store, write_id):
        raise CommitConflict(
            f"{store.locate(write_id)}: this preparation paused for so long that a vacuum considered it dead and "
            "removed its parts; no table was published. Prepare the images again",
            write_id=write_id,
        )


def marker_key(write_id: str) -> str:
    """Return the key of the marker of a write."""
    return f"{WRITES}/{write_id}.json"


def write_id_of(key: str) -> str | None:
    """Return the write id in the key of a marker; None for other keys."""
    found = _MARKER.fullmatch(key)
    return None if found is None else found[1]
