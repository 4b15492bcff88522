"""Which table of prepared images is the newest, and forgetting those that nothing builds on any more."""

import contextlib
import json
from collections.abc import Sequence

from smalti.errors import StoreError, StoreNotFound
from smalti.spark.prepared.table import PreparedTable, load_table, table_key
from smalti.storage import Store

_KEPT = 2  # the newest table, and the one before it for whoever still reads that


def newest_table(store: Store, recipe: str) -> PreparedTable | None:
    """What the next update by this recipe builds on; None if there is nothing, or it is gone."""
    names = _newest(store, recipe)
    return load_table(store, names[0]) if names else None


def show_table(store: Store, table: PreparedTable, recipe: str) -> None:
    """Put the table, and make it the newest one."""
    put_table(store, table)
    point_at(store, table.name, recipe)


def put_table(store: Store, table: PreparedTable) -> None:
    """Put the table: it can be found by its name, and nothing builds on it yet."""
    store.put(table_key(table.name), table.emit())


def point_at(store: Store, name: str, recipe: str) -> None:
    """Make a table that is there the newest one; what was needed by those before the last is removed."""
    before = _newest(store, recipe)
    if before[:1] == [name]:
        return
    names = [name, *(other for other in before if other != name)]
    store.put(_pointer(recipe), json.dumps(names[:_KEPT]).encode())
    for old in names[_KEPT:]:
        _forget(store, old, kept=names[:_KEPT])


def _newest(store: Store, recipe: str) -> list[str]:
    """The names of the newest table and of the one before."""
    try:
        found = json.loads(store.get(_pointer(recipe)))
    except (StoreNotFound, ValueError):  # one that is damaged costs one whole preparation
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def _pointer(recipe: str) -> str:
    return f"_newest/{recipe}.json"


def _forget(store: Store, name: str, *, kept: Sequence[str]) -> None:
    """Best effort: what stays behind is named by nothing, and the caller has something more important to say."""
    with contextlib.suppress(StoreError):
        old = load_table(store, name)
        living = {part for each in kept if (table := load_table(store, each)) is not None for part in table.parts}
        store.delete(table_key(name))
        for part in (old.parts if old is not None else {}).keys() - living:
            store.delete(part)
