"""fsspec's memory of this process, with conditions that hold among threads: `memory://name`."""

import functools
import importlib
import threading
from hashlib import sha256
from typing import Any

from smalti.storage.store import Tagged

_changing = threading.Lock()


def make(options: dict[str, Any]) -> Any:
    """A file system over the memory that all of this process share."""
    return _class()(**options)


@functools.cache
def _class() -> Any:
    base: Any = importlib.import_module("fsspec.implementations.memory").MemoryFileSystem

    class ConditionalMemoryFileSystem(base):  # type: ignore[misc]
        """One writer at a time; what is there goes by the hash of its content."""

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
            with _changing:
                super().pipe_file(path, value, mode=mode, **options)

        def get_tagged(self, path: str) -> Tagged:
            data = bytes(self.cat_file(path))
            return Tagged(data, sha256(data).hexdigest())

        def put_if_match(self, path: str, data: bytes, etag: str) -> str:
            with _changing:
                if self.get_tagged(path).etag != etag:
                    raise FileExistsError(path)
                super().pipe_file(path, data, mode="overwrite")
            return sha256(data).hexdigest()

    return ConditionalMemoryFileSystem
