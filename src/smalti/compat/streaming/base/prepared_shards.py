"""PreparedShards: the shards of a Stream whose class has its own way to find or fetch them, as a store for the engine.

The engine fetches each shard by the class's `prepare_shard`, copies it to its cache, and removes it from `local` again.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from smalti.catalog.header import INDEX
from smalti.compat.streaming.base.format.base.reader import Reader
from smalti.errors import StoreError, StoreNotFound
from smalti.format import emit_index
from smalti.process import PerProcess
from smalti.storage import LocalStore, Store
from smalti.storage.redact import redact_address
from smalti.storage.store import ObjectInfo, check_key

if TYPE_CHECKING:
    from smalti.compat.streaming.base.stream import Stream


class PreparedShards(Store):
    """The uncompressed shards that a stream prepares, with an index file of them; read-only.

    Calls of the stream's methods are serialised, because a user's class need not be thread-safe.

    Args:
        stream: prepares a shard when the engine reads it.
        shards: the stream's shards.
    """

    def __init__(self, stream: "Stream", shards: list[Reader]) -> None:
        self.url = redact_address(f"{stream.remote or stream.local}/{stream.split}".rstrip("/"))
        self._stream = stream
        entries = (replace(shard.to_smalti(), zip=None, zip_meta=None, compression=None) for shard in shards)
        self._index = emit_index(list(entries))
        self._shard_of = {file.basename: shard for shard in shards for file, _ in shard.file_pairs}
        self._lock = PerProcess(threading.Lock)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return self.get_range(key, 0, self.size(key))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
        if key == INDEX:
            return self._index[begin:end]
        with self._lock.get():
            return self._prepared(key).get_range(key, begin, end)

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks; the stream's own copy is removed if it can be fetched again."""
        with self._lock.get():
            num_bytes = self._prepared(key).fetch(key, out, on_chunk=on_chunk)
            if self._stream._is_fetched:
                self._shard_of[key].evict()
            return num_bytes

    def size(self, key: str) -> int:
        """Return the size of the object, bytes."""
        if key == INDEX:
            return len(self._index)
        return next(file.bytes for file, _ in self._shard(key).file_pairs if file.basename == key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the index file and the files of all shards."""
        names = sorted([INDEX, *self._shard_of])
        return iter([ObjectInfo(name, self.size(name), "") for name in names if name.startswith(prefix)])

    def child(self, prefix: str) -> Store:
        """Raise an error: there are no sets below."""
        raise StoreNotFound(f"{self.url} has no folder {prefix!r}: its shards are those of one Stream", key=prefix)

    def put(self, key: str, *_: Any, **__: Any) -> NoReturn:
        """Raise an error: nothing can be written or removed."""
        raise StoreError(f"{self.locate(key)}: the shards of a Stream can only be read", key=key, url=self.url)

    put_file = put_if_absent = delete = put

    def _shard(self, key: str) -> Reader:
        shard = self._shard_of.get(check_key(key))
        if shard is None:
            raise StoreNotFound(f"{self.url}: no shard of the stream has a file {key!r}", key=key, url=self.url)
        return shard

    def _prepared(self, key: str) -> LocalStore:
        """Have the stream prepare the shard of a file, and return the store that then has the file.

        Raises:
            StoreNotFound: the stream finds no such file.
            StoreError: the stream raised another OSError.
        """
        shard = self._shard(key)
        try:
            self._stream.prepare_shard(shard)
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise StoreNotFound(f"{self.locate(key)}: {error}", key=key, url=self.url) from error
        except OSError as error:
            raise StoreError(f"{self.locate(key)}: {error}", key=key, url=self.url) from error
        return LocalStore(Path(shard.dirname, shard.split))
