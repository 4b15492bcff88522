"""Index files for readers that know nothing of versions: `index.json` at the root and in the folder of each split.

They are copies: the truth is `_versions/`. A publisher that dies before or between them leaves the old ones, which
name shards that are still there; the next publisher brings them up to date.

Putting index files: small ones from memory, those of very many shards entry by entry through a temporary file.

Replacing an index file by one of a newer version, and never by one of an older.

Intended behaviour, on a store that replaces conditionally; anything else is a bug:
1. What is there is looked at first. If it is of a newer version, ours is not wanted any more, and that is no error.
2. Ours is put only if that is still there (`put_if_match`), or still nothing (`put_if_absent`). If not: from 1 again.
3. So a publisher that sleeps between looking and putting, or whose put arrives late, puts nothing over a newer one.

Elsewhere the file is replaced whatever is there, and whoever did so looks for newer versions afterwards.
"""

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from smalti.catalog.checked_put import ATTEMPTS, put_checked
from smalti.catalog.header import INDEX, Header, parse_json, read_header, read_manifest
from smalti.catalog.index.first_hashes import told_firsts
from smalti.catalog.index.peek import EXTRA, peek_index
from smalti.catalog.manifest import Manifest
from smalti.catalog.table.shard_table import sizes_of
from smalti.errors import CatalogError, IndexFileError, StoreConflict, StoreError, StoreExists, StoreNotFound
from smalti.format import ShardInfo, emit_index
from smalti.format.sizes import VERSION
from smalti.storage import Store
from smalti.storage.store import Tagged

MAX_LOOKS = 100
"""Others who replace the file again and again for so long leave it to the last of them."""
MAX_REPLACED_BYTES = 64 << 20
"""A larger file is not read to be replaced: no publisher needs that much memory."""


def replace_index(store: Store, key: str, data: bytes, version: int) -> None:
    """Put an index file unless one of a newer version is there, and see that the store has one.

    Args:
        store: Where it goes.
        key: Its name.
        data: Its bytes.
        version: What it shows.

    Raises:
        CatalogError: the store says that it took the file, and holds nothing.
    """
    if not store.replaces_conditionally or _size(store, key) > MAX_REPLACED_BYTES:
        put_checked(store, key, data, is_shared=True)
        return
    refused, lost = None, 0
    for _ in range(MAX_LOOKS):
        found = _look(store, key)
        if found is not None and (found.data == data or version_of_index(found.data) > version):
            return
        if found is not None and found == refused:
            break  # nobody changed it: the store refuses its own ETags
        try:
            _put(store, key, data, found)
        except (StoreConflict, StoreExists):
            refused = found
            continue
        except StoreError as error:
            if not error.facts.get("is_unsupported"):
                raise
            break
        if store.size(key):  # of whatever length: another publisher's may stand there by now
            return
        lost += 1
        if lost == ATTEMPTS:
            raise CatalogError(
                f"{store.locate(key)}: the store took {len(data)} bytes without an error, and holds nothing; publish "
                "again, and check the store's own log: it loses what is written",
                key=key,
            )
    else:
        return
    put_checked(store, key, data, is_shared=True)


def version_of_index(data: bytes, where: str = "") -> int:
    """The version that an index file of ours shows; 0 for one that is not, or cannot be read."""
    try:
        extra = parse_json(data, where=where).get(EXTRA)
    except IndexFileError:
        return 0
    version = extra.get("version") if isinstance(extra, dict) else None
    return version if type(version) is int else 0


def _put(store: Store, key: str, data: bytes, found: Tagged | None) -> None:
    if found is None:
        store.put_if_absent(key, data)
    else:
        store.put_if_match(key, data, found.etag)


def _look(store: Store, key: str) -> Tagged | None:
    try:
        return store.get_tagged(key)
    except StoreNotFound:
        return None


def _size(store: Store, key: str) -> int:
    try:
        return store.size(key)
    except StoreNotFound:
        return 0


MANY_SHARDS = 4096
"""From so many on an index file, some megabytes, is written part by part: a million entries are 700 MB."""
_AT_ONCE = 1024


def put_index(store: Store, key: str, shards: Sequence[ShardInfo], extra: Mapping[str, Any], folder: str = "") -> None:
    """Replace an index file, unless a newer version's is there, and see that the store has one.

    One of very many shards is put whatever is there.

    Args:
        store: Where it goes.
        key: Its name.
        shards: Those that it lists.
        extra: Its further top-level keys.
        folder: What is cut off from the names of files, `train/`; a shard is then listed without its split.

    Raises:
        CatalogError: the store says that it took the file, and holds nothing.
    """
    listed = (_inside(shard, folder) if folder else shard for shard in shards)
    if len(shards) < MANY_SHARDS:
        replace_index(store, key, emit_index(list(listed), extra), extra.get(EXTRA, {}).get("version", 0))
        return
    with tempfile.TemporaryDirectory(prefix="smalti-index-") as scratch:
        path = Path(scratch, "index.json")
        with path.open("wb") as file:
            file.writelines(index_parts(listed, extra))
        for _ in range(ATTEMPTS):
            store.put_file(key, path)
            if store.size(key):  # of whatever length: another publisher's may stand there by now
                return
    raise CatalogError(
        f"{store.locate(key)}: the store took an index file without an error, and holds nothing; publish again, and "
        "check the store's own log: it loses what is written",
        key=key,
    )


def index_parts(shards: Iterable[ShardInfo], extra: Mapping[str, Any]) -> Iterator[bytes]:
    """The bytes that `emit_index` makes of the same, some thousand entries at a time.

    Raises:
        IndexFileError: as for `emit_index`.
    """
    emit_index([], extra)  # refuses what it refuses
    separator = "{"
    for key in sorted((*extra, "shards", "version")):
        yield f"{separator}{json.dumps(key)}: ".encode()
        separator = ", "
        if key == "shards":
            yield from _entries(iter(shards))
        else:
            yield json.dumps(VERSION if key == "version" else extra[key], sort_keys=True).encode()
    yield b"}"


def _entries(shards: Iterator[ShardInfo]) -> Iterator[bytes]:
    separator = "["
    while part := list(islice(shards, _AT_ONCE)):
        yield (separator + json.dumps([shard.to_json() for shard in part], sort_keys=True)[1:-1]).encode()
        separator = ", "
    yield b"]" if separator == ", " else b"[]"


def _inside(shard: ShardInfo, folder: str) -> ShardInfo:
    """The shard as seen from the folder that it lies in."""
    return replace(shard.with_names(lambda name: name.removeprefix(folder)), partition=None)


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
