"""What every store can do; the kinds of store are in the modules beside this one.

Rules for keys: what may name an object, and how prefixes and keys are joined; pure, no I/O.
"""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from smalti.errors import StoreConflict, StoreError, StoreExists, StoreNotFound

MAX_KEY_BYTES = 1024
"""Longest key that S3, GCS and Azure all accept."""


def check_key(key: str, *, allow_root: bool = False) -> str:
    """The key itself, when it is relative, has no empty, `.` or `..` part and no NUL, and is not too long.

    Raises:
        StoreError: the key could leave the store's root, or no store would take it.
    """
    if key == "" and allow_root:
        return key
    parts = key.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in key or "\\" in key:
        raise StoreError(
            f"key {key!r} is not allowed: expected a relative, '/'-separated name without empty, '.' or '..' "
            "parts, "
            "NUL or backslash",
            key=key,
        )
    if len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_BYTES:
        raise StoreError(
            f"key {key[:80]!r}... is longer than {MAX_KEY_BYTES} bytes, which object stores refuse", key=key
        )
    return key


def join_key(prefix: str, key: str) -> str:
    """`prefix/key`; either may be empty."""
    return f"{prefix}/{key}" if prefix and key else prefix or key


def folder_of(prefix: str) -> str:
    """The checked prefix with at most one trailing slash removed; "" is the root."""
    return check_key(prefix.removesuffix("/"), allow_root=True)


@dataclass(frozen=True)
class ObjectInfo:
    """One object as a listing shows it."""

    key: str
    """Name relative to the store's root, '/'-separated."""
    num_bytes: int
    """Size of the object, bytes."""
    modified: str
    """ETag or modification time as text: changes when the content changes; empty where the store tells neither."""
    changed: float | None = None
    """When it was last put, seconds since 1970 by the store's own clock; None where the store does not tell."""


@dataclass(frozen=True)
class UnfinishedUpload:
    """A multipart upload, or a writer's temporary file, that was begun and not ended; no object listing shows it."""

    key: str
    """Of the object that it was to become, relative to the store's root."""
    upload_id: str
    """What the store calls it: the ID of a multipart upload, or the name of a temporary file."""
    begun: float
    """Seconds since 1970 by the store's own clock; of a temporary file, when it was last written to."""
    num_bytes: int | None = None
    """Bytes that it takes; None where the store does not tell."""
    is_temporary: bool = False
    """Whether it is a temporary file, whose name is one that Smalti alone gives."""


@dataclass(frozen=True)
class Tagged:
    """The content of an object, and the mark by which it can be replaced: if it is still that, and not otherwise."""

    data: bytes
    """The whole object."""
    etag: str
    """What the store calls this content: an ETag, a generation, a hash. For `put_if_match` of the same store alone."""


@dataclass(frozen=True)
class Disk:
    """A folder as one running kernel sees it: who sees an equal one can sync files that the other wrote."""

    boot_id: str
    """Of the kernel; another one after every start of a machine."""
    device: int
    inode: int


@dataclass(frozen=True)
class Watch:
    """A disk from some moment on, with all that is put there unsynced since."""

    disk: Disk | None
    """None where nothing may be left to be synced."""
    sync: Callable[[Collection[str]], None]
    """Returns when the objects with these keys cannot be lost any more; raises `StoreError` if one may be."""


