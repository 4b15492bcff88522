"""The interface `Store`, its value types, and the rules for keys, listings and temporary files.

Stores of files write an object to a temporary file and rename it. A writer that is killed leaves its temporary file.
Listings of objects omit these files; `Store.unfinished_uploads` lists them, and a vacuum removes old ones.
"""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, BinaryIO

from smalti.errors import ArgumentError, StoreConflict, StoreError, StoreExists, StoreNotFound

MAX_KEY_BYTES = 1024
"""Longest key that S3, GCS and Azure all accept."""
MAX_OBJECT_BYTES = 2 << 30
"""Largest object that is read into memory as a whole; larger ones are read in parts, or fetched into a file."""
_MARKS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "created",
)  # fmt: skip
"""Fields of fsspec's entries that change with the content, the most reliable first."""
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
"""Fields of fsspec's entries with the time of the last put, in the order in which they are tried.

S3; Azure and Databricks; Google; SFTP and Google; fsspec's memory, which has no later time.
"""
_MAX_SECONDS = 1e11  # of a time in seconds since 1970; greater numbers are milliseconds
_SUFFIX = ".smalti-tmp"
_MAX_NAME = 100  # characters kept of the target's name, so that the whole stays a valid file name
_TEMPORARY = re.compile(rf"\.(.+)\.[0-9a-f]{{16}}{re.escape(_SUFFIX)}", re.DOTALL)


def check_key(key: str, *, allow_root: bool = False) -> str:
    """Return the key if it is relative, short enough, and has no empty, `.` or `..` part, backslash or NUL. Pure.

    Raises:
        StoreError: the key could leave the store's root, or is invalid in some kind of store.
    """
    if key == "" and allow_root:
        return key
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in key or "\\" in key:
        raise StoreError(
            f"key {key!r} is not allowed: expected a relative, '/'-separated name without empty, '.' or '..' "
            "parts, NUL or backslash",
            key=key,
        )
    if len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_BYTES:
        raise StoreError(
            f"key {key[:80]!r}... is longer than {MAX_KEY_BYTES} bytes, which object stores refuse", key=key
        )
    return key


def join_key(prefix: str, key: str) -> str:
    """Return `prefix/key`; either may be empty. Pure."""
    return f"{prefix}/{key}" if prefix and key else prefix or key


def folder_of(prefix: str) -> str:
    """Return the checked prefix without its trailing slash; "" is the root. Pure."""
    return check_key(prefix.removesuffix("/"), allow_root=True)


@dataclass(frozen=True)
class ObjectInfo:
    """One object in a listing."""

    key: str
    """Name relative to the store's root, '/'-separated."""
    num_bytes: int
    """Size of the object, bytes."""
    modified: str
    """ETag or modification time as text: changes when the content changes; empty if the store has neither."""
    changed: float | None = None
    """Time of the last put, seconds since 1970 by the store's own clock; None if unknown."""


@dataclass(frozen=True)
class ListingPage:
    """Consecutive objects of a listing, sorted by key."""

    objects: Sequence[ObjectInfo]
    """Empty if every object of the page was a marker of a folder; the listing may continue all the same."""
    after: str
    """Position at which the next page begins: objects with greater keys."""
    is_last: bool
    """True if there are no objects after these."""


@dataclass(frozen=True)
class UnfinishedUpload:
    """A multipart upload or temporary file that its writer has not completed; listings of objects omit it."""

    key: str
    """Key of the object that was being written, relative to the store's root."""
    upload_id: str
    """ID of the multipart upload, or name of the temporary file."""
    begun: float
    """Start of the upload, seconds since 1970 by the store's own clock; of a temporary file, its last write."""
    num_bytes: int | None = None
    """Size so far, bytes; None if unknown."""
    is_temporary: bool = False
    """True if it is a temporary file, whose name only Smalti uses."""


