"""Replacing an index file by one of a newer version, and never by one of an older.

Intended behaviour, on a store that replaces conditionally; anything else is a bug:
1. What is there is looked at first. If it is of a newer version, ours is not wanted any more, and that is no error.
2. Ours is put only if that is still there (`put_if_match`), or still nothing (`put_if_absent`). If not: from 1 again.
3. So a publisher that sleeps between looking and putting, or whose put arrives late, puts nothing over a newer one.

Elsewhere the file is replaced whatever is there, and whoever did so looks for newer versions afterwards.
"""

from smalti.catalog.checked_puts import ATTEMPTS, put_checked
from smalti.catalog.header import parse_json
from smalti.catalog.peeking import EXTRA
from smalti.errors import CatalogError, IndexFileError, StoreConflict, StoreError, StoreExists, StoreNotFound
from smalti.storage import Store
from smalti.storage.interface import Tagged

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
