"""Object stores and servers through fsspec: retries, deadlines, mapped errors, one connection per process."""

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
"""Attempts at a server whose name cannot be resolved: name servers rarely fail twice."""
LIST_SECONDS = 600.0
"""Time limit of a listing: a million objects take a thousand requests."""


class FsspecStore(Store):
    """A bucket, container or volume, or a folder in one, as a store.

    Args:
        scheme: Name of a `Scheme`, such as "s3".
        root: The folder, as the file system of the scheme names it.
        options: Arguments of the file system class (`s3fs.S3FileSystem`, `gcsfs.GCSFileSystem`,
            `adlfs.AzureBlobFileSystem`, `VolumesFileSystem`, `sshfs.SSHFileSystem`, fsspec's for the web), and the
            limits of every operation, `request_timeout` (seconds) and `request_attempts`.
        url: Address for messages; default: scheme and root.
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
        """Return the whole object."""
        return bytes(self._call("read", key, partial(self._reader.read, self._path(key), 0, None)))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
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
        for chunk in self._chunks(key):
            if on_chunk is not None:
                on_chunk(chunk)
            out.write(chunk)
            total += len(chunk)
        return total

    def _chunks(self, key: str) -> Iterator[bytes]:
        """Yield the object's bytes, all of one content; resume after a broken connection if the content is the same."""
        path, attempts = self._path(key), Attempts(self, "read", key, self._retry.deadline())
        at, tag = 0, ""
        while True:
            body = None
            try:
                body = self._reader.open(path, at, tag, timeout=attempts.left())
                if tag not in {"", body.tag}:
                    raise ChangedError
                if not tag:
                    whole = most_seconds(self._retry.timeout, max(0, body.num_bytes))
                    tag, attempts.deadline = body.tag, Deadline(whole)
                for chunk in body.chunks:
                    at += len(chunk)
                    attempts.progress()
                    if chunk:
                        yield chunk
            except Exception as error:  # noqa: BLE001 -- classified there, and raised unless it is retried
                if at and (isinstance(error, ChangedError) or classify(error) is Kind.EXISTS):
                    raise_clean(self._changed(key, at), error, self._known_secrets())
                attempts.failed(error)
                if at and not tag:
                    # Without a tag the rest might be of another content.
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
        # Not open("xb"): if refused it leaves a multipart upload, and if it fails, a partial object.
        create = partial(self._run, "pipe_file", path, payload, mode="create")
        self._call("create", key, create, num_bytes=len(payload))

    def get_tagged(self, key: str) -> Tagged:
        """Return the whole object with its ETag."""
        if not self.replaces_conditionally:
            return super().get_tagged(key)
        tagged: Tagged = self._call("read", key, partial(self._run, "get_tagged", self._path(key)))
        return tagged

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it still has this ETag, or raise `StoreConflict`."""
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
        """Return the size of the object, bytes."""
        return int(self._call("look up", key, partial(self._reader.size, self._path(key))))

    def delete(self, key: str) -> None:
        """Remove the object; a no-op if it does not exist."""
        path = self._path_to_write(key)
        try:
            self._call("delete", key, partial(self._run, "rm_file", path))
        except StoreNotFound:
            return

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all objects below the folder, sorted by key."""
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
        """List the uploads below the folder that were not completed; none if the store removes them itself."""
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
        """Remove an upload with its parts, or a temporary file; a no-op if it no longer exists."""
        abort = partial(self._run, "abort_upload", self._path_to_write(upload.key), upload.upload_id)
        try:
            self._call("abort an upload to", upload.key, abort)
        except StoreNotFound:
            return

    def child(self, prefix: str) -> "FsspecStore":
        """Return the store of a folder of this one, on the same connection."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)  # shares the connection: clients are slow to create
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
        """Return the result of `run`, with retries of transient faults within one deadline.

        Args:
            action: Verb for error messages, such as "read".
            key: The object.
            run: The request; called with its time limit as `timeout`.
            num_bytes: Bytes to transfer, which extend the deadline.
            past_end: Result if the requested range begins after the object's end; None raises.
            deadline: Deadline of all attempts; default: by the store's options and `num_bytes`.
        """
        attempts = Attempts(self, action, key, deadline or self._retry.deadline(num_bytes))
        while True:
            try:
                return run(timeout=attempts.left())
            except Exception as error:  # noqa: BLE001, PERF203 -- classified there, and raised unless it is retried
                if past_end is not None and classify(error) is Kind.PAST_END:
                    return past_end
                attempts.failed(error)

    def _renew(self, connection: Any) -> None:
        """Discard the clients, so that the next request reads the credentials again."""
        self._connection.renew(connection)
        self._reader.renew()

    def _known_secrets(self) -> tuple[str, ...]:
        return (*self._secrets, *detect_secrets())

    def _translate(self, error: BaseException, action: str, key: str, deadline: Deadline) -> StoreError:
        text = redact(str(error) or type(error).__name__, self._known_secrets())
        detail = " ".join(text.split())[:400]
        if deadline.passed():
            detail = f"gave up after {deadline.seconds:.0f} s: {detail}"
        return translate(
            error,
            what=f"cannot {action} {self.locate(key)}",
            scheme=self.scheme,
            detail=detail,
            facts={"key": key, "url": self.url},
        )


class Attempts:
    """The attempts at one operation: counts faults, waits between attempts, and renews credentials once."""

    def __init__(self, store: FsspecStore, action: str, key: str, deadline: Deadline) -> None:
        self._store, self._action, self._key = store, action, key
        self.deadline = deadline
        self._faults, self._is_renewed = 0, False
        self._connection = store._connection.peek()

    def left(self) -> float:
        """Return the time limit of the next request, seconds."""
        return max(self.deadline.left(), 0.01)

    def progress(self) -> None:
        """Reset the number of faults, because bytes have arrived.

        Raises:
            TimeoutError: the deadline has passed all the same.
        """
        self._faults = 0
        if self.deadline.passed():
            raise TimeoutError("the bytes come too slowly")

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt if the fault may be transient; otherwise raise Smalti's error for it."""
        if isinstance(error, SmaltiError):
            raise error
        self._faults += 1
        kind = classify(error)
        if kind is Kind.REFUSED and is_expired(error) and not self._is_renewed:
            self._is_renewed = True
            # The very first operation creates the connection itself.
            self._store._renew(self._connection or self._store._connection.peek())
            self._connection = self._store._connection.peek()
            return
        retry = self._store._retry
        pause = retry.pause_before(self._faults)
        attempts = retry.attempts_for(is_throttled=is_throttled(error))
        if is_unknown_host(error):
            attempts = min(attempts, UNKNOWN_HOST_ATTEMPTS)
        if kind not in RETRYABLE or self._faults >= attempts or self.deadline.left() <= pause:
            # Not in a variable: the error's traceback holds this frame, and would be in a cycle with it.
            raise_clean(
                self._store._translate(error, self._action, self._key, self.deadline),
                error,
                self._store._known_secrets(),
            )
        time.sleep(pause)
