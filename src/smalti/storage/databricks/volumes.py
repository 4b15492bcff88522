"""An fsspec file system for Databricks, `dbfs:/...`: Unity Catalog volumes by the Files API, all else by the DBFS API.

Reads are ranged, files are written whole, and listings are not cached. Registered with fsspec as `dbfs`; fsspec and
pandas require three slashes: `dbfs:///Volumes/...`.
"""

import io
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from smalti.redaction import secret_values
from smalti.storage.databricks.api import DbfsApi, FilesApi
from smalti.storage.databricks.workspace import Workspace
from smalti.storage.options import parameters_of
from smalti.storage.retry import READ_SECONDS
from smalti.storage.schemes import detect, load_extra
from smalti.storage.store import UnfinishedUpload, is_temporary, temporary_path, unfinished_uploads_in

STORE_RETRY_SECONDS = 2
"""Time limit of the SDK's retries of one request of a store, which has its own retries and deadline."""
REQUESTS_AT_ONCE = 8
COPY_BYTES = 8 << 20
"""Size of the pieces in which a file is copied."""


def option_names() -> set[str]:
    """Return the names of all options of the SDK."""
    config = load_extra("databricks.sdk.core").Config
    return parameters_of(config) | {each.name for each in config.attributes()} | {"instance"}


