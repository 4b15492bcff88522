"""Index files for readers that know nothing of versions: `index.json` at the root and in the folder of each split.

They are copies: the truth is `_versions/`. A publisher that dies before or between them leaves the old ones, which
name shards that are still there; the next publisher brings them up to date.
"""

from collections.abc import Sequence
from typing import Any

from smalti.catalog.firsts import told_firsts
from smalti.catalog.header import INDEX, Header, read_header, read_manifest
from smalti.catalog.index_replacing import version_of_index
from smalti.catalog.index_writing import MANY_SHARDS, put_index
from smalti.catalog.manifest import Manifest
from smalti.catalog.peeking import EXTRA, peek_index
from smalti.catalog.shard_table import sizes_of
from smalti.errors import StoreNotFound
from smalti.format import ShardInfo
from smalti.storage import Store

INDEX_FORMAT = 1
MAX_ROUNDS = 100
"""Publishers that keep overtaking each other for so many rounds leave the index to the last of them."""


def refresh_index(store: Store, manifest: Manifest) -> None:
    """Make the index files show the newest version: `manifest`, or one that was published after it.

    A slow publisher puts no old index over a newer one, where the store can replace conditionally; and whoever writes
    last looks once more, so that none stays there, where it cannot.
    """
    written: set[str] = set()  # splits that a newer version may not have, and whose publisher did not see them
    for _ in range(MAX_ROUNDS):
        shown = _shown(store)
        if shown.get("version", 0) <= manifest.version:
            _write(store, manifest, stale={*shown.get("partitions", ()), *written} - set(manifest.partitions))
            written |= set(manifest.partitions)
        newer = _newer(store, manifest.version)
        if newer is None:
            return
        manifest = read_manifest(store, newer)


def _write(store: Store, manifest: Manifest, stale: set[str]) -> None:
    extra: dict[str, Any] = {
        "format": INDEX_FORMAT,
        "version": manifest.version,
        "parent": manifest.parent,
        "write_id": manifest.write_id,
        "digest": manifest.digest,
        "rows": manifest.rows,
        "created": manifest.created,
        "columns": manifest.schema.columns(),
        "partitions": list(manifest.partitions),
        "lineage": dict(manifest.lineage),
    }
    if manifest.logical:
        extra["logical"] = dict(manifest.logical)
    for split in manifest.partitions:
        below = manifest.select(split)
        own = extra | {"split": split, "rows": int(sizes_of(below).sum())} | _firsts(below)
        put_index(store, f"{split}/{INDEX}", below, {EXTRA: own}, f"{split}/")
    for split in sorted(stale):
        _remove_older(store, f"{split}/{INDEX}", manifest.version)
    put_index(store, INDEX, manifest.shards, {EXTRA: extra | _firsts(manifest.shards)})


def _firsts(shards: Sequence[ShardInfo]) -> dict[str, Any]:
    """Larger sets are opened by their shard table, which has them."""
    return told_firsts(shards) if len(shards) < MANY_SHARDS else {}


def _remove_older(store: Store, key: str, version: int) -> None:
    """Remove the index of a split that this version no longer has, unless a newer one has it or it is a stranger's."""
    try:
        shown = version_of_index(store.get(key))
    except StoreNotFound:
        return
    if 0 < shown <= version:
        store.delete(key)


def _shown(store: Store) -> dict[str, Any]:
    found = peek_index(store)
    return (found.extra or {}) if found is not None else {}


def _newer(store: Store, version: int) -> Header | None:
    newest = None
    while True:
        try:
            newest = read_header(store, version + 1)
        except StoreNotFound:
            return newest
        version += 1
