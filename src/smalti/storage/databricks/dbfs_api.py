"""Requests of the DBFS API, Databricks' older file system: everything below dbfs:/ outside of volumes."""

import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from smalti.storage.databricks.workspace import Workspace, empty_range
from smalti.storage.listing import temporary_name

DBFS = "/api/2.0/dbfs"
BLOCK_BYTES = 1 << 20
"""Largest read or write of one request; a limit of the API."""
BLOCKS_AT_ONCE = 4


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
        with source.open("rb") if isinstance(source, Path) else io.BytesIO(source) as stream:
            first = stream.read(BLOCK_BYTES + 1)
            if len(first) <= BLOCK_BYTES:
                self._post("put", path, path=path, contents=_encoded(first), overwrite=overwrite)
                return
            stream.seek(0)
            self._write_in_blocks(path, stream, overwrite=overwrite)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._post("delete", path, path=path, recursive=False)

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        self._post("delete", path, path=path, recursive=False)

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
    is_folder = bool(entry.get("is_dir"))
    return {
        "name": entry["path"].rstrip("/") or "/",
        "size": 0 if is_folder else int(entry.get("file_size", 0)),
        "type": "directory" if is_folder else "file",
        "last_modified": str(entry.get("modification_time", "")),
    }
