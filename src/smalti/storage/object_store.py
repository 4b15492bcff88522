"""Object stores through fsspec: bounded calls, mapped errors, one connection per process."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from smalti.errors import SmaltiError, StoreConflict, StoreError, StoreExists, StoreNotFound
from smalti.storage.deadline import most_seconds
from smalti.storage.errors import RETRYABLE, Kind, classify, is_expired, is_throttled, is_unknown_host, translate
from smalti.storage.listing import mark_of, time_of
from smalti.storage.process import PerProcess
from smalti.storage.reader import ChangedError, Reader, call
from smalti.storage.redact import detect_secrets, raise_clean, redact, secret_values
from smalti.storage.retry import Deadline, RetryOptions
from smalti.storage.schemes import SCHEME_BY_NAME, load_function, make_filesystem
from smalti.storage.store import ObjectInfo, Store, Tagged, UnfinishedUpload, check_key, check_span, folder_of, join_key

UNKNOWN_HOST_ATTEMPTS = 2
"""At a server whose name is not known: name servers err, but seldom twice."""
LIST_SECONDS = 600.0
"""A listing of a million objects is a thousand requests."""


class FsspecStore(Store):
    """A bucket, container or volume, or a folder in one, as a store.

    Options go to the file system class (`s3fs.S3FileSystem`, `gcsfs.GCSFileSystem`, `adlfs.AzureBlobFileSystem`,
    `VolumesFileSystem`, `sshfs.SSHFileSystem`, fsspec's for the web), except `request_timeout` (seconds) and
    `request_attempts`, which bound every operation.
    """

    def __init__(
        self, scheme: str, root: str, options: Mapping[str, Any] | None = None, *, url: str | None = None
    ) -> None:
        self.scheme = SCHEME_BY_NAME[scheme]
        settings = dict(options or {})
        if self.scheme.fill_options:
            settings = load_function(self.scheme.fill_options)(root, settings)
        defaults = RetryOptions()
        self.root = root.rstrip("/")
        self.url = url or (f"dbfs:{self.root}" if scheme == "dbfs" else f"{scheme}://{self.root}")
        self._retry = RetryOptions(
            attempts=int(settings.pop("request_attempts", defaults.attempts)),
            timeout=float(settings.pop("request_timeout", defaults.timeout)),
        )
        self.replaces_conditionally = self.scheme.has_conditional_puts
        self._secrets = secret_values(settings)
        self._connection: PerProcess[Any] = PerProcess(partial(make_filesystem, scheme, settings))
        self._reader: Reader = load_function(self.scheme.reader)(settings, self._connection, self._retry.timeout)

    def get(self, key: str) -> bytes:
        """The whole object."""
        return bytes(self._call("read", key, partial(self._reader.read, self._path(key), 0, None)))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), shorter where the object ends before."""
        check_span(begin, end)
        path = self._path(key)
        if begin == end:
            self.size(key)
            return b""
        read = partial(self._reader.read, path, begin, end)
        data = bytes(self._call("read", key, read, num_bytes=end - begin, past_end=b""))
        return data[: end - begin]

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks."""
        total = 0
        for chunk in self._pieces(key):
            if on_chunk is not None:
                on_chunk(chunk)
            out.write(chunk)
            total += len(chunk)
        return total

    def _pieces(self, key: str) -> Iterator[bytes]:
        """The object's bytes, of one content; a body that breaks off goes on where it ended, if that is still there."""
        path, trial = self._path(key), Trial(self, "read", key, self._retry.deadline())
        at, tag = 0, ""
        while True:
            body = None
            try:
                body = self._reader.open(path, at, tag, timeout=trial.left())
                if tag not in {"", body.tag}:
                    raise ChangedError
                if not tag:
                    whole = most_seconds(self._retry.timeout, max(0, body.num_bytes))
                    tag, trial.limit = body.tag, Deadline(whole)
                for chunk in body.chunks:
                    at += len(chunk)
                    trial.moved()
                    if chunk:
                        yield chunk
            except Exception as error:  # noqa: BLE001 -- sorted there, and raised again unless it passes
                if at and (isinstance(error, ChangedError) or classify(error) is Kind.EXISTS):
                    raise_clean(self._changed(key, at), error, self._known_secrets())
                trial.failed(error)
                if at and not tag:
                    # Nothing says that the rest would be of the same object.
                    raise_clean(self._changed(key, at), error, self._known_secrets())
            else:
                return
            finally:
                if body is not None:
                    body.close()

    def _changed(self, key: str, at: int) -> StoreError:
        return StoreError(f"{self.locate(key)} changed while it was read, at byte {at}", key=key, url=self.url)

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
        self._call("create", key, create, num_bytes=len(payload))

    def get_tagged(self, key: str) -> Tagged:
        """The whole object with its ETag."""
        if not self.replaces_conditionally:
            return super().get_tagged(key)
        tagged: Tagged = self._call("read", key, partial(self._run, "get_tagged", self._path(key)))
        return tagged

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it is still what `get_tagged` saw, or raise `StoreConflict`."""
        path, payload = self._path_to_write(key), bytes(data)
        if not self.replaces_conditionally:
            return super().put_if_match(key, data, etag)
        replace = partial(self._run, "put_if_match", path, payload, etag)
        try:
            return str(self._call("replace", key, replace, num_bytes=len(payload)))
        except (StoreExists, StoreNotFound) as error:
            raise StoreConflict(
                f"{self.locate(key)} is no longer what it was when it was read; nothing was written: read it again",
                key=key,
                url=self.url,
            ) from error

    def size(self, key: str) -> int:
        """The size of the object, bytes."""
        return int(self._call("look up", key, partial(self._reader.size, self._path(key))))

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
                key = full.removeprefix(top)
                infos.append(ObjectInfo(key, int(info["size"]), mark_of(info), time_of(info)))
        return iter(sorted(infos, key=lambda info: info.key))

    def unfinished_uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """Return uploads below the folder that were not completed; none where the store itself removes them."""
        folder = self._path(folder_of(prefix), allow_root=True)
        if not self.scheme.keeps_uploads:
            return iter(())
        find = partial(self._run, "unfinished_uploads", folder)
        top = f"{self.root.strip('/')}/"
        try:
            found = self._call("list the unfinished uploads of", prefix, find, deadline=Deadline(LIST_SECONDS))
        except StoreNotFound:
            return iter(())
        return iter([replace(each, key=each.key.strip("/").removeprefix(top)) for each in found])

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Forget an upload and its parts."""
        abort = partial(self._run, "abort_upload", self._path_to_write(upload.key), upload.upload_id)
        try:
            self._call("abort an upload to", upload.key, abort)
        except StoreNotFound:
            return

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
        if self.scheme.is_read_only:
            raise StoreError(
                f"{self.locate(key)}: {self.scheme.name}:// is read only here; write to a disk or an object store",
                key=key,
                url=self.url,
            )
        return path

    def _run(self, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
        filesystem = self._connection.get()
        if method == "find":
            filesystem.invalidate_cache()
        return call(filesystem, method, *args, timeout=timeout, **kwargs)

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
        trial = Trial(self, action, key, deadline or self._retry.deadline(num_bytes))
        while True:
            try:
                return run(timeout=trial.left())
            except Exception as error:  # noqa: BLE001, PERF203 -- sorted there, and raised again unless it passes
                if past_end is not None and classify(error) is Kind.PAST_END:
                    return past_end
                trial.failed(error)

    def _renew(self, connection: Any) -> None:
        """What a file or a login service says now may be good: the next request reads credentials anew."""
        self._connection.renew(connection)
        self._reader.renew()

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


class Trial:
    """One operation: how often it was tried, and until when it may be."""

    def __init__(self, store: FsspecStore, action: str, key: str, limit: Deadline) -> None:
        self._store, self._action, self._key = store, action, key
        self.limit = limit
        self._faults, self._is_renewed = 0, False
        self._connection = store._connection.peek()

    def left(self) -> float:
        """Seconds for the next request."""
        return max(self.limit.left(), 0.01)

    def moved(self) -> None:
        """Bytes have come: what went wrong before them is over."""
        self._faults = 0
        if self.limit.passed():
            raise TimeoutError("the bytes come too slowly")

    def failed(self, error: Exception) -> None:
        """Waits, if the fault is one that passes; else raises Smalti's error for it."""
        if isinstance(error, SmaltiError):
            raise error
        self._faults += 1
        kind = classify(error)
        if kind is Kind.REFUSED and is_expired(error) and not self._is_renewed:
            self._is_renewed = True  # once
            # The first operation of all made the connection itself.
            self._store._renew(self._connection or self._store._connection.peek())
            self._connection = self._store._connection.peek()
            return
        retry = self._store._retry
        pause = retry.pause_before(self._faults)
        attempts = retry.attempts_for(is_throttled=is_throttled(error))
        if is_unknown_host(error):
            attempts = min(attempts, UNKNOWN_HOST_ATTEMPTS)
        if kind not in RETRYABLE or self._faults >= attempts or self.limit.left() <= pause:
            translated = self._store._translate(error, self._action, self._key, self.limit)
            raise_clean(translated, error, self._store._known_secrets())
        time.sleep(pause)
