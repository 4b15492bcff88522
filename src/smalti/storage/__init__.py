"""Bytes by key: stores on a disk, on object stores and in Unity Catalog volumes.

Here: the `Store` interface, its two kinds, the opening of URLs, retries, and the mapping of every library's errors
to Smalti's own. Not here: what the bytes mean (`smalti.format`), versions (`smalti.catalog`), local copies
(`smalti.cache`).
"""

from smalti.storage.local import LocalStore
from smalti.storage.object_store import FsspecStore
from smalti.storage.opening import Place, open_store
from smalti.storage.store import ObjectInfo, Store, Tagged, UnfinishedUpload

__all__ = ["FsspecStore", "LocalStore", "ObjectInfo", "Place", "Store", "Tagged", "UnfinishedUpload", "open_store"]
