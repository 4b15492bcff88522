"""Disk cache of row groups as Arrow files, verified by hash, within a limit of bytes. It contains no pickles."""

import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from smalti.cache.files import is_held

_SUFFIX = ".arrow"
_TEMPORARY_SUFFIX = ".tmp"


class DiskCache:
    """Tables by name in one folder, which processes may share; the oldest files are evicted first.

    Args:
        folder: created when first needed.
        limit: maximal bytes of all files; a larger table is not cached.
        removes_folder: whether `cleanup` removes the folder.
    """

    def __init__(self, folder: str | Path, limit: int, *, removes_folder: bool = False) -> None:
        self.folder, self.limit, self._removes = Path(folder), limit, removes_folder
        self._lock = threading.Lock()
        self.hits = 0
        """Number of tables found in the cache."""

    def get(self, name: str, fill: Callable[[], pa.Table]) -> pa.Table:
        """Return the table of this name; if it is missing or damaged, call `fill` and cache its result."""
        key = hashlib.sha256(name.encode()).hexdigest()
        found = self._found(key)
        if found is not None:
            self.hits += 1
            return found
        table = fill()
        self._keep(key, table)
        return table

    def cleanup(self) -> None:
        """Remove the folder if the cache was created with `removes_folder`."""
        if self._removes and self.folder.is_dir():
            shutil.rmtree(self.folder)

    def _found(self, key: str) -> pa.Table | None:
        for path in self.folder.glob(f"{key}-*{_SUFFIX}"):
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # another process evicted it
                continue
            if path.name == _name(key, data):
                return pa.ipc.open_file(pa.BufferReader(data)).read_all()
            path.unlink(missing_ok=True)
        return None

    def _keep(self, key: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = memoryview(sink.getvalue())
        if len(data) > self.limit:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temp = self.folder / f"{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}"
        with self._lock:
            self._remove_stale()
            self._make_room(len(data))
            try:
                with temp.open("xb") as file:
                    with suppress(OSError):  # a file system without locks: no file is treated as stale there
                        fcntl.flock(file, fcntl.LOCK_EX)
                    file.write(data)
                    file.flush()
                    with suppress(FileNotFoundError):  # another process removed it as stale before it was locked
                        temp.replace(self.folder / _name(key, data))
            finally:
                temp.unlink(missing_ok=True)

    def _remove_stale(self) -> None:
        """Remove temporary files of killed processes: a live one holds a lock on its file."""
        for path in self.folder.glob(f"*{_TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                if not is_held(path):
                    path.unlink(missing_ok=True)

    def _make_room(self, num_bytes: int) -> None:
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            files.append((stat.st_mtime_ns, stat.st_size, path))
        held = sum(size for _, size, _ in files)
        for _, size, path in sorted(files, key=lambda file: file[0]):
            if held + num_bytes <= self.limit:
                return
            path.unlink(missing_ok=True)
            held -= size


def make_disk_cache(
    location: str | os.PathLike[str] | None, limit: int | None, row_bytes: int | None, settings: dict[str, Any]
) -> DiskCache:
    """Return the cache for `cache_type='local-disk'`.

    Raises:
        ValueError: folder or limit is missing, or the limit is below five rows.
    """
    if location is None or limit is None or limit < 1:
        raise ValueError(
            "cache_type='local-disk' needs `cache_location`, a folder, and `cache_size_limit`, bytes; found "
            f"{location!r} and {limit!r}."
        )
    if row_bytes is not None and limit < 5 * row_bytes:
        raise ValueError(f"`cache_size_limit` is {limit} bytes, less than five rows of {row_bytes} bytes; increase it.")
    return DiskCache(Path(location), limit, removes_folder=bool(settings.get("cleanup", False)))


def _name(key: str, data: bytes | memoryview) -> str:
    return f"{key}-{xxhash.xxh3_128_hexdigest(data)}{_SUFFIX}"
