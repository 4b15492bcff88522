"""The pointer to the newest table of prepared images, and the removal of tables that it no longer names."""

import contextlib
import json
from collections.abc import Sequence

from smalti.errors import StoreError, StoreNotFound
from smalti.spark.prepared.table import PreparedTable, load_table, table_key
from smalti.storage import Store

_NUM_TABLES = 2  # the newest table, and the one before it for running readers


def newest_table(store: Store, recipe: str) -> PreparedTable | None:
    """Return the table that the next update by this recipe builds on; None if there is none."""
    names = _newest(store, recipe)
    return load_table(store, names[0]) if names else None


def show_table(store: Store, table: PreparedTable, recipe: str) -> None:
    """Store the table and make it the newest one."""
    put_table(store, table)
    point_at(store, table.name, recipe)


def put_table(store: Store, table: PreparedTable) -> None:
    """Store the table under its name; no update builds on it yet."""
    store.put(table_key(table.name), table.emit())


def point_at(store: Store, name: str, recipe: str) -> None:
    """Make a stored table the newest one, and remove what only tables before the last two need."""
    before = _newest(store, recipe)
    if before[:1] == [name]:
        return
    names = [name, *(other for other in before if other != name)]
    store.put(_pointer(recipe), json.dumps(names[:_NUM_TABLES]).encode())
    for old in names[_NUM_TABLES:]:
        _forget(store, old, kept=names[:_NUM_TABLES])


def _newest(store: Store, recipe: str) -> list[str]:
    """Return the names of the newest table and of the one before it."""
    try:
        found = json.loads(store.get(_pointer(recipe)))
    except (StoreNotFound, ValueError):  # after a damaged pointer all images are prepared again
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _pointer(recipe: str) -> str:
    return f"_newest/{recipe}.json"


def _forget(store: Store, name: str, *, kept: Sequence[str]) -> None:
    """Delete a table and the parts that no kept table needs. Best effort: vacuum removes what remains."""
    with contextlib.suppress(StoreError):
        old = load_table(store, name)
        living = {part for each in kept if (table := load_table(store, each)) is not None for part in table.parts}
        store.delete(table_key(name))
        for part in (old.parts if old is not None else {}).keys() - living:
            store.delete(part)
