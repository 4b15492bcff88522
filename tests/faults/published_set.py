"""A set that is published to the fault store through s3fs, and what must be true of it whatever happened."""

from smalti.catalog import load_manifest, publish
from tests.stores import MemoryStore

HEADER = "_versions/00000001.json"


def drafted(faults, make_draft, *, first=0, **options):
    """A draft whose shards lie in the store already, put there without a request in the log."""
    away = MemoryStore()
    draft = make_draft(away, 3, first=first, **options)
    for info in away.list():
        faults.put(f"set/{info.key}", away.get(info.key))
    return draft


def published(faults, make_draft):
    """The store with a first version in it; nothing is in the log."""
    store = faults.open("set")
    publish(store, drafted(faults, make_draft))
    faults.forget()
    return store


def rows_of(store):
    """Return the number of rows that readers see in each version, oldest first."""
    newest = load_manifest(store).version
    return [load_manifest(store, version=version).rows for version in range(1, newest + 1)]
