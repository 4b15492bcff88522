"""Unity Catalog volumes over the Files API: a thin fsspec file system on the Databricks SDK's own client.

Only what a store needs. Reading is ranged and chunked (an unbounded read of the SDK's stream is ten times slower), the
overwrite flag is always said, and the SDK's errors keep their classes: `faults.py` knows them.
"""

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from fsspec import AbstractFileSystem

from smalti.errors import StoreAuthError
from smalti.storage.extras import load_extra
from smalti.storage.faults import CREDENTIALS_HELP

FILES_API = "/api/2.0/fs/files"
DIRECTORIES_API = "/api/2.0/fs/directories"
READ_BYTES = 1 << 20
HTTP_SECONDS = 30
RETRY_SECONDS = 2
"""The SDK's own deadline for throttled and dropped requests, short because ours bounds the whole; its default is
300 s, for each call and once more before the first."""


def make(options: dict[str, Any]) -> Any:
    """A file system for the workspace that the options or the environment name."""
    load_extra("databricks.sdk")
    return VolumesFileSystem(**({"skip_instance_cache": True} | options))


class VolumesFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files below /Volumes/<catalog>/<schema>/<volume>; blocking, thread-safe.

    Args:
        host: Workspace URL; default: DATABRICKS_HOST or the profile.
        token: Personal access token; default: DATABRICKS_TOKEN or what the SDK finds.
        settings: More arguments of `databricks.sdk.core.Config`.
    """

    protocol = "dbfs"
    root_marker = "/"

    def __init__(self, host: str | None = None, token: str | None = None, **settings: Any) -> None:
        super().__init__(use_listings_cache=False, skip_instance_cache=True)
        settings.pop("skip_instance_cache", None)
        self._api = _connect(host, token, settings)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix("dbfs:").strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size and time of a file, or the fact that it is a directory; raises the SDK's NotFound."""
        name = self._strip_protocol(path)
        wanted = ["content-length", "last-modified"]
        found = self._api.do("HEAD", _address(FILES_API, name), headers={}, response_headers=wanted)
        return {
            "name": name,
            "size": int(found["content-length"]),
            "type": "file",
            "last_modified": found.get("last-modified", ""),
        }

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 -- fsspec's signature
        """The entries of a directory, all pages."""
        entries = list(self._entries(self._strip_protocol(path)))
        return entries if detail else [entry["name"] for entry in entries]

    def find(self, path: str, **options: Any) -> Any:
        """All files below a directory; unlike fsspec's own, it does not hide a refused or failed listing."""
        maxdepth, withdirs = options.get("maxdepth"), options.get("withdirs", False)
        found: dict[str, dict[str, Any]] = {}
        pending = [(self._strip_protocol(path), 1)]
        while pending:
            folder, depth = pending.pop()
            for entry in self._entries(folder):
                is_folder = entry["type"] == "directory"
                if is_folder and (maxdepth is None or depth < maxdepth):
                    pending.append((entry["name"], depth + 1))
                if withdirs or not is_folder:
                    found[entry["name"]] = entry
        names = sorted(found)
        return {name: found[name] for name in names} if options.get("detail") else names

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """The bytes [start, end) of a file."""
        headers = {"Accept": "application/octet-stream"}
        if start is not None or end is not None:
            headers["Range"] = f"bytes={start or 0}-{'' if end is None else end - 1}"
        try:
            answer = self._api.do("GET", _address(FILES_API, self._strip_protocol(path)), headers=headers, raw=True)
        except Exception as error:
            # A range past the end has no error class of its own in the SDK; the size tells.
            if (
                type(error).__name__ in {"DatabricksError", "BadRequest"}
                and start is not None
                and self.info(path)["size"] <= start
            ):
                return b""
            raise
        stream = answer["contents"]
        try:
            return b"".join(_chunks(stream))
        finally:
            stream.close()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file; with mode="create" the server refuses when one is there."""
        self._upload(path, io.BytesIO(value), overwrite=mode != "create")

    def put_file(self, lpath: str, rpath: str, mode: str = "overwrite", **_: Any) -> None:
        """Upload a local file, streamed from disk."""
        with Path(lpath).open("rb") as file:
            self._upload(rpath, file, overwrite=mode != "create")

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        self._api.do("DELETE", _address(FILES_API, self._strip_protocol(path)), headers={})

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: ARG002, FBT001, FBT002
        """Make a directory and its parents; nothing happens when it is there."""
        self._api.do("PUT", _address(DIRECTORIES_API, self._strip_protocol(path)), headers={})

    def _upload(self, path: str, contents: BinaryIO, *, overwrite: bool) -> None:
        name = self._strip_protocol(path)
        send = {"query": {"overwrite": str(overwrite).lower()}, "headers": {"Content-Type": "application/octet-stream"}}
        try:
            self._api.do("PUT", _address(FILES_API, name), data=contents, **send)
        except Exception as error:
            if type(error).__name__ != "NotFound":
                raise
            # A volume wants the folder made first; a missing volume fails here, with the right name.
            self.mkdir(self._parent(name))
            contents.seek(0)
            self._api.do("PUT", _address(FILES_API, name), data=contents, **send)

    def _entries(self, folder: str) -> Iterator[dict[str, Any]]:
        query: dict[str, Any] = {}
        while True:
            page = self._api.do(
                "GET", _address(DIRECTORIES_API, folder), query=query, headers={"Accept": "application/json"}
            )
            for entry in page.get("contents", ()):
                is_folder = bool(entry.get("is_directory"))
                yield {
                    "name": entry["path"].rstrip("/"),
                    "size": 0 if is_folder else int(entry.get("file_size", 0)),
                    "type": "directory" if is_folder else "file",
                    "last_modified": str(entry.get("last_modified", "")),
                }
            if not page.get("next_page_token"):
                return
            query = {"page_token": page["next_page_token"]}


def _connect(host: str | None, token: str | None, settings: dict[str, Any]) -> Any:
    core = importlib.import_module("databricks.sdk.core")
    defaults = {"retry_timeout_seconds": RETRY_SECONDS, "http_timeout_seconds": HTTP_SECONDS}
    try:
        return core.ApiClient(core.Config(host=host, token=token, **(defaults | settings)))
    except ValueError as error:
        raise StoreAuthError(
            f"cannot log in to Databricks ({str(error).split('. Config:')[0]}); {CREDENTIALS_HELP['dbfs']}", host=host
        ) from error


def _address(api: str, path: str) -> str:
    return api + quote(path, safe="/")


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(READ_BYTES):
        yield chunk
