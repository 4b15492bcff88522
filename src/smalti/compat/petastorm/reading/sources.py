"""Sources of files: a folder of one of Smalti's stores, or of a file system of pyarrow (HDFS, or a given one).

Addresses of local files are read as Spark writes to them: the rest of `file:///a%20b#1` is the name of a folder.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from smalti.errors import StoreError, StoreNotFound
from smalti.storage import LocalStore, ObjectInfo, Store, open_store

_URL = re.compile(r"(?P<root>(?:[A-Za-z][\w+.-]*:(?://[^/]*)?)?)(?P<path>.*)", re.DOTALL)
_LOCAL = ("file:", "file://", "file://localhost")


class ArrowSource:
    """A folder of a pyarrow file system."""

    def __init__(self, filesystem: Any, root: str, url: str) -> None:
        self.filesystem, self.root, self.url = filesystem, root.rstrip("/"), url

    def list(self) -> list[ObjectInfo]:
        """List all files below the folder."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self.root, allow_not_found=True, recursive=True)
        infos = list(self._call("list", "", lambda: self.filesystem.get_file_info(selector)))
        found = [
            ObjectInfo(posixpath.relpath(info.path, self.root), info.size or 0, str(info.mtime_ns or ""))
            for info in infos
            if info.type == FileType.File
        ]
        return sorted(found, key=lambda info: info.key)

    def size(self, key: str) -> int:
        """Return the size of a file in bytes."""
        from pyarrow.fs import FileType

        info = self._call("look up", key, lambda: self.filesystem.get_file_info(f"{self.root}/{key}"))
        if info.type != FileType.File:
            raise StoreNotFound(f"{self.locate(key)} does not exist", key=key, url=self.url)
        return int(info.size)

    def locate(self, key: str) -> str:
        """Return the full address of a key, for messages."""
        return f"{self.url.rstrip('/')}/{key}"

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002 -- as stores have it
        """Return None: files are read through the file system."""
        return None

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Read bytes [begin, end) of a file, fewer if the file ends before."""

        def read() -> bytes:
            with self.filesystem.open_input_file(f"{self.root}/{key}") as file:
                stop = min(end, file.size())
                return bytes(file.read_at(max(0, stop - begin), begin))

        data: bytes = self._call("read", key, read)
        return data

    def _call(self, action: str, key: str, call: Any) -> Any:
        try:
            return call()
        except FileNotFoundError as error:
            raise StoreNotFound(f"{self.locate(key)} does not exist", key=key, url=self.url) from error
        except OSError as error:
            raise StoreError(f"cannot {action} {self.locate(key)}: {error}", key=key, url=self.url) from error


FileSource: TypeAlias = Store | ArrowSource
"""Files by key below one folder; thread-safe."""


@dataclass(frozen=True)
class ListedSource:
    """A source of files, and the files that were listed one by one."""

    source: FileSource
    keys: tuple[str, ...] | None
    """None for every data file of the folder."""
    as_file: "ListedSource | None" = None
    """The same address as that of one file; None if it cannot be one."""


def open_place(
    url_or_urls: str | Sequence[str], options: Mapping[str, Any] | None = None, filesystem: Any = None
) -> ListedSource:
    """Return the folder or file at a URL, or the files of several URLs of one scheme; of local files, looks for them.

    Raises:
        ValueError: no URL, one that is not text, several schemes, or a file twice.
        StoreError: an address that cannot be used.
    """
    if isinstance(url_or_urls, str):
        root, path = _split(url_or_urls)
        is_name = "/" in path.rstrip("/") and bool(posixpath.basename(path))
        as_file = _files([url_or_urls], options, filesystem) if is_name else None
        local = as_file.source.local_path((as_file.keys or ("",))[0]) if as_file is not None else None
        if as_file is not None and local is not None and local.is_file():
            return as_file
        return ListedSource(_source(root, path, options, filesystem), None, as_file)
    urls = list(url_or_urls)
    if not urls or not all(isinstance(url, str) for url in urls):
        raise ValueError(f"`dataset_url_or_urls` must be a URL or a list of URLs, found {url_or_urls!r}.")
    if len(set(urls)) != len(urls):
        twice = next(url for url in urls if urls.count(url) > 1)
        raise ValueError(f"`dataset_url_or_urls` contains {twice} twice; remove one.")
    return _files(urls, options, filesystem)


def _files(urls: Sequence[str], options: Mapping[str, Any] | None, filesystem: Any) -> ListedSource:
    parts = [_split(url.rstrip("/")) for url in urls]
    roots = sorted({root for root, _ in parts})
    if len(roots) > 1:
        raise ValueError(f"all URLs must be of one scheme and bucket, found {' and '.join(roots)}.")
    paths = [_existing(path) if roots[0] in _LOCAL and filesystem is None else path for _, path in parts]
    folder = posixpath.commonpath([posixpath.dirname(path) or "." for path in paths])
    keys = tuple(posixpath.relpath(path, folder) for path in paths)
    return ListedSource(_source(roots[0], folder, options, filesystem), keys)


def _existing(path: str) -> str:
    """Return the path of a local file: as it is written, or decoded where only that exists, as Spark lists files."""
    decoded = unquote(path)
    return decoded if decoded != path and not Path(path).exists() and Path(decoded).exists() else path


def _split(url: str) -> tuple[str, str]:
    match = _URL.fullmatch(url)
    return ("", url) if match is None else (match["root"], match["path"])


def _source(root: str, path: str, options: Mapping[str, Any] | None, filesystem: Any) -> FileSource:
    if filesystem is not None:
        bucket = root.partition("://")[2]
        return ArrowSource(filesystem, f"{bucket}{path}", f"{root}{path}")
    if root.startswith(("hdfs:", "viewfs:")):
        from pyarrow.fs import FileSystem

        found, inner = FileSystem.from_uri(f"{root}{path}")
        return ArrowSource(found, inner, f"{root}{path}")
    if root in _LOCAL and path:
        return LocalStore(path)
    return open_store(f"{root}{path}", options)
