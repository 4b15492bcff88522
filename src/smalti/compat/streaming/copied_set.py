"""Sets that were copied without their versions: shards and `index.json`, as readers of MosaicML leave them in `local`.

The engine refuses to open such a folder as one of Smalti's, since a part of it is missing. Here it is a plain MDS set.
"""

import json
from functools import cached_property
from pathlib import Path

from smalti.catalog.header import INDEX
from smalti.catalog.index import EXTRA, peek_index
from smalti.storage import LocalStore, Store

_VERSIONS = "_versions"


class CopiedSet(LocalStore):
    """The folder of a set, whose index file is read without Smalti's key."""

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return self._index if key == INDEX else super().get(key)

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
        return self._index[begin:end] if key == INDEX else super().get_range(key, begin, end)

    def size(self, key: str) -> int:
        """Return the size of the object, bytes."""
        return len(self._index) if key == INDEX else super().size(key)

    @cached_property
    def _index(self) -> bytes:
        index = json.loads(super().get(INDEX))
        index.pop(EXTRA, None)
        return json.dumps(index).encode("ascii")


def find_copied_set(local: str, split: str | None) -> Store | None:
    """Return the store of a set, or of one split of it, that was copied to this folder without its versions.

    None if it was not, or there is no set.

    Raises:
        IndexFileError: the index file is damaged.
    """
    index = peek_index(LocalStore(local))
    extra = None if index is None else index.extra
    if extra is None or extra.get("split") is not None or Path(local, _VERSIONS).exists():
        return None
    return CopiedSet(Path(local, split or ""))
