"""Objects in the memory of this process, `memory://name`: fsspec's file system with conditional puts."""

import functools
import importlib
import threading
from hashlib import sha256
from typing import Any

from smalti.storage.store import Tagged

_write_lock = threading.Lock()


def option_names() -> set[str]:
    """Return the names of the options: there are none but those of every store."""
    return set()


def make(options: dict[str, Any]) -> Any:
    """Make a file system; all of this process share their objects."""
    return _class()(**options)


@functools.cache
def _class() -> Any:
    base: Any = importlib.import_module("fsspec.implementations.memory").MemoryFileSystem

    class ConditionalMemoryFileSystem(base):  # type: ignore[misc]
        """fsspec's file system with one writer at a time; an object's ETag is its SHA-256."""

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
            with _write_lock:
                super().pipe_file(path, value, mode=mode, **options)

        def get_tagged(self, path: str) -> Tagged:
            data = bytes(self.cat_file(path))
            return Tagged(data, sha256(data).hexdigest())

        def put_if_match(self, path: str, data: bytes, etag: str) -> str:
            with _write_lock:
                if self.get_tagged(path).etag != etag:
                    raise FileExistsError(path)
                super().pipe_file(path, data, mode="overwrite")
            return sha256(data).hexdigest()

    return ConditionalMemoryFileSystem
