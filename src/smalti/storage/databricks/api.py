"""Requests about files of a workspace: the Files API for Unity Catalog volumes, the DBFS API for everything else.

Volumes are the folders below /Volumes/<catalog>/<schema>/<volume>; the DBFS API is Databricks' older file system.
"""

import base64
import importlib
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from smalti.regular_files import open_regular
from smalti.storage.backends.bodies import PARTIAL, within
from smalti.storage.databricks.workspace import Client, Workspace, empty_range, is_about_the_request
from smalti.storage.store import temporary_name

FILES = "/api/2.0/fs/files"
DIRECTORIES = "/api/2.0/fs/directories"
READ_BYTES = 1 << 20
"""Size of the pieces in which the SDK's stream is read; a single read would copy all bytes again for each piece."""
PARTS_FROM_BYTES = 50 << 20
"""Size from which a file is uploaded in parts, to addresses that the workspace signs; the SDK's own threshold."""
PARTS_AT_ONCE = 4
PART_RETRY_SECONDS = 30
DBFS = "/api/2.0/dbfs"
BLOCK_BYTES = 1 << 20
"""Largest read or write of one request; a limit of the API."""
BLOCKS_AT_ONCE = 4


class FilesApi:
    """Requests about files of volumes. Blocking, thread-safe; paths begin with /Volumes/."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def stat(self, path: str) -> dict[str, Any]:
        """Return the entry of a file or folder."""
        headers = ["content-length", "last-modified"]
        try:
            found = self._workspace.request("HEAD", _address(FILES, path), path, headers={}, response_headers=headers)
        except FileNotFoundError:
            self._workspace.request("HEAD", _address(DIRECTORIES, path), path, headers={})
            return _entry(path, 0, is_folder=True)
        return _entry(path, found["content-length"], found.get("last-modified") or "")

    def entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a folder, all pages."""
        query: dict[str, Any] = {}
        while True:
            page = self._workspace.request(
                "GET", _address(DIRECTORIES, folder), folder, query=query, headers={"Accept": "application/json"}
            )
            for entry in page.get("contents", ()):
                size, changed = entry.get("file_size", 0), entry.get("last_modified", "")
                yield _entry(entry["path"], size, changed, is_folder=bool(entry.get("is_directory")))
            if not page.get("next_page_token"):
                return
            query = {"page_token": page["next_page_token"]}

    def read(self, path: str, begin: int, end: int | None) -> bytes:
        """Return the bytes [begin, end), fewer if the file ends before."""
        headers = {"Accept": "application/octet-stream"}
        if begin or end is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"

        def get(client: Client) -> bytes:
            answer = client.api.do("GET", _address(FILES, path), headers=headers, raw=True)
            stream = answer["contents"]
            try:
                # The SDK does not return the status: 200 to a range means that the whole file is sent.
                status = getattr(getattr(stream, "_response", None), "status_code", PARTIAL)
                chunks = iter(lambda: stream.read(READ_BYTES), b"")
                is_part = status == PARTIAL or "Range" not in headers
                return b"".join(within(chunks, begin, end, is_part=is_part, what=f"dbfs:{path}"))
            finally:
                stream.close()

        try:
            return self._workspace.run(get, path)
        except OSError as error:
            rejection = error
        return empty_range(rejection, self.stat, path, begin)

    def write(self, path: str, source: bytes | Path, *, overwrite: bool) -> None:
        """Store bytes or a local file in one step; make the folder if it is missing.

        A large file is uploaded in parts if the workspace supports that, but not with `overwrite=False`: the condition
        is only known to hold for a single request.
        """
        if overwrite and isinstance(source, Path) and self._write_in_parts(path, source):
            return

        def put(client: Client) -> None:
            contents.seek(0)
            client.api.do(
                "PUT",
                _address(FILES, path),
                query={"overwrite": str(overwrite).lower()},
                headers={"Content-Type": "application/octet-stream"},
                data=contents,
            )

        with open_regular(source) if isinstance(source, Path) else io.BytesIO(source) as contents:
            try:
                self._workspace.run(put, path)
            except FileNotFoundError:
                # The folder must exist; if the volume is missing, this raises with its name.
                self.make_folder(path.rpartition("/")[0])
                self._workspace.run(put, path)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._workspace.request("DELETE", _address(FILES, path), path, headers={})

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        self._workspace.request("DELETE", _address(DIRECTORIES, path), path, headers={})

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents; a no-op if it exists."""
        self._workspace.request("PUT", _address(DIRECTORIES, path), path, headers={})

    def _write_in_parts(self, path: str, source: Path) -> bool:
        """Upload the file in parts; return whether it is large enough, and the SDK and the workspace support it."""
        uploader: Any = getattr(importlib.import_module("databricks.sdk.mixins.files"), "FilesExt", None)
        if source.stat().st_size < PARTS_FROM_BYTES or not hasattr(uploader, "upload_from"):  # an older SDK
            return False
        self.make_folder(path.rpartition("/")[0])

        def upload(client: Client) -> bool:
            config = client.config.copy()
            config.retry_timeout_seconds = PART_RETRY_SECONDS  # longer: cheaper than to send the whole file again
            files = uploader(client.api, config)
            files.upload_from(path, str(source), overwrite=True, use_parallel=True, parallelism=PARTS_AT_ONCE)
            return True

        try:
            return self._workspace.run(upload, path)
        except (FileNotFoundError, PermissionError):
            return False  # not supported here; if the file itself is refused, the single request raises
        except OSError as error:
            if type(error).__name__ == "NotImplemented" or is_about_the_request(error):
                return False
            raise


def _address(api: str, path: str) -> str:
    return api + quote(path, safe="/")


class DbfsApi:
    """Requests about files of DBFS. Blocking, thread-safe; paths begin with a slash."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def stat(self, path: str) -> dict[str, Any]:
        """Return the entry of a file or folder."""
        return _described(self._get("get-status", path))

    def entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """Return the entries of a folder."""
        return map(_described, self._get("list", folder).get("files", ()))

    def read(self, path: str, begin: int, end: int | None) -> bytes:
        """Return the bytes [begin, end), fewer if the file ends before."""
        if end is None or end - begin > BLOCK_BYTES:
            found = self.stat(path)
            if found["type"] == "directory":
                raise IsADirectoryError(21, "is a folder", path)
            end = found["size"] if end is None else min(end, found["size"])
        spans = [(at, min(at + BLOCK_BYTES, end)) for at in range(begin, end, BLOCK_BYTES)]
        if len(spans) < 2:
            return b"".join(self._block(path, span) for span in spans)
        with ThreadPoolExecutor(min(len(spans), BLOCKS_AT_ONCE)) as pool:
            blocks = list(pool.map(partial(self._block, path), spans))
        if sum(map(len, blocks)) != end - begin:
            raise ConnectionError(f"{path} changed while it was read: expected {end - begin} bytes from {begin} on")
        return b"".join(blocks)

    def write(self, path: str, source: bytes | Path, *, overwrite: bool) -> None:
        """Store bytes or a local file: up to a block in one step, larger ones as a temporary file that is renamed.

        The API cannot replace a file by a rename, so that a large file is missing for a moment while it is replaced.
        """
        with open_regular(source) if isinstance(source, Path) else io.BytesIO(source) as stream:
            first = stream.read(BLOCK_BYTES + 1)
            if len(first) <= BLOCK_BYTES:
                self._post("put", path, path=path, contents=_encoded(first), overwrite=overwrite)
                return
            stream.seek(0)
            self._write_in_blocks(path, stream, overwrite=overwrite)

    def remove(self, path: str) -> None:
        """Delete a file or an empty folder."""
        self._post("delete", path, path=path, recursive=False)

    remove_folder = remove

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents; a no-op if it exists."""
        self._post("mkdirs", path, path=path)

    def move(self, path: str, target: str) -> None:
        """Rename a file or folder; the target must not exist."""
        self._post("move", target, source_path=path, destination_path=target)

    def _write_in_blocks(self, path: str, stream: BinaryIO, *, overwrite: bool) -> None:
        temp, written = _temporary_path(path), 0
        # With overwrite: the name is unique, so that a file there is one of a request whose reply was lost.
        handle = self._post("create", path, path=temp, overwrite=True)["handle"]
        try:
            while block := stream.read(BLOCK_BYTES):
                self._post("add-block", path, handle=handle, data=_encoded(block))
                written += len(block)
            self._post("close", path, handle=handle)
            found = self.stat(temp)["size"]
            if found != written:
                # The reply to a block was lost, and the retry appended it again.
                raise ConnectionError(f"{path}: {written} bytes were sent and {found} arrived")
            if overwrite:
                self._replace(temp, path)
            else:
                self._rename(temp, path)
        except BaseException:
            with suppress(OSError):
                self.remove(temp)
            raise

    def _replace(self, temp: str, path: str) -> None:
        old = _temporary_path(path)
        try:
            self._rename(path, old)
        except FileNotFoundError:
            self._rename(temp, path)
            return
        try:
            self._rename(temp, path)
        except BaseException:
            self._rename(old, path)
            raise
        self.remove(old)

    def _rename(self, path: str, target: str) -> None:
        """Move; a move whose reply was lost, and whose retry is refused, counts as done."""
        try:
            self.move(path, target)
        except (FileNotFoundError, FileExistsError):
            try:
                self.stat(path)
            except FileNotFoundError:
                self.stat(target)
                return
            raise

    def _block(self, path: str, span: tuple[int, int]) -> bytes:
        begin, end = span
        try:
            answer = self._get("read", path, offset=begin, length=end - begin)
        except OSError as error:
            rejection = error
        else:
            return base64.b64decode(answer.get("data") or "")
        return empty_range(rejection, self.stat, path, begin)

    def _get(self, call: str, path: str, **query: Any) -> Any:
        return self._workspace.request(
            "GET", f"{DBFS}/{call}", path, query={"path": path, **query}, headers={"Accept": "application/json"}
        )

    def _post(self, call: str, about: str, **body: Any) -> Any:
        return self._workspace.request(
            "POST", f"{DBFS}/{call}", about, body=body, headers={"Accept": "application/json"}
        )


def _temporary_path(path: str) -> str:
    """Return an unused path in the same folder; listings omit it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{temporary_name(name)}"


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _described(entry: dict[str, Any]) -> dict[str, Any]:
    size, changed = entry.get("file_size", 0), entry.get("modification_time", "")
    return _entry(entry["path"], size, changed, is_folder=bool(entry.get("is_dir")))


def _entry(path: str, size: Any, changed: Any = "", *, is_folder: bool = False) -> dict[str, Any]:
    """Return an entry of fsspec."""
    kind, num_bytes = ("directory", 0) if is_folder else ("file", int(size))
    return {"name": path.rstrip("/") or "/", "size": num_bytes, "type": kind, "last_modified": str(changed)}
