"""Files as sources: the files at a path, URL or pattern, their identity, and reading one from any store."""

import hashlib
import io
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from smalti.errors import SmaltiError, StoreNotFound
from smalti.storage import ObjectInfo, Place, Store, open_store
from smalti.storage.redact import redact_address

_GLOB = re.compile(r"[*?\[]")
_BUFFER_BYTES = 4 << 20
"""Bytes that sequential readers of remote files ask for at once."""


class Files(Protocol):
    """Readable files by key: a store, or a file system of pyarrow."""

    url: str

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of a file; fewer if it ends before."""

    def locate(self, key: str) -> str:
        """Return the full address of a file, for messages."""

    def local_path(self, key: str) -> Path | None:
        """Return the file's path if it is on a local disk, else None."""


@dataclass(frozen=True)
class SourceFiles:
    """The files of a source at one moment."""

    store: Store
    """Store that has the files."""
    files: tuple[ObjectInfo, ...]
    """Sorted by key; hidden files are left out."""
    url: str
    """Address that was asked for, without secrets."""
    pattern: str = ""
    """Pattern that the keys match; a single key for one file; empty for all files."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.num_bytes for file in self.files)

    def names(self) -> list[str]:
        """Return the keys of all files."""
        return [file.key for file in self.files]

    def having(self, suffixes: Collection[str]) -> "SourceFiles":
        """Return the files whose names end with one of these, in any case; all of them where a pattern chose them."""
        if self.pattern:
            return self
        found = tuple(file for file in self.files if file.key.lower().endswith(tuple(suffixes)))
        if not found:
            raise StoreNotFound(f"{self.url}: no file there ends with {' or '.join(suffixes)}", url=self.url)
        return SourceFiles(self.store, found, self.url, self.pattern)

    def identity(self) -> dict[str, Any]:
        """Return number, bytes and digest of the files as they are now: lists them again."""
        now = {file.key: file for file in _list(self.store, self.pattern)}
        digest = hashlib.sha256()
        for file in self.files:
            found = now.get(file.key)
            mark = "gone" if found is None else f"{found.num_bytes}\0{found.modified}"
            digest.update(f"{file.key}\0{mark}\n".encode("utf-8", "surrogateescape"))
        return {"files": len(self.files), "num_bytes": self.num_bytes, "digest": digest.hexdigest()}


def list_files(place: Place, storage_options: Mapping[str, Any] | None = None) -> SourceFiles:
    """Return the files at a place: of a file itself, of a folder and all below it, or of a pattern with `*`, `**`, `?`.

    Files are left out if they or a folder of theirs begin with `.` or `_`, as Spark does.

    Raises:
        StoreNotFound: There is no file.
        StoreError: The store cannot be listed.
    """
    if isinstance(place, Store):
        return _found(place, "", redact_address(place.url))
    is_local = "://" not in str(place)
    # Not resolved: a link is what its owner calls the source.
    text = os.path.abspath(place) if is_local else str(place).rstrip("/")  # noqa: PTH100
    shown = redact_address(text)
    folder, _, name = text.rpartition("/")
    if is_local and Path(text).is_file():
        store = open_store(folder or "/")
        return _found(store, re.escape(Path(text).name), shown)
    if _GLOB.search(text) and not (is_local and Path(text).exists()):
        base = _GLOB.split(text, maxsplit=1)[0].rpartition("/")[0]
        return _found(open_store(base or "/", storage_options), _regex(text[len(base) :].lstrip("/")), shown)
    if not is_local and "." in name and not folder.endswith((":/", ":")):
        above_store = open_store(folder, storage_options)
        if above_store.exists(name):
            return _found(above_store, re.escape(name), shown)
    return _found(open_store(text, storage_options), "", shown)


def _found(store: Store, pattern: str, shown: str) -> SourceFiles:
    files = _list(store, pattern)
    if not files:
        raise StoreNotFound(f"{shown}: there are no files; expected a file, a folder of files or a pattern", url=shown)
    return SourceFiles(store, files, shown, pattern)


def _list(store: Store, pattern: str) -> tuple[ObjectInfo, ...]:
    literal = re.sub(r"\\(.)", r"\1", pattern)
    if pattern and re.escape(literal) == pattern:
        try:
            return (store.info(literal),)
        except StoreNotFound:
            return ()
    chosen = re.compile(pattern) if pattern else None
    found = (item for item in store.list() if chosen is None or chosen.fullmatch(item.key))
    return tuple(sorted((item for item in found if not is_hidden(item.key)), key=lambda item: item.key))


def is_hidden(key: str) -> bool:
    """Return whether Spark leaves a file out: its name, or a folder's, begins with `.` or `_`, and is no partition."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in key.split("/"))


def _regex(pattern: str) -> str:
    """Return the regular expression of a pattern: `*` and `?` stay within a folder, `**/` is any number of folders."""
    found, place = "", 0
    while place < len(pattern):
        if pattern.startswith("**/", place):
            found, place = f"{found}(?:[^/]+/)*", place + 3
        elif pattern.startswith("**", place):
            found, place = f"{found}.*", place + 2
        elif (match := re.compile(r"\[!?[^\]]+\]").match(pattern, place)) is not None:
            found, place = f"{found}{match[0].replace('[!', '[^', 1)}", match.end()
        else:
            each = pattern[place]
            found, place = found + {"*": "[^/]*", "?": "[^/]"}.get(each, re.escape(each)), place + 1
    return found


def open_random(store: Files, key: str, num_bytes: int) -> pa.NativeFile:
    """Open a file for reading at any place, as Parquet is read; a file that is not local by ranged requests.

    Raises:
        SmaltiError: A local file cannot be opened.
    """
    path = store.local_path(key)
    if path is None:
        return pa.PythonFile(_Ranges(store, key, num_bytes), mode="r")
    try:
        return pa.OSFile(str(path), "rb")
    except FileNotFoundError as error:
        raise StoreNotFound(f"{store.locate(key)} does not exist", key=key) from error
    except OSError as error:
        raise SmaltiError(f"{store.locate(key)} cannot be opened: {error}", key=key) from error


def open_sequential(store: Store, key: str, num_bytes: int) -> io.BufferedIOBase:
    """Open a file for reading from its start to its end, as CSV and tar are read; can seek too.

    Raises:
        SmaltiError: A local file cannot be opened.
    """
    path = store.local_path(key)
    if path is None:
        return io.BufferedReader(_Ranges(store, key, num_bytes), _BUFFER_BYTES)
    try:
        return path.open("rb")
    except OSError as error:
        raise SmaltiError(f"{store.locate(key)} cannot be opened: {error}", key=key) from error


class _Ranges(io.RawIOBase):
    """An object of a store as a file: each read is a ranged request, with the retries and deadlines of the store."""

    def __init__(self, store: Files, key: str, num_bytes: int) -> None:
        super().__init__()
        self._store, self._key, self._size, self._at = store, key, num_bytes, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, and return it."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence])
        return self._at

    def size(self) -> int:
        """Return the size of the file, bytes."""
        return self._size

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; fewer than asked for only at the end of the file."""
        end = self._size if size < 0 else min(self._size, self._at + size)
        data = self._store.get_range(self._key, self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer, and return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
