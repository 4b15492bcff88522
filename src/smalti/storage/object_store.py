"""Object stores and servers through fsspec: retries, deadlines, mapped errors, one connection per process.

`FsspecReader` reads by ranged requests from every fsspec file system; S3 has a faster `Reader`, which streams an
object in one request (`smalti.storage.backends.s3`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

from smalti.errors import SmaltiError, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.process import PerProcess
from smalti.redaction import HiddenOptions, redact, secret_values
from smalti.storage.errors import (
    RETRYABLE,
    FaultKind,
    classify,
    is_expired,
    is_throttled,
    is_unknown_host,
    no_bucket,
    translate,
)
from smalti.storage.options import check_options, check_urls, take_limits
from smalti.storage.redact import detect_secrets, raise_clean
from smalti.storage.retry import Deadline, call_within, jitter, most_seconds
from smalti.storage.schemes import SCHEME_BY_NAME, make_filesystem, named_login
from smalti.storage.store import (
    ListingPage,
    ObjectInfo,
    OldVersion,
    Store,
    Tagged,
    UnfinishedUpload,
    check_key,
    check_span,
    folder_of,
    join_key,
    mark_of,
    time_of,
)

RANGE_BYTES = 8 << 20
"""Largest ranged request: large enough for the round trip not to matter."""
FIRST_RANGE_BYTES, MIN_RANGE_BYTES = 1 << 20, 256 << 10
"""The first and the smallest ranged request. Progress is only visible when a request ends: on a slow link large
requests would look like a stalled transfer."""
FAST_SECONDS, SLOW_SECONDS = 1.0, 4.0
"""The range is doubled after a request faster than the former, and halved after one slower than the latter."""
UNKNOWN_HOST_ATTEMPTS = 2
"""Attempts at a server whose name cannot be resolved: name servers rarely fail twice."""
THROTTLED_FACTOR = 3
"""Factor on the further attempts when the store throttles (429, 503)."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0
"""Pause before the second attempt, which doubles each time; up to half as much again is added at random."""
FAST_BYTES_PER_SECOND = 1e6
"""Lowest speed of a transfer that is not stalled: its size at this speed is added to the time limit."""
LIST_SECONDS = 600.0
"""Time limit of a listing: a million objects take a thousand requests."""


@dataclass(frozen=True)
class Body:
    """The open body of an object, from some byte to its end."""

    tag: str
    """The store's mark of this content (an ETag); "" if it has none."""
    num_bytes: int
    """Size of the whole object, bytes; -1 if unknown."""
    chunks: Iterator[bytes]
    """The bytes, in order; raises the client's exceptions."""
    close: Callable[[], None] = lambda: None
    """Releases the connection; it is reused if all bytes were read."""


class ChangedError(Exception):
    """The object was replaced while it was read."""


class Reader(Protocol):
    """Reads the objects of a store. Thread-safe; every method raises its client's exceptions.

    `timeout` is the time limit of the call, seconds.
    """

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """Open the object from byte `begin` on; with a tag only if the content still has it."""

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Return the bytes [begin, end), or all from `begin` on."""

    def size(self, path: str, *, timeout: float) -> int:
        """Return the object's size, bytes."""

    def renew(self) -> None:
        """Discard the client that was used last, so that the next one reads the credentials again."""