@dataclass(frozen=True)
class OldVersion:
    """Earlier content of an object, which the store keeps although the object was replaced or removed."""

    key: str
    """Key of the object, relative to the store's root."""
    version_id: str
    """The store's name of this content, or of the mark that the object was removed."""
    num_bytes: int
    """Bytes of the content; 0 for a mark."""
    is_removal: bool = False
    """True if it is the mark that the object was removed."""


@dataclass(frozen=True)
class Tagged:
    """The content of an object, with the ETag that a conditional replacement needs."""

    data: bytes
    """The whole object."""
    etag: str
    """The store's mark of this content: an ETag, generation or hash; only for `put_if_match` of the same store."""


@dataclass(frozen=True)
class Disk:
    """A folder as seen by one running kernel: processes with equal disks can sync each other's files."""

    boot_id: str
    """ID that the kernel draws at each boot."""
    device: int
    """Device number of the file system."""
    inode: int
    """Inode of the folder."""


@dataclass(frozen=True)
class SyncWatch:
    """Responsibility for objects that other processes put unsynced since it was created."""

    disk: Disk | None
    """Disk of the objects; None if other processes must sync themselves."""
    sync: Callable[[Collection[str]], None]
    """Makes the objects with these keys durable; raises `StoreError` if one may be lost."""


