"""A store that counts the bytes that are read from it."""

from pathlib import Path

from smalti.storage import open_store
from tests.stores import LoggedStore


class CountedStore(LoggedStore):
    """A folder that looks like a remote store, with the bytes that each key has delivered."""

    def __init__(self, root: "Path | str", log: Path) -> None:
        super().__init__(open_store(str(root)), log)
        self.bytes_of: dict[str, int] = {}

    def get(self, key):
        return self._counted(key, super().get(key))

    def get_range(self, key, begin, end):
        return self._counted(key, super().get_range(key, begin, end))

    def fetch(self, key, out, *, on_chunk=None):
        size = super().fetch(key, out, on_chunk=on_chunk)
        self.bytes_of[key] = self.bytes_of.get(key, 0) + size
        return size

    @property
    def shard_bytes(self) -> int:
        """Bytes that were read of shards."""
        return sum(count for key, count in self.bytes_of.items() if ".mds" in key)

    def _counted(self, key, data):
        self.bytes_of[key] = self.bytes_of.get(key, 0) + len(data)
        return data
