"""Unity Catalog volumes by the Files API: files and folders below /Volumes/<catalog>/<schema>/<volume>."""

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from smalti.storage.databricks.workspace import Client, Workspace, is_about_the_request

FILES = "/api/2.0/fs/files"
DIRECTORIES = "/api/2.0/fs/directories"
READ_BYTES = 1 << 20
"""The SDK's stream is read in pieces: all at once, it copies what it has again for every piece."""
PARTS_FROM_BYTES = 50 << 20
"""From here a file goes in parts, each to an address that the workspace signs; the SDK's own threshold."""
PARTS_AT_ONCE = 4
PART_RETRY_SECONDS = 30


class FilesApi:
    """Blocking and thread-safe; paths begin with /Volumes/."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def stat(self, path: str) -> dict[str, Any]:
        """A file or a folder."""
        wanted = ["content-length", "last-modified"]
        try:
            found = self._workspace.ask("HEAD", _address(FILES, path), path, headers={}, response_headers=wanted)
        except FileNotFoundError:
            self._workspace.ask("HEAD", _address(DIRECTORIES, path), path, headers={})
            return {"name": path, "size": 0, "type": "directory", "last_modified": ""}
        return {
            "name": path,
            "size": int(found["content-length"]),
            "type": "file",
            "last_modified": found.get("last-modified") or "",
        }

    def entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """What is in a folder, all pages."""
        query: dict[str, Any] = {}
        while True:
            page = self._workspace.ask(
                "GET", _address(DIRECTORIES, folder), folder, query=query, headers={"Accept": "application/json"}
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

    def read(self, path: str, begin: int, end: int | None) -> bytes:
        """The bytes [begin, end), fewer where the file ends before."""
        headers = {"Accept": "application/octet-stream"}
        if begin or end is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"

        def get(client: Client) -> bytes:
            answer = client.api.do("GET", _address(FILES, path), headers=headers, raw=True)
            stream = answer["contents"]
            try:
                data = b"".join(iter(lambda: stream.read(READ_BYTES), b""))
                # The SDK hides the status: 200 to a range means that all was sent.
                status = getattr(getattr(stream, "_response", None), "status_code", 206)
                return data[begin:end] if status == 200 and "Range" in headers else data
            finally:
                stream.close()

        refusal: Exception
        try:
            return self._workspace.run(get, path)
        except OSError as error:
            if not is_about_the_request(error):
                raise
            refusal = error
        found = self.stat(path)
        if found["type"] == "directory":
            raise IsADirectoryError(21, "is a folder", path)
        if "Range" in headers and found["size"] <= begin:
            return b""
        raise refusal

    def write(self, path: str, source: bytes | Path, *, overwrite: bool) -> None:
        """Store bytes, or a local file, in one step; the folder is made when it is missing.

        A large file goes in parts where the workspace offers that. An exclusive one does not: its condition is
        known to hold for a single request.
        """
        if isinstance(source, Path):
            if overwrite and source.stat().st_size >= PARTS_FROM_BYTES and self._write_in_parts(path, source):
                return
            with source.open("rb") as file:
                self._write_at_once(path, file, overwrite=overwrite)
        else:
            self._write_at_once(path, io.BytesIO(source), overwrite=overwrite)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._workspace.ask("DELETE", _address(FILES, path), path, headers={})

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        self._workspace.ask("DELETE", _address(DIRECTORIES, path), path, headers={})

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; nothing happens when it is there."""
        self._workspace.ask("PUT", _address(DIRECTORIES, path), path, headers={})

    def _write_at_once(self, path: str, contents: BinaryIO, *, overwrite: bool) -> None:
        def put(client: Client) -> None:
            contents.seek(0)
            client.api.do(
                "PUT",
                _address(FILES, path),
                query={"overwrite": str(overwrite).lower()},
                headers={"Content-Type": "application/octet-stream"},
                data=contents,
            )

        try:
            self._workspace.run(put, path)
        except FileNotFoundError:
            # A volume wants the folder made first; a missing volume fails here, with the right name.
            self.make_folder(path.rpartition("/")[0])
            self._workspace.run(put, path)

    def _write_in_parts(self, path: str, source: Path) -> bool:
        """Whether the SDK could store the file in parts."""
        uploader: Any = getattr(importlib.import_module("databricks.sdk.mixins.files"), "FilesExt", None)
        if not hasattr(uploader, "upload_from"):
            return False  # an older SDK
        self.make_folder(path.rpartition("/")[0])

        def upload(client: Client) -> bool:
            config = client.config.copy()
            config.retry_timeout_seconds = PART_RETRY_SECONDS  # a part is cheaper to send again than the whole
            files = uploader(client.api, config)
            files.upload_from(path, str(source), overwrite=True, use_parallel=True, parallelism=PARTS_AT_ONCE)
            return True

        try:
            return self._workspace.run(upload, path)
        except (FileNotFoundError, PermissionError):
            return False  # not offered here; if it is the file that is refused, the single request says so
        except OSError as error:
            if type(error).__name__ == "NotImplemented" or is_about_the_request(error):
                return False
            raise


def _address(api: str, path: str) -> str:
    return api + quote(path, safe="/")