def fill_options(scheme: str, root: str, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 -- of all schemes
    """Return the options with a time limit on single requests, which a store cannot cancel: the client blocks."""
    limit = min(READ_SECONDS, float(options.get("request_timeout", READ_SECONDS)))
    return {"http_timeout_seconds": limit} | dict(options)


def server_of(root: str, options: Mapping[str, Any]) -> str:  # noqa: ARG001 -- the registry's signature
    """Return the address of the workspace; "" if neither an option nor a variable names it."""
    host = str(options.get("host") or detect("DATABRICKS_HOST") or "")
    return host if "://" in host or not host else f"https://{host}"


def make(options: dict[str, Any]) -> Any:
    """Make a file system for the workspace in the options or the environment."""
    load_extra("databricks.sdk")
    return VolumesFileSystem(**({"retry_timeout_seconds": STORE_RETRY_SECONDS} | options))


class VolumesFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a Databricks workspace. Blocking, thread-safe, fork-safe, picklable.

    Args:
        host: Workspace URL; default: DATABRICKS_HOST or the profile.
        token: Personal access token; default: DATABRICKS_TOKEN or what the SDK finds: OAuth, a profile, a notebook.
            A pickle contains this argument, but no credentials that the SDK found.
        instance: Alias of `host`, its name in fsspec's own class.
        settings: More arguments of `databricks.sdk.core.Config`: `profile`, `client_id`, `http_timeout_seconds`.
    """

    protocol = "dbfs"
    root_marker = "/"
    cachable = False  # fsspec would reuse an instance with the host and login of an earlier environment

    def __init__(
        self, host: str | None = None, token: str | None = None, instance: str | None = None, **settings: Any
    ) -> None:
        super().__init__(use_listings_cache=False)
        for name in ("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous"):
            settings.pop(name, None)
        settings |= {"host": host or instance, "token": token}
        workspace = Workspace({name: value for name, value in settings.items() if value is not None})
        self._volumes = FilesApi(workspace)
        self._root = DbfsApi(workspace)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + stringify_path(path).removeprefix("dbfs:").strip("/")

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Return the arguments for `to_json`, without secrets: readers of the JSON use their own login."""
        found: dict[str, Any] = super().to_dict(include_password=include_password)
        hidden = secret_values(self.storage_options)
        return {name: value for name, value in found.items() if value not in hidden}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name, size, type and modification time of a file or folder."""
        name = self._strip_protocol(path)
        return self._api(name).stat(name)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:  # noqa: FBT001, FBT002 -- fsspec's signature
        """List a folder, all pages; of a file, return its own entry."""
        name = self._strip_protocol(path)
        try:
            entries = [entry for entry in self._api(name).entries(name) if not is_temporary(entry["name"])]
        except OSError as error:
            if isinstance(error, PermissionError) or self.info(name)["type"] != "file":
                raise
            entries = [self.info(name)]
        return entries if detail else [entry["name"] for entry in entries]

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:  # noqa: FBT001, FBT002
        """List all files below a folder; unlike fsspec's own, raises if a listing is refused or fails."""
        name = self._strip_protocol(path)
        entries = [entry for entry in self._below(name, maxdepth) if not is_temporary(entry["name"])]
        found = {entry["name"]: entry for entry in entries if withdirs or entry["type"] == "file"}
        if not found or withdirs:
            with suppress(FileNotFoundError):
                own = self.info(name)
                found |= {name: own} if withdirs or own["type"] == "file" else {}
        names = sorted(found)
        return {name: found[name] for name in names} if options.get("detail") else names

    def unfinished_uploads(self, path: str) -> list[UnfinishedUpload]:
        """Return the temporary files below a folder, with whole paths for keys."""
        return unfinished_uploads_in(self._below(self._strip_protocol(path), None))

    def abort_upload(self, path: str, upload_id: str) -> None:
        """Remove a temporary file in the folder of `path`."""
        self.rm_file(temporary_path(self._strip_protocol(path), upload_id))

    def modified(self, path: str) -> datetime:
        """Return when a file was last changed."""
        mark = self.info(path)["last_modified"]
        if not mark:
            raise FileNotFoundError(2, "has no time of change", path)
        if mark.isdigit():
            return datetime.fromtimestamp(int(mark) / 1000, timezone.utc)
        return parsedate_to_datetime(mark)

    def created(self, path: str) -> datetime:
        """Raise: Databricks has no such time."""
        raise NotImplementedError(f"{path}: Databricks tells when a file was changed, not when it was made")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes [start, end) of a file; negative numbers count from its end."""
        name = self._strip_protocol(path)
        if (start or 0) < 0 or (end or 0) < 0:
            size = self.info(name)["size"]
            start, end = (None if at is None else max(0, size + at) if at < 0 else at for at in (start, end))
        if end is not None and end <= (start or 0):
            self.info(name)
            return b""
        return self._api(name).read(name, start or 0, end)

    def cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        """Ranges of files, several at once."""
        if max_gap is not None:
            raise NotImplementedError("ranges are not merged here: leave `max_gap` out")
        starts = starts if isinstance(starts, list) else [starts] * len(paths)
        ends = ends if isinstance(ends, list) else [ends] * len(paths)

        def read(span: tuple[str, int | None, int | None]) -> Any:
            try:
                return self.cat_file(*span)
            except Exception as error:
                if on_error == "return":
                    return error
                raise

        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            return list(pool.map(read, zip(paths, starts, ends, strict=True)))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Write a whole file; with mode="create" the server refuses to replace one."""
        name = self._strip_protocol(path)
        self._api(name).write(name, bytes(value), overwrite=mode != "create")

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        """Upload a local file, streamed from disk; for a folder, make the folder."""
        source, name = Path(lpath), self._strip_protocol(rpath)
        if source.is_dir():
            self.makedirs(name, exist_ok=True)
            return
        self._api(name).write(name, source, overwrite=mode != "create")
        if callback is not None:
            callback.set_size(source.stat().st_size)
            callback.relative_update(source.stat().st_size)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy through this machine: the APIs cannot copy."""
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb", block_size=COPY_BYTES) as source, self.open(path2, "wb") as target:
            shutil.copyfileobj(source, target, COPY_BYTES)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:  # noqa: FBT001, FBT002
        """Rename within DBFS; elsewhere copy and delete."""
        if isinstance(path1, str) and isinstance(path2, str) and not any(sign in path1 for sign in "*?["):
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if self._api(source) is self._api(target) is self._root and not self.exists(target):
                self._root.move(source, target)
                return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        name = self._strip_protocol(path)
        self._api(name).remove(name)

    def rmdir(self, path: str) -> None:
        """Delete an empty folder."""
        name = self._strip_protocol(path)
        self._api(name).remove_folder(name)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: FBT001, FBT002
        """Delete files, and with `recursive` folders with their content."""
        for top in self.expand_path(path):
            name = self._strip_protocol(top)
            if self.info(name)["type"] == "file":
                self.rm_file(name)
            elif recursive:
                self._remove_below(name, maxdepth)
            else:
                raise IsADirectoryError(21, "is a folder: say recursive=True", name)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:  # noqa: ARG002, FBT001, FBT002
        """Make a folder and its parents; a no-op if it exists."""
        name = self._strip_protocol(path)
        self._api(name).make_folder(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        """Make a folder and its parents."""
        if not exist_ok and self.exists(path):
            raise FileExistsError(17, "is there already", path)
        self.mkdir(path)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> Any:
        if mode == "rb":
            found = self.info(path)
            if found["type"] == "directory":
                raise IsADirectoryError(21, "is a folder", path)
            options.pop("autocommit", None)
            return AbstractBufferedFile(self, path, "rb", block_size or "default", size=found["size"], **options)
        if mode not in {"wb", "xb"}:
            raise NotImplementedError(
                f"{path}: mode {mode!r} is not supported: files are written whole, by 'wb' or 'xb'"
            )
        if mode == "xb" and self.exists(path):
            raise FileExistsError(17, "is there already", path)  # `close` finds a file that is written from now on

        def send(contents: Path) -> None:
            self._api(path).write(path, contents, overwrite=mode == "wb")

        return Upload(send, path, autocommit=options.get("autocommit", True))

    def _api(self, name: str) -> FilesApi | DbfsApi:
        return self._volumes if f"{name}/".startswith("/Volumes/") else self._root

    def _below(self, top: str, maxdepth: int | None) -> Iterator[dict[str, Any]]:
        pending = [(top, 1)]
        while pending:
            folder, depth = pending.pop()
            try:
                entries = list(self._api(folder).entries(folder))
            except FileNotFoundError:
                continue  # no such top folder, or a folder below that was removed since it was listed
            for entry in entries:
                if entry["name"] == top:
                    continue  # of a file, DBFS lists the file itself
                if entry["type"] == "directory" and (maxdepth is None or depth < maxdepth):
                    pending.append((entry["name"], depth + 1))
                yield entry

    def _remove_below(self, top: str, maxdepth: int | None) -> None:
        found = list(self._below(top, maxdepth))
        files = [entry["name"] for entry in found if entry["type"] == "file"]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(self.rm_file, files))
        if maxdepth is None:
            folders = [entry["name"] for entry in found if entry["type"] == "directory"]
            for folder in [*sorted(folders, reverse=True), top]:
                self.rmdir(folder)


class Upload(io.BufferedWriter):
    """A temporary file that is sent whole by `close` or `commit`, because the APIs only accept whole files.

    Nothing is sent if the `with` block raises, or if the object is garbage collected without `close`.

    Args:
        send: Called once, with the path of the temporary file.
        path: Name of the file, for messages.
        autocommit: Whether `close` sends; otherwise `commit` does, for fsspec's transactions.
    """

    def __init__(self, send: Callable[[Path], None], path: str, *, autocommit: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="smalti-upload-")
        super().__init__(io.FileIO(f"{self._folder.name}/file", "xb"))
        self.path, self._send, self._autocommit = path, send, autocommit

    def close(self) -> None:
        """Send the file and close it. Idempotent."""
        if not self.closed:
            super().close()
            if self._autocommit:
                self.commit()

    def commit(self) -> None:
        """Send the file."""
        with self._folder as folder:
            self._send(Path(folder, "file"))

    def discard(self) -> None:
        """Close without sending."""
        self._autocommit = False
        self.close()
        self._folder.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the file, or discard it if the block raised."""
        if kind is None or not self._autocommit:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        """Discard a file that was not closed, with a warning."""
        if not self.closed:
            self.discard()
            warnings.warn(f"{self.path} was not closed and is not written", ResourceWarning, source=self, stacklevel=2)