class Store(ABC):
    """A container of bytes by key.

    Keys are relative to the root URL and '/'-separated. Every method is thread-safe, has a deadline, and raises only
    the `StoreError` family of `smalti.errors`. An object appears whole or not at all. Stores pickle, and make their
    connections anew in each process.
    """

    url: str
    """The root, free of secrets; keys are below it."""
    replaces_conditionally: bool = False
    """Whether this kind of store has `get_tagged` and `put_if_match`; `check_conditional_puts` proves that it does."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            StoreNotFound: no such key.
        """

    @abstractmethod
    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of the object; shorter, down to nothing, where the object ends before.

        Raises:
            StoreNotFound: no such key.
            ValueError: not 0 <= begin <= end.
        """

    @abstractmethod
    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks and return its size; `on_chunk` sees each chunk first."""

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store the bytes under the key, replacing what is there; a reader sees the old object or the new one."""

    def put_unsynced(self, key: str, data: bytes | memoryview) -> None:
        """As `put`, but the object may be lost when the machine fails, until `sync` of its key has returned."""
        self.put(key, data)

    def sync(self, keys: Collection[str]) -> None:
        """Return when the objects cannot be lost any more; for those that a process on an equal `disk` put unsynced.

        Raises:
            StoreError: one could not be kept, or is not there.
        """
        for key in keys:  # whatever was put is kept already
            check_key(key)

    def disk(self) -> Disk | None:
        """What `sync` can reach: an object that was put where the store says the same; None where `put` keeps all."""
        return None

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """While inside, other processes may leave what they put to be synced here, if they see the same `disk`.

        As `sync`, the watch's own tells errors of the disk, and those too that came while nobody had the file open.
        """
        yield Watch(None, self.sync)

    @abstractmethod
    def put_file(self, key: str, path: Path) -> None:
        """Store the content of a local file under the key, replacing what is there."""

    @abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> None:
        """Store the bytes under the key only if nothing is there; of several callers exactly one succeeds.

        Raises:
            StoreExists: something is there; after a lost reply it may be our own object.
        """

    def get_tagged(self, key: str) -> Tagged:
        """The whole object with its ETag, both of one moment.

        Raises:
            StoreNotFound: no such key.
            StoreError: this kind of store has no conditional puts.
        """
        check_key(key)
        raise self._no_conditions(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:  # noqa: ARG002 -- for those who have it
        """Replace the object only if it is still what `get_tagged` saw; its new ETag.

        Of several callers with one ETag exactly one succeeds.

        Raises:
            StoreConflict: something else is there, or nothing; after a lost reply it may be our own object.
            StoreError: this kind of store has no conditional puts, as its fact `is_unsupported` says; nothing was
                written.
        """
        check_key(key)
        raise self._no_conditions(key)

    @abstractmethod
    def size(self, key: str) -> int:
        """The size of the object, bytes.

        Raises:
            StoreNotFound: no such key.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when it is not there."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder `prefix`, recursively, sorted by key; nothing where there is no such folder."""

    def unfinished_uploads(self, prefix: str = "") -> "Iterator[UnfinishedUpload]":
        """Return uploads below the folder `prefix` that were not ended; none where the store ends them itself.

        Raises:
            StoreAuthError: the credentials may not ask for them.
        """
        check_key(prefix, allow_root=True)
        return iter(())

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove an upload with its parts, or a temporary file; nothing happens when it is over."""
        check_key(upload.key)

    @abstractmethod
    def child(self, prefix: str) -> "Store":
        """The store whose root is the folder `prefix` of this one."""

    def exists(self, key: str) -> bool:
        """Whether there is an object under the key; any doubt (credentials, network) raises instead of answering."""
        try:
            self.size(key)
        except StoreNotFound:
            return False
        return True

    def local_path(self, key: str) -> Path | None:
        """The file that holds the object when the store is a local folder, else None; the file need not exist."""
        check_key(key)
        return None

    def locate(self, key: str) -> str:
        """The full address of the key, for messages."""
        return f"{self.url.rstrip('/')}/{key}" if key else self.url

    def check_exclusive_puts(self, folder: str) -> None:
        """Prove, with a small object that is removed again, that this store honours `put_if_absent`.

        Several S3 look-alikes and emulators ignore the condition silently, and two writers would then both "win".

        Raises:
            StoreError: the store overwrote an object that was there.
        """
        probe = f"{check_key(folder)}/probe-{secrets.token_hex(8)}"
        self.put_if_absent(probe, b"1")
        try:
            self.put_if_absent(probe, b"2")
        except StoreExists:
            return
        finally:
            self.delete(probe)
        raise StoreError(
            f"{self.url}: this store ignores conditional puts (If-None-Match), so two writers could both "
            "publish; "
            "use a store that honours them (AWS S3, GCS, Azure, MinIO, Ceph RGW, R2, UC Volumes, a local disk)",
            url=self.url,
        )

    def check_conditional_puts(self, folder: str) -> None:
        """Prove, with a small object that is removed again, that this store honours `put_if_match`.

        Raises:
            StoreError: it has none, ignores the condition, or refuses the right ETag.
        """
        probe = f"{check_key(folder)}/probe-{secrets.token_hex(8)}"
        if not self.replaces_conditionally:
            raise self._no_conditions(probe)
        self.put(probe, b"1")
        try:
            first = self.get_tagged(probe).etag
            try:
                self.put_if_match(probe, b"2", first)
            except StoreConflict as error:
                raise StoreError(
                    f"{self.url}: this store refuses to replace an object by its own ETag (If-Match)", url=self.url
                ) from error
            try:
                self.put_if_match(probe, b"3", first)
            except StoreConflict:
                return
        finally:
            self.delete(probe)
        raise StoreError(
            f"{self.url}: this store ignores conditional puts (If-Match), so the work of one of two writers could "
            "be lost",
            url=self.url,
        )

    def _no_conditions(self, key: str) -> StoreError:
        return StoreError(
            f"{self.locate(key)}: this kind of store cannot replace an object conditionally (If-Match); those that can "
            "are S3, Google, Azure and a local disk",
            key=key,
            url=self.url,
            is_unsupported=True,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def check_span(begin: int, end: int) -> None:
    """Refuse a byte range that is not 0 <= begin <= end."""
    if not 0 <= begin <= end:
        raise ValueError(f"byte range [{begin}, {end}) is not valid: expected 0 <= begin <= end")
