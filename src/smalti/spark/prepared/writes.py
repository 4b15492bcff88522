"""Whose parts lie beside prepared tables: a small object for every write that began, before its first part.

<path>/_writes/<write id>.json    stays for as long as anything of the write is there

By it a clean-up tells what updates of Smalti left from what others put there. It is also where a clean-up says that it
takes a write for dead (`give_up`), before it looks at the tables again; who updates puts his table, and then looks here
(`check_own`). So one of the two sees the other, however long either was stopped in between.
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
    """Say that parts of this write are put from now on; also takes back `give_up`.

    Raises:
        StoreError: the store did not take it.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id}).encode())


def give_up(store: Store, write_id: str) -> None:
    """Say that nothing of this write may be named any more by a table that is not there yet.

    Raises:
        StoreError: the store did not take it.
    """
    store.put(marker_key(write_id), json.dumps({"smalti": 1, "write_id": write_id, _GIVEN_UP: True}).encode())


def end(store: Store, write_id: str) -> None:
    """Say that nothing was put by this write; best effort, a clean-up removes what stays."""
    with suppress(StoreError):
        store.delete(marker_key(write_id))


def is_given_up(store: Store, write_id: str) -> bool:
    """Whether a clean-up took the write for dead: it says so, or there is nothing left of it to say so.

    Raises:
        StoreError: the store cannot be read.
    """
    try:
        found = json.loads(store.get(marker_key(write_id)))
    except StoreNotFound:
        return True
    except ValueError:  # torn as its writer died
        return False
    return isinstance(found, dict) and bool(found.get(_GIVEN_UP))


def check_own(store: Store, write_id: str) -> None:
    """Return only if no clean-up has taken this write, which is the caller's, for dead.

    Raises:
        CommitConflict: one has, since it stood still for longer than the clean-up's limit.
    """
    if is_given_up(store, write_id):
        raise CommitConflict(
            f"{store.locate(write_id)}: this preparation stood still for so long that a clean-up took it for dead and "
            "removed its parts; nothing was shown. Prepare the images again",
            write_id=write_id,
        )


def marker_key(write_id: str) -> str:
    """Where the object of a write lies."""
    return f"{WRITES}/{write_id}.json"


def write_id_of(key: str) -> str | None:
    """The write id that such an object's key names; None for other keys."""
    found = _MARKER.fullmatch(key)
    return None if found is None else found[1]
