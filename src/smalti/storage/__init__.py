"""Stores of bytes by key: folders, object stores, web servers, and Unity Catalog volumes.

Here: the interface `Store`, its two implementations `LocalStore` and `FsspecStore`, the registry of URL schemes,
retries, and the mapping of client libraries' errors to Smalti's. Not here: the meaning of the bytes (`smalti.format`),
versions (`smalti.catalog`), local copies (`smalti.cache`). Read `store` first; to add a scheme, `schemes`.
"""

from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.opening import Place, open_store
from smalti.storage.store import ObjectInfo, OldVersion, Store, Tagged, UnfinishedUpload

__all__ = [
    "FsspecStore",
    "LocalStore",
    "ObjectInfo",
    "OldVersion",
    "Place",
    "Store",
    "Tagged",
    "UnfinishedUpload",
    "open_store",
]
