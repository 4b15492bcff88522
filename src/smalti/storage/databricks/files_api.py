"""Unity Catalog volumes by the Files API: files and folders below /Volumes/<catalog>/<schema>/<volume>."""

import importlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from smalti.storage.databricks.workspace import Client, Workspace, empty_range, is_about_the_request

FILES = "/api/2.0/fs/files"
DIRECTORIES = "/api/2.0/fs/directories"
READ_BYTES = 1 << 20
"""Size of the pieces in which the SDK's stream is read; a single read would copy all bytes again for each piece."""
PARTS_FROM_BYTES = 50 << 20
"""Size from which a file is uploaded in parts, to addresses that the workspace signs; the SDK's own threshold."""
PARTS_AT_ONCE = 4
PART_RETRY_SECONDS = 30


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
            return {"name": path, "size": 0, "type": "directory", "last_modified": ""}
        return {
            "name": path,
            "size": int(found["content-length"]),
            "type": "file",
            "last_modified": found.get("last-modified") or "",
        }

    def entries(self, folder: str) -> Iterator[dict[str, Any]]:
        """Yield the entries of a folder, all pages."""
        query: dict[str, Any] = {}
        while True:
            page = self._workspace.request(
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
        """Return the bytes [begin, end), fewer if the file ends before."""
        headers = {"Accept": "application/octet-stream"}
        if begin or end is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end - 1}"

        def get(client: Client) -> bytes:
            answer = client.api.do("GET", _address(FILES, path), headers=headers, raw=True)
            stream = answer["contents"]
            try:
                data = b"".join(iter(lambda: stream.read(READ_BYTES), b""))
                # The SDK does not return the status: 200 to a range means that the whole file was sent.
                status = getattr(getattr(stream, "_response", None), "status_code", 206)
                return data[begin:end] if status == 200 and "Range" in headers else data
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
        if isinstance(source, Path):
            if overwrite and source.stat().st_size >= PARTS_FROM_BYTES and self._write_in_parts(path, source):
                return
            with source.open("rb") as file:
                self._write_whole(path, file, overwrite=overwrite)
        else:
            self._write_whole(path, io.BytesIO(source), overwrite=overwrite)

    def remove(self, path: str) -> None:
        """Delete a file."""
        self._workspace.request("DELETE", _address(FILES, path), path, headers={})

    def remove_folder(self, path: str) -> None:
        """Delete an empty folder."""
        self._workspace.request("DELETE", _address(DIRECTORIES, path), path, headers={})

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents; a no-op if it exists."""
        self._workspace.request("PUT", _address(DIRECTORIES, path), path, headers={})

    def _write_whole(self, path: str, contents: BinaryIO, *, overwrite: bool) -> None:
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
            # The folder must exist; if the volume is missing, this raises with its name.
            self.make_folder(path.rpartition("/")[0])
            self._workspace.run(put, path)

    def _write_in_parts(self, path: str, source: Path) -> bool:
        """Upload the file in parts; return whether the SDK and the workspace support it."""
        uploader: Any = getattr(importlib.import_module("databricks.sdk.mixins.files"), "FilesExt", None)
        if not hasattr(uploader, "upload_from"):
            return False  # an older SDK
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