class FsspecReader:
    """A reader by ranged requests of an fsspec file system: fsspec has no conditional streams.

    Args:
        connection: The file system, shared with the store, which writes through it.
        clock: Returns monotonic seconds.
    """

    def __init__(self, connection: PerProcess[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._connection, self._clock = connection, clock
        self._range_bytes = FIRST_RANGE_BYTES

    def open(self, path: str, begin: int, tag: str, *, timeout: float) -> Body:
        """Open the object; its tag is read after the first range, unless that was the whole object."""
        try:
            range_bytes = self._range_bytes
            first = self._range(path, begin, begin + range_bytes, timeout)
        except Exception as error:
            if classify(error) is not FaultKind.PAST_END:
                raise
            first = b""  # an empty object has no first byte
        if len(first) < range_bytes and not tag:
            return Body("", begin + len(first), iter((first,)))
        size, current_tag = self._look_up(path, timeout)
        if tag not in {"", current_tag}:
            raise ChangedError(f"ended as another object than it began ({current_tag}, not {tag})")
        return Body(current_tag, size, self._chunks(path, first, begin, (size, current_tag), timeout))

    def _chunks(
        self, path: str, first: bytes, begin: int, size_and_tag: tuple[int, str], timeout: float
    ) -> Iterator[bytes]:
        size = size_and_tag[0]
        at, chunk = begin + len(first), first
        while at < size:
            yield chunk
            chunk = self._range(path, at, min(at + self._range_bytes, size), timeout)
            at += len(chunk)
            if not chunk:
                break
        # Several requests have read one content only if it is still the same after the last of them.
        if at != size or self._look_up(path, timeout) != size_and_tag:
            raise ChangedError(f"ended at byte {at} of {size}, or as another object than it began")
        yield chunk

    def _range(self, path: str, begin: int, end: int, timeout: float) -> bytes:
        """Read one range, and adapt the size of the next one to its speed."""
        started = self._clock()
        data = self.read(path, begin, end, timeout=timeout)
        seconds, size = self._clock() - started, self._range_bytes
        if seconds > SLOW_SECONDS:
            self._range_bytes = max(size // 2, MIN_RANGE_BYTES)
        elif seconds < FAST_SECONDS and len(data) >= size:
            self._range_bytes = min(2 * size, RANGE_BYTES)
        return data

    def read(self, path: str, begin: int, end: int | None, *, timeout: float) -> bytes:
        """Return the bytes [begin, end), or all from `begin` on."""
        # Keywords: the second positional argument is a version in s3fs and the start elsewhere.
        span = {} if end is None and not begin else {"start": begin, "end": end}
        return bytes(call(self._connection.get(), "cat_file", path, timeout=timeout, **span))

    def size(self, path: str, *, timeout: float) -> int:
        """Return the object's size, bytes."""
        return self._look_up(path, timeout)[0]

    def renew(self) -> None:
        """Do nothing: the store renews the shared connection."""

    def _look_up(self, path: str, timeout: float) -> tuple[int, str]:
        info = call(self._connection.get(), "info", path, timeout=timeout)
        if info.get("type") == "directory":
            raise IsADirectoryError(path)
        return int(info["size"]), mark_of(info)


def call(filesystem: Any, method: str, *args: Any, timeout: float, **kwargs: Any) -> Any:
    """Call a method of an fsspec file system for at most `timeout` seconds.

    An asynchronous one is cancelled then, and another one is left behind in its thread.
    """
    if getattr(filesystem, "async_impl", False):
        from fsspec.asyn import sync

        return sync(filesystem.loop, getattr(filesystem, f"_{method}"), *args, timeout=timeout, **kwargs)
    try:
        return call_within(timeout, partial(getattr(filesystem, method), *args, **kwargs))
    except StoreTimeout as error:
        raise TimeoutError(error.message) from None


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
        check_options(self.scheme, settings)
        backend = self.scheme.backend
        if hasattr(backend, "fill_options"):
            settings = backend.fill_options(scheme, root, settings)
        check_urls(settings)
        self._attempts, self._timeout = take_limits(settings)
        self.root = root.rstrip("/")
        self.url = url or (f"dbfs:{self.root}" if scheme == "dbfs" else f"{scheme}://{self.root}")
        self.replaces_conditionally = self.scheme.has_conditional_puts
        self._options, self._secrets = HiddenOptions(settings), secret_values(settings)
        self._connection: PerProcess[Any] = PerProcess(partial(make_filesystem, scheme, settings))
        self._reader: Reader = FsspecReader(self._connection)
        if hasattr(backend, "make_reader"):
            self._reader = backend.make_reader(settings, self._connection, self._timeout)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return bytes(self._request("read", key, self._reader.read, self._path(key), 0, None))

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
        check_span(begin, end)
        path = self._path(key)
        if begin == end:
            self.size(key)
            return b""
        read, size = self._reader.read, end - begin
        data = bytes(self._request("read", key, read, path, begin, end, num_bytes=size, past_end=b""))
        return data[:size]

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
        path, attempts = self._path(key), Attempts(self, "read", key, Deadline(self._timeout))
        at, tag = 0, ""
        while True:
            body = None
            try:
                body = self._reader.open(path, at, tag, timeout=attempts.left())
                if tag not in {"", body.tag}:
                    raise ChangedError
                if not tag:
                    whole = most_seconds(self._timeout, max(0, body.num_bytes))
                    tag, attempts.deadline = body.tag, Deadline(whole)
                for chunk in body.chunks:
                    at += len(chunk)
                    attempts.progress()
                    if chunk:
                        yield chunk
            except Exception as error:  # noqa: BLE001 -- classified there, and raised unless it is retried
                if at and (isinstance(error, ChangedError) or classify(error) is FaultKind.EXISTS):
                    self._raise(f"{self.locate(key)} changed while it was read, at byte {at}", key, error)
                attempts.failed(error)
                if at and not tag:
                    text = f"the connection broke at byte {at}, and without an ETag the rest may be of other content"
                    self._raise(f"{self.locate(key)}: {text}; read it again", key, error)
            else:
                return
            finally:
                if body is not None:
                    body.close()

    def _raise(self, text: str, key: str, cause: Exception) -> NoReturn:
        raise_clean(StoreError(text, key=key, url=self.url), cause, self._known_secrets())

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Replace the object in one step."""
        path, payload = self._path_to_write(key), bytes(data)
        self._request("write", key, "pipe_file", path, payload, mode="overwrite", num_bytes=len(payload))

    def put_file(self, key: str, path: Path) -> None:
        """Replace the object by the content of a local file."""
        target = self._path_to_write(key)
        try:
            num_bytes = path.stat().st_size
        except OSError as error:
            raise StoreNotFound(f"cannot read the local file {path}: {error.strerror}", key=key) from error
        self._request("write", key, "put_file", str(path), target, num_bytes=num_bytes)

    def can_copy_from(self, source: Store) -> bool:
        """Return whether the scheme copies, and both stores have the same options."""
        return (
            isinstance(source, FsspecStore)
            and self.scheme.copies
            and (source.scheme, source._options) == (self.scheme, self._options)
        )

    def copy_from(self, source: Store, key: str) -> None:
        """Let the server copy the object of another store to the same key here."""
        if not (isinstance(source, FsspecStore) and self.can_copy_from(source)):
            super().copy_from(source, key)
            return
        num_bytes = source.size(key)
        self._request("copy", key, "cp_file", source._path(key), self._path_to_write(key), num_bytes=num_bytes)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise `StoreExists`."""
        path, payload = self._path_to_write(key), bytes(data)
        # Not open("xb"): if refused it leaves a multipart upload, and if it fails, a partial object.
        self._request("create", key, "pipe_file", path, payload, mode="create", num_bytes=len(payload))

    def get_tagged(self, key: str) -> Tagged:
        """Return the whole object with its ETag."""
        if not self.replaces_conditionally:
            return super().get_tagged(key)
        tagged: Tagged = self._request("read", key, "get_tagged", self._path(key))
        return tagged

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it still has this ETag, or raise `StoreConflict`."""
        path, payload = self._path_to_write(key), bytes(data)
        if not self.replaces_conditionally:
            return super().put_if_match(key, data, etag)
        try:
            return str(self._request("replace", key, "put_if_match", path, payload, etag, num_bytes=len(payload)))
        except (StoreExists, StoreNotFound) as error:
            raise self._conflict(key) from error

    def size(self, key: str) -> int:
        """Return the size of the object, bytes."""
        return int(self._request("look up", key, self._reader.size, self._path(key)))

    def delete(self, key: str) -> None:
        """Remove the object; a no-op if it does not exist."""
        with suppress(StoreNotFound):
            self._request("delete", key, "rm_file", self._path_to_write(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all objects below the folder, sorted by key."""
        folder = self._path(folder_of(prefix), allow_root=True)
        try:
            found = self._request("list", prefix, "find", folder, detail=True, deadline=Deadline(LIST_SECONDS))
        except StoreNotFound as error:
            if error.facts.get("is_bucket"):
                raise
            return iter(())
        return iter(self._infos(found, folder))

    def list_page(self, *, after: str = "") -> ListingPage:
        """List objects whose keys are greater than `after`: of S3 a bounded number, of other stores all."""
        filesystem = self._connection.get()
        if not hasattr(filesystem, "_list_page"):
            return super().list_page(after=after)
        found, last = self._request("list", after, "list_page", self.root, after)
        return ListingPage(self._infos(found, self.root), last or after, is_last=last is None)

    def _infos(self, found: Mapping[str, Mapping[str, Any]], folder: str) -> Sequence[ObjectInfo]:
        """Return the objects among entries of fsspec that lie below a folder, sorted by key."""
        top, below = (f"{name.strip('/')}/" if name.strip("/") else "" for name in (self.root, folder))
        infos = []
        for name, info in found.items():
            full = str(name).strip("/")
            if full.startswith(below) and info.get("type") != "directory" and not str(name).endswith("/"):
                key = full.removeprefix(top)
                infos.append(ObjectInfo(key, int(info["size"]), mark_of(info), time_of(info)))
        return sorted(infos, key=lambda info: info.key)

    def info(self, key: str) -> ObjectInfo:
        """Return the size and the modification mark of one object."""
        entry = self._request("look up", key, "info", self._path(key))
        if entry.get("type") == "directory":
            raise StoreNotFound(f"cannot look up {self.locate(key)}: it is a folder", key=key, url=self.url)
        return ObjectInfo(key, int(entry["size"]), mark_of(entry), time_of(entry))

    def check_bucket(self) -> None:
        """Look up the bucket, container or volume."""
        # /Volumes/<catalog>/<schema>/<volume>; elsewhere a root that begins with "/" is a folder of a server.
        depth = 5 if self.root.startswith("/Volumes/") else 1
        bucket = "/".join(self.root.split("/")[:depth])
        if not bucket or self.scheme.is_read_only or self.scheme.name == "memory":
            return
        try:
            self._request("look up the bucket of", "", "info", bucket)
        except StoreNotFound as error:
            raise no_bucket(f"cannot use {self.url}", bucket, key="", url=self.url) from error

    def check_folder(self) -> None:
        """Look up the store's own folder; in a bucket it exists if there is an object in it."""
        self._request("look up", "", "info", self.root)

    def endpoint(self) -> str:
        """Return the URL of the server that requests go to, without a request; "" if it is not known beforehand."""
        backend = self.scheme.backend
        return str(backend.server_of(self.root, self._options)) if hasattr(backend, "server_of") else ""

    def login(self) -> str:
        """Return the source of the credentials, without secrets, for diagnosis; "" if none is found.

        Blocks for as long as the client looks for them, on a cloud's machine in its metadata service.
        """
        return str(getattr(self.scheme.backend, "login_source", named_login)(self.scheme.name, self._options))

    def unfinished_uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """List the uploads below the folder that were not completed; none if the store removes them itself."""
        folder = self._path(folder_of(prefix), allow_root=True)
        if not self.scheme.keeps_uploads:
            return iter(())
        try:
            return self._kept("list the unfinished uploads of", prefix, "unfinished_uploads", folder)
        except StoreNotFound:
            return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove an upload with its parts, or a temporary file; a no-op if it no longer exists."""
        path = self._path_to_write(upload.key)
        with suppress(StoreNotFound):
            self._request("abort an upload to", upload.key, "abort_upload", path, upload.upload_id)

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion] | None:
        """List earlier contents of objects below the folder; None if this kind of store does not report them."""
        folder = self._path(folder_of(prefix), allow_root=True)
        if not self.scheme.lists_old_versions:
            return None
        return self._kept("list the old versions of", prefix, "old_versions", folder)

    def remove_old_version(self, version: OldVersion) -> None:
        """Remove earlier content of an object, or the mark of its removal; a no-op if it no longer exists."""
        path = self._path_to_write(version.key)
        with suppress(StoreNotFound):
            self._request("remove an old version of", version.key, "remove_old_version", path, version.version_id)

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

    def _kept(self, action: str, prefix: str, method: str, folder: str) -> Iterator[Any]:
        """List uploads or old versions below a folder, with keys relative to the root."""
        found = self._request(action, prefix, method, folder, deadline=Deadline(LIST_SECONDS))
        top = f"{self.root.strip('/')}/"
        return iter([replace(each, key=each.key.strip("/").removeprefix(top)) for each in found])

    def _request(
        self,
        action: str,
        key: str,
        method: str | Callable[..., Any],
        *args: Any,
        num_bytes: int = 0,
        past_end: Any = None,
        deadline: Deadline | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the result of a request, with retries of transient faults within one deadline.

        Args:
            action: Verb for error messages, such as "read".
            key: The object.
            method: A method of the file system, or of the reader; called with its time limit as `timeout`.
            args: Its arguments.
            kwargs: More of them.
            num_bytes: Bytes to transfer, which extend the deadline.
            past_end: Result if the requested range begins after the object's end; None raises.
            deadline: Deadline of all attempts; default: by the store's options and `num_bytes`.
        """
        seconds = self._timeout + num_bytes / FAST_BYTES_PER_SECOND
        attempts = Attempts(self, action, key, deadline or Deadline(seconds))
        while True:
            try:
                timeout = attempts.left()  # before a client is made, whose imports and credentials may take seconds
                if not isinstance(method, str):
                    return method(*args, timeout=timeout)
                filesystem = self._connection.get()
                if method == "find":
                    filesystem.invalidate_cache()
                return call(filesystem, method, *args, timeout=timeout, **kwargs)
            except Exception as error:  # noqa: BLE001, PERF203 -- classified there, and raised unless it is retried
                if past_end is not None and classify(error) is FaultKind.PAST_END:
                    return past_end
                attempts.failed(error)

    def _known_secrets(self) -> tuple[str, ...]:
        return (*self._secrets, *detect_secrets())


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
        if kind is FaultKind.REFUSED and is_expired(error) and not self._is_renewed:
            self._is_renewed = True
            # The very first operation creates the connection itself.
            self._store._connection.renew(self._connection or self._store._connection.peek())
            self._store._reader.renew()
            self._connection = self._store._connection.peek()
            return
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (self._faults - 1), MAX_PAUSE_SECONDS) * jitter(1.0, 1.5)
        attempts = 1 + (self._store._attempts - 1) * (THROTTLED_FACTOR if is_throttled(error) else 1)
        if is_unknown_host(error):
            attempts = min(attempts, UNKNOWN_HOST_ATTEMPTS)
        if kind not in RETRYABLE or self._faults >= attempts or self.deadline.left() <= pause:
            # Not in a variable: the error's traceback holds this frame, and would be in a cycle with it.
            raise_clean(self._translated(error), error, self._store._known_secrets())
        time.sleep(pause)

    def _translated(self, error: BaseException) -> StoreError:
        store = self._store
        text = redact(str(error) or type(error).__name__, store._known_secrets())
        detail = " ".join(text.split())[:400]
        if self.deadline.passed():
            detail = f"gave up after {self.deadline.seconds:.0f} s: {detail}"
        what, facts = f"cannot {self._action} {store.locate(self._key)}", {"key": self._key, "url": store.url}
        return translate(error, what=what, scheme=store.scheme, detail=detail, facts=facts)