class Store(ABC):
    """A container of bytes by key.

    Keys are relative to the root URL and '/'-separated. Every method is thread-safe, has a deadline, and raises only
    `StoreError` and its subclasses. Puts are atomic: readers see an object whole or not at all. Stores can be pickled;
    each process makes its own connections.

    Examples:
        >>> store = smalti.open_store("s3://bucket/notes")
        >>> store.put("a/first.txt", b"hello")
        >>> store.get_range("a/first.txt", 1, 3)
        b'el'
        >>> [(info.key, info.num_bytes) for info in store.list("a/")]
        [('a/first.txt', 5)]
    """

    url: str
    """Address of the root, without secrets; keys are relative to it."""
    replaces_conditionally: bool = False
    """True if this kind of store has `get_tagged` and `put_if_match`; `check_conditional_puts` tests the server."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the whole object, of at most `MAX_OBJECT_BYTES`.

        Raises:
            StoreNotFound: no such key.
        """

    @abstractmethod
    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end) of the object; fewer, or none, if the object ends before.

        No more is read from a server than that, and what it sends before them if it ignores ranges.

        Raises:
            StoreNotFound: no such key.
            ValueError: not 0 <= begin <= end.
        """

    def get_limited(self, key: str, limit: int) -> bytes:
        """Return the whole object, of which no more than `limit` bytes and one are read.

        Raises:
            StoreNotFound: no such key.
            StoreError: the object is larger.
        """
        data = self.get_range(key, 0, limit + 1)
        if len(data) > limit:
            raise StoreError(
                f"{self.locate(key)} is larger than {limit} bytes, which no such object is; it was replaced by another "
                "one, or the server does not end its answers",
                key=key,
                url=self.url,
            )
        return data

    @abstractmethod
    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks and return its size, bytes.

        Args:
            key: The object.
            out: A binary file, not closed here.
            on_chunk: Called with each chunk before it is written; what it raises ends the transfer.

        Raises:
            StoreNotFound: no such key.
        """

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store the bytes under the key, replacing any object there in one step."""

    def put_unsynced(self, key: str, data: bytes | memoryview) -> None:
        """Store as `put` does, but a crash of the machine may lose the object until `sync` has returned."""
        self.put(key, data)

    def sync(self, keys: Collection[str]) -> None:
        """Make objects durable that this process, or one with an equal `disk`, put unsynced.

        Raises:
            StoreError: one of them may be lost, or does not exist.
        """
        for key in keys:  # puts are durable by default
            check_key(key)

    def disk(self) -> Disk | None:
        """Return the disk whose objects `sync` reaches; None if every put is durable or no other process may sync."""
        return None

    @contextmanager
    def watched(self) -> Iterator[SyncWatch]:
        """Sync on behalf of other processes: inside, those with the same `disk` may leave their puts unsynced.

        `SyncWatch.sync` also reports disk errors that occurred while no process had the file open, as `sync` may not.
        """
        yield SyncWatch(None, self.sync)

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Store the content of a local file under the key, replacing any object there in one step."""

    def can_copy_from(self, source: "Store") -> bool:  # noqa: ARG002 -- for subclasses
        """Return whether `copy_from` works: both are on one server, with the same credentials."""
        return False

    def copy_from(self, source: "Store", key: str) -> None:
        """Let the server copy the object of another store to the same key here; the bytes do not pass this machine.

        Raises:
            StoreNotFound: no such key in the source.
            StoreError: these stores cannot do it; nothing was written.
        """
        raise StoreError(f"cannot copy {source.locate(key)} to {self.locate(key)} within one server", key=key)

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> None:
        """Store the bytes under the key only if no object is there; of several callers exactly one succeeds.

        Raises:
            StoreExists: an object is there; after a lost reply it may be the caller's own.
        """

    def get_tagged(self, key: str) -> Tagged:
        """Return the whole object with its ETag, read atomically.

        Raises:
            StoreNotFound: no such key.
            StoreError: this kind of store has no conditional puts.
        """
        check_key(key)
        raise self._unconditional(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:  # noqa: ARG002 -- for subclasses
        """Replace the object only if it still has this ETag of `get_tagged`, and return the new ETag.

        Of several callers with one ETag exactly one succeeds.

        Raises:
            StoreConflict: another object is there, or none; after a lost reply it may be the caller's own.
            StoreError: this kind of store has no conditional puts (`is_unsupported` among its facts); nothing was
                written.
        """
        check_key(key)
        raise self._unconditional(key)

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the size of the object, bytes.

        Raises:
            StoreNotFound: no such key.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; a no-op if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all objects below the folder `prefix`, recursively, sorted by key; none if there is no such folder.

        Raises:
            StoreNotFound: there is no such bucket.
            StoreError: a file is where the root should be.
        """

    def list_page(self, *, after: str = "") -> ListingPage:
        """List objects whose keys are greater than `after`; stores that cannot begin there list all objects.

        Of S3 a page takes a bounded number of requests.
        """
        objects = [item for item in self.list() if item.key > after]
        return ListingPage(objects, objects[-1].key if objects else after, is_last=True)

    def info(self, key: str) -> ObjectInfo:
        """Return the size and the modification mark of one object.

        Raises:
            StoreNotFound: no such key.
        """
        folder = check_key(key).rpartition("/")[0]
        found = next((item for item in self.list(folder) if item.key == key), None)
        if found is None:
            raise StoreNotFound(f"cannot look up {self.locate(key)}: no such object", key=key, url=self.url)
        return found

    def unfinished_uploads(self, prefix: str = "") -> "Iterator[UnfinishedUpload]":
        """List the uploads below the folder `prefix` that were not completed; none if the store removes them itself.

        Raises:
            StoreAuthError: the credentials do not allow it.
        """
        check_key(prefix, allow_root=True)
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove an upload with its parts, or a temporary file; a no-op if it no longer exists."""
        check_key(upload.key)

    def old_versions(self, prefix: str = "") -> "Iterator[OldVersion] | None":
        """List earlier contents of objects below the folder `prefix`, and marks of removed ones, of a versioned bucket.

        Empty where the bucket keeps none; None if this kind of store does not report them.

        Raises:
            StoreAuthError: the credentials do not allow it.
        """
        check_key(prefix, allow_root=True)
        return None

    def remove_old_version(self, version: OldVersion) -> None:
        """Remove earlier content of an object, or the mark of its removal; a no-op if it no longer exists."""
        check_key(version.key)

    @abstractmethod
    def child(self, prefix: str) -> "Store":
        """Return the store whose root is the folder `prefix` of this one."""

    def exists(self, key: str) -> bool:
        """Return whether there is an object under the key; faults of credentials or network raise a `StoreError`."""
        try:
            self.size(key)
        except StoreNotFound:
            return False
        return True

    def local_path(self, key: str) -> Path | None:
        """Return the object's file if the store is a local folder, else None; the file need not exist."""
        check_key(key)
        return None

    def locate(self, key: str) -> str:
        """Return the full address of the key, for messages."""
        return f"{self.url.rstrip('/')}/{key}" if key else self.url

    def check_bucket(self) -> None:
        """Check that the bucket, container or volume of the store exists; a no-op for stores without one.

        Folders need not exist: the first put creates them. Credentials may suffice for reads and writes of objects, and
        not for this.

        Raises:
            StoreNotFound: it does not exist.
            StoreAuthError: the credentials do not allow to look it up.
        """
        return

    def check_folder(self) -> None:
        """Check that the store's own folder exists; a no-op for stores without folders of their own.

        Raises:
            StoreNotFound: it does not.
            StoreAuthError: the credentials do not allow to look it up.
        """
        return

    def check_exclusive_puts(self, folder: str) -> None:
        """Test, with a small object that is removed again, that this store honours `put_if_absent`.

        Several emulators of S3 ignore the condition silently, so that two writers would both succeed.

        Raises:
            StoreError: the store overwrote an existing object.
        """
        probe = f"{check_key(folder)}/probe-{secrets.token_hex(8)}"
        try:
            put_own(self, probe, b"1")
            with suppress(StoreExists):
                self.put_if_absent(probe, b"2")
            if self.get_range(probe, 0, 2) == b"1":  # a refusal may be the answer to a repeated put that took effect
                return
        finally:
            delete_own(self, probe)
        raise StoreError(
            f"{self.url}: this store ignores conditional puts (If-None-Match), so two writers could both publish; use "
            "a store that honours them (AWS S3, GCS, Azure, MinIO, Ceph RGW, R2, UC Volumes, a local disk)",
            url=self.url,
        )

    def check_conditional_puts(self, folder: str) -> None:
        """Test, with a small object that is removed again, that this store honours `put_if_match`.

        Raises:
            StoreError: it has no conditional puts, ignores the condition, or refuses the right ETag.
        """
        probe = f"{check_key(folder)}/probe-{secrets.token_hex(8)}"
        if not self.replaces_conditionally:
            raise self._unconditional(probe)
        try:
            self.put(probe, b"1")
            first = self.get_tagged(probe).etag
            try:
                put_own(self, probe, b"2", lambda: self.put_if_match(probe, b"2", first))
            except StoreConflict as error:
                raise StoreError(
                    f"{self.url}: this store refuses to replace an object by its own ETag (If-Match)", url=self.url
                ) from error
            with suppress(StoreConflict):
                self.put_if_match(probe, b"3", first)
            if self.get_range(probe, 0, 2) == b"2":
                return
        finally:
            delete_own(self, probe)
        raise StoreError(
            f"{self.url}: this store ignores conditional puts (If-Match), so the work of one of two writers could "
            "be lost",
            url=self.url,
        )

    def _unconditional(self, key: str) -> StoreError:
        return StoreError(
            f"{self.locate(key)}: this kind of store cannot replace an object conditionally (If-Match); those that can "
            "are S3, Google, Azure and a local disk",
            key=key,
            url=self.url,
            is_unsupported=True,
        )

    def _conflict(self, key: str) -> StoreConflict:
        text = "is no longer what it was when it was read; nothing was written: read it again"
        return StoreConflict(f"{self.locate(key)} {text}", key=key, url=self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def put_own(store: Store, key: str, data: bytes, put: Callable[[], object] | None = None) -> None:
    """Put an object by a conditional request, under a key that belongs to the caller.

    If the reply was lost, or a repeated put was refused because the first one took effect, the object is read back.

    Args:
        store: The store.
        key: Key of the object.
        data: Its content.
        put: Makes the request; by default `put_if_absent`.

    Raises:
        StoreError: what the request raises, if the store does not have the content.
    """
    try:
        store.put_if_absent(key, data) if put is None else put()
    except StoreError:
        if not holds(store, key, data):
            raise


def holds(store: Store, key: str, data: bytes) -> bool:
    """Return whether the store is known to have exactly this content; False also if it does not answer."""
    try:
        return store.get_range(key, 0, len(data) + 1) == data
    except StoreError:
        return False


def delete_own(store: Store, key: str) -> None:
    """Remove an object; a lost reply is settled by a second request, which changes nothing."""
    try:
        store.delete(key)
    except StoreError:
        store.delete(key)


def check_span(begin: int, end: int) -> None:
    """Raise `ValueError` unless 0 <= begin <= end."""
    if not 0 <= begin <= end:
        raise ArgumentError(f"byte range [{begin}, {end}) is not valid: expected 0 <= begin <= end")


def mark_of(entry: Mapping[str, Any]) -> str:
    """Return the most reliable mark of the content in an entry of fsspec; "" without one."""
    return next((str(entry[name]).strip('"') for name in _MARKS if entry.get(name)), "")


def time_of(entry: Mapping[str, Any]) -> float | None:
    """Return when an object was last put, seconds since 1970 by the store's own clock.

    None if the entry has no time, or none in a known form.
    """
    return next((seconds for name in _TIMES if (seconds := _seconds(entry.get(name))) is not None), None)


def _seconds(value: Any) -> float | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(value, str):
        return _parsed(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    return value / 1000 if value > _MAX_SECONDS else float(value)


def _parsed(text: str) -> float | None:
    if text.isascii() and text.isdigit():
        return _seconds(int(text))
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return _seconds(parse(text.replace("Z", "+00:00") if text.endswith("Z") else text))
        except ValueError:  # noqa: PERF203 -- two forms
            continue
    return None


def temporary_name(name: str) -> str:
    """Return an unused file name in which to write the file `name` of the same folder."""
    return f".{name[:_MAX_NAME]}.{secrets.token_hex(8)}{_SUFFIX}"


def is_temporary(name: str) -> bool:
    """Return whether this path or name is one of a temporary file, which is no object of the store."""
    return name.endswith(_SUFFIX)


def target_of(name: str) -> str | None:
    """Return the name, cut to 100 characters, of the file for which a temporary file was written.

    None if `temporary_name` did not make the name.
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match is not None else None


def temporary_path(path: str, name: str) -> str:
    """Return the path of the temporary file `name` in the folder of `path`.

    Raises:
        ValueError: `temporary_name` did not make the name.
    """
    if target_of(name) is None:
        raise ValueError(f"{name!r} in the folder of {path} is not the name of a temporary file")
    return f"{path.rpartition('/')[0]}/{name}"


def unfinished_uploads_in(entries: Iterable[Mapping[str, Any]]) -> list[UnfinishedUpload]:
    """Return the temporary files among entries of an fsspec listing, with whole paths for keys.

    A file whose entry has no time is omitted: its writer may still be active.
    """
    found = []
    for entry in entries:
        begun = time_of(entry)
        if begun is not None and entry["type"] != "directory":
            found.append(unfinished_upload(str(entry["name"]), begun, int(entry["size"])))
    return [upload for upload in found if upload is not None]


def unfinished_upload(path: str, begun: float, num_bytes: int) -> UnfinishedUpload | None:
    """Return a temporary file as an unfinished upload; None for a path that no store of Smalti's made.

    That is any other file, and a path that is not a valid key or cannot be printed.
    """
    folder, slash, name = path.rpartition("/")
    target = target_of(name)
    key = f"{folder}{slash}{target}"
    if target is None or not key.isprintable():
        return None
    try:
        check_key(key.lstrip("/"))
    except StoreError:
        return None
    return UnfinishedUpload(key, name, begun, num_bytes, is_temporary=True)
