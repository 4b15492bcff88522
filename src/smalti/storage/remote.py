"""Object stores through fsspec: bounded calls, mapped errors, one connection per process."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.storage.faults import RETRYABLE, Kind, classify, is_expired, is_throttled, translate
from smalti.storage.filesystems import READ_ONLY, fill_options, make_filesystem
from smalti.storage.interface import ObjectInfo, Store, check_span
from smalti.storage.keys import check_key, folder_of, join_key
from smalti.storage.process import PerProcess
from smalti.storage.redact import detect_secrets, redact, safe_cause, secret_values
from smalti.storage.retry import Deadline, RetryOptions

CHUNK_BYTES = 8 << 20
"""One ranged request of a `fetch`: large enough to hide a round trip, small enough to notice a stall."""
LIST_SECONDS = 600.0
"""A listing of a million objects is a thousand requests."""

_memory_create = threading.Lock()


class FsspecStore(Store):
    """A bucket, container or volume, or a folder in one, as a store.

    Options go to the file system class (`s3fs.S3FileSystem`, `gcsfs.GCSFileSystem`, `adlfs.AzureBlobFileSystem`,
    `VolumesFileSystem`, `sshfs.SSHFileSystem`, fsspec's for the web), except `request_timeout` (seconds) and
    `request_attempts`, which bound every operation.
    """

    def __init__(
        self, scheme: str, root: str, options: Mapping[str, Any] | None = None, *, url: str | None = None
    ) -> None:
        settings = fill_options(scheme, root, options or {})
        defaults = RetryOptions()
        self.scheme = scheme
        self.root = root.rstrip("/")
        self.url = url or (f"dbfs:{self.root}" if scheme == "dbfs" else f"{scheme}://{self.root}")
        self._retry = RetryOptions(
            attempts=int(settings.pop("request_attempts", defaults.attempts)),
            timeout=float(settings.pop("request_timeout", defaults.timeout)),
        )
        self._secrets = secret_values(settings)
        self._connection: PerProcess[Any] = PerProcess(partial(make_filesystem, scheme, settings))

    def get(self, key: str) -> bytes:
        """The whole object."""
        path = self._path(key)
        data = self._call("read", key, partial(self._run, "cat_file", path))
        return bytes(data)

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), shorter where the object ends before."""
        check_span(begin, end)
        path = self._path(key)
        if begin == end:
            self.size(key)
            return b""
        # Keywords always: the second positional is a version in s3fs and the start elsewhere.
        read = partial(self._run, "cat_file", path, start=begin, end=end)
        data = bytes(self._call("read", key, read, num_bytes=end - begin, past_end=b""))
        return data[: end - begin]

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks."""
        total, size = 0, -1
        while True:
            chunk = self.get_range(key, total, total + CHUNK_BYTES)
            if on_chunk is not None and chunk:
                on_chunk(chunk)
            out.write(chunk)
            total += len(chunk)
            if len(chunk) < CHUNK_BYTES and size < 0:
                return total
            if size < 0:
                size = self.size(key)
            if total >= size:
                return total
            if not chunk:
                raise StoreError(
                    f"{self.locate(key)} ended at byte {total} of {size}: it changed while it was read", key=key
                )

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Replace the object in one step."""
        path, payload = self._path_to_write(key), bytes(data)
        write = partial(self._run, "pipe_file", path, payload, mode="overwrite")
        self._call("write", key, write, num_bytes=len(payload))

    def put_file(self, key: str, path: Path) -> None:
        """Replace the object by the content of a local file."""
        target = self._path_to_write(key)
        try:
            num_bytes = path.stat().st_size
        except OSError as error:
            raise StoreNotFound(f"cannot read the local file {path}: {error.strerror}", key=key) from error
        self._call("write", key, partial(self._run, "put_file", str(path), target), num_bytes=num_bytes)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise `StoreExists`."""
        path, payload = self._path_to_write(key), bytes(data)
        # pipe_file, not open("xb"): a refused open leaves a dangling multipart upload, a failed one a partial object.
        create = partial(self._run, "pipe_file", path, payload, mode="create")
        if self.scheme == "memory":
            with _memory_create:
                self._call("create", key, create)
        else:
            self._call("create", key, create, num_bytes=len(payload))

    def size(self, key: str) -> int:
        """The size of the object, bytes."""
        info = self._call("look up", key, partial(self._run, "info", self._path(key)))
        if info.get("type") == "directory":
            raise StoreNotFound(f"{self.locate(key)} is a folder, not an object", key=key, url=self.url)
        return int(info["size"])

    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        path = self._path_to_write(key)
        try:
            self._call("delete", key, partial(self._run, "rm_file", path))
        except StoreNotFound:
            return

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder, sorted by key."""
        folder = self._path(folder_of(prefix), allow_root=True)
        find = partial(self._run, "find", folder, detail=True)
        try:
            found = self._call("list", prefix, find, deadline=Deadline(LIST_SECONDS))
        except StoreNotFound:
            return iter(())
        top, below = (f"{name.strip('/')}/" if name.strip("/") else "" for name in (self.root, folder))
        infos = []
        for name, info in found.items():
            full = str(name).strip("/")
            if full.startswith(below) and info.get("type") != "directory" and not str(name).endswith("/"):
                infos.append(ObjectInfo(full.removeprefix(top), int(info["size"]), _modified(info)))
        return iter(sorted(infos, key=lambda info: info.key))

    def child(self, prefix: str) -> "FsspecStore":
        """The store of a folder of this one, on the same connection."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # the connection is shared: a client costs much to make
        other.root = join_key(self.root, folder_of(prefix))
        other.url = self.locate(folder_of(prefix))
        return other

    def _path(self, key: str, *, allow_root: bool = False) -> str:
        return join_key(self.root, check_key(key, allow_root=allow_root))

    def _path_to_write(self, key: str) -> str:
        path = self._path(key)
        if self.scheme in READ_ONLY:
            raise StoreError(
                f"{self.locate(key)}: {self.scheme}:// is read only here; write to a disk or an object store",
                key=key,
                url=self.url,
            )
        return path

    def _run(self, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
        """One call of the file system; an asynchronous one is cancelled when the time is over."""
        filesystem = self._connection.get()
        if method == "find":
            filesystem.invalidate_cache()
        if getattr(filesystem, "async_impl", False):
            from fsspec.asyn import sync

            return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *args, timeout=timeout, **kwargs)
        return getattr(filesystem, method)(*args, **kwargs)

    def _call(
        self,
        action: str,
        key: str,
        run: Callable[..., Any],
        *,
        num_bytes: int = 0,
        past_end: Any = None,
        deadline: Deadline | None = None,
    ) -> Any:
        """The result of `run`, tried again while the fault is one that passes, within one deadline."""
        limit = deadline or self._retry.deadline(num_bytes)
        attempt, is_renewed = 0, False
        while True:
            attempt += 1
            connection = self._connection.peek()
            try:
                return run(timeout=max(limit.left(), 0.01))
            except Exception as error:
                if isinstance(error, SmaltiError):
                    raise
                kind = classify(error)
                if kind is Kind.PAST_END and past_end is not None:
                    return past_end
                if kind is Kind.REFUSED and is_expired(error) and not is_renewed:
                    is_renewed = True  # once: what a file or a login service says now may be good
                    self._connection.renew(connection)
                    continue
                pause = self._retry.pause_before(attempt)
                attempts = self._retry.attempts_for(is_throttled=is_throttled(error))
                if kind not in RETRYABLE or attempt >= attempts or limit.left() <= pause:
                    raise self._translate(error, action, key, limit) from safe_cause(error, self._known_secrets())
                time.sleep(pause)

    def _known_secrets(self) -> tuple[str, ...]:
        return (*self._secrets, *detect_secrets())

    def _translate(self, error: BaseException, action: str, key: str, limit: Deadline) -> StoreError:
        text = redact(str(error) or type(error).__name__, self._known_secrets())
        detail = " ".join(text.split())[:400]
        if limit.passed():
            detail = f"gave up after {limit.seconds:.0f} s: {detail}"
        return translate(
            error,
            what=f"cannot {action} {self.locate(key)}",
            scheme=self.scheme,
            detail=detail,
            facts={"key": key, "url": self.url},
        )


def _modified(info: Mapping[str, Any]) -> str:
    """The most telling mark of content that a listing holds."""
    for name in (
        "ETag",
        "etag",
        "generation",
        "md5Hash",
        "content_md5",
        "LastModified",
        "last_modified",
        "mtime",
        "created",
    ):
        if info.get(name):
            return str(info[name]).strip('"')
    return ""
