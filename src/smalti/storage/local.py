"""Folders as stores, and the disks below them.

A put writes a temporary file, syncs it and renames it; an exclusive put makes a hard link. Reads follow symbolic links,
with which downloaded sets are often laid out; writes and deletions never leave the root.
"""

import ctypes
import errno
import fcntl
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from smalti.errors import StoreAuthError, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.regular_files import open_regular, read_regular
from smalti.storage.store import (
    Disk,
    ObjectInfo,
    OldVersion,
    Store,
    SyncWatch,
    Tagged,
    UnfinishedUpload,
    check_key,
    check_span,
    folder_of,
    is_temporary,
    join_key,
    target_of,
    temporary_name,
    unfinished_upload,
)

CHUNK_BYTES = 1 << 20
LOCK_SECONDS = 60.0
"""Longest wait for the lock of a folder, which is only held for a comparison and a rename."""
_WRITE_BEHIND_BYTES = 1 << 23  # large enough for the file system to place it in one piece
_MAX_SYNCS = 8  # in parallel: disks reorder their queues
_MAKE_FOLDER = "make the folder of"
_NO_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SYNC_FILE_RANGE_WRITE = 2  # of linux/fs.h: start to write dirty pages, without waiting


class LocalStore(Store):
    """The store of one folder, which the first put creates.

    Examples:
        >>> store = LocalStore("/data/notes")
        >>> store.put("first.txt", b"hello")
        >>> store.get("first.txt")
        b'hello'
    """

    replaces_conditionally = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(os.fspath(root))))  # noqa: PTH100, PTH111 -- lexical: links stay
        self.url = str(self.root)

    def local_path(self, key: str) -> Path:
        """Return the file of the key."""
        return self.root / check_key(key)

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        path = self.local_path(key)
        with self._mapped(key, "read"):
            return read_regular(path)

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Return the bytes [begin, end), fewer if the object ends before."""
        check_span(begin, end)
        path = self.local_path(key)
        with self._mapped(key, "read"), open_regular(path) as file:
            file.seek(begin)
            # Python makes room for all that is asked for, and callers ask for the most that an object may have.
            return file.read(max(0, min(end, os.fstat(file.fileno()).st_size) - begin))

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks."""
        path = self.local_path(key)
        total = 0
        with self._mapped(key, "open"):
            file = open_regular(path)
        with file:
            while True:
                with self._mapped(key, "read"):
                    chunk = file.read(CHUNK_BYTES)
                if not chunk:
                    return total
                if on_chunk is not None:
                    on_chunk(chunk)
                out.write(chunk)
                total += len(chunk)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Replace the object in one step."""
        with self._new_file(key) as (path, temp, file):
            _write_behind(file, data)
            self._replace(file, temp, path)

    def put_unsynced(self, key: str, data: bytes | memoryview) -> None:
        """Replace the object, and start to write it to disk without waiting."""
        with self._new_file(key) as (path, temp, file):
            _write_behind(file, data)
            self._rename(temp, path)

    def sync(self, keys: Collection[str]) -> None:
        """Wait until the files and the entries of their folders are on disk.

        Raises:
            StoreError: the disk failed or is full, so that one of them may be lost; or one does not exist.
        """
        if not keys:
            return
        folders = {self.root}
        for path in map(self.local_path, keys):
            folders.update(folder for folder in path.parents if folder.is_relative_to(self.root))

        def sync_key(key: str) -> None:
            with self._mapped(key, "sync"):
                sync_path(self.local_path(key))

        with ThreadPoolExecutor(min(_MAX_SYNCS, len(keys)), thread_name_prefix="smalti-sync") as pool:
            list(pool.map(sync_key, keys))
            list(pool.map(_sync_folder, folders))

    def disk(self) -> Disk | None:
        """Return the disk of the root; None if the root does not exist yet, and as in `disk_of`."""
        return disk_of(self.root)

    @contextmanager
    def watched(self) -> Iterator[SyncWatch]:
        """Sync for other processes on the disk of the root, which must exist; see `Store.watched`."""
        disk = self.disk()
        if disk is None:
            yield SyncWatch(None, self.sync)
            return
        with self._mapped("", "open"):
            descriptor = os.open(self.root, os.O_RDONLY)
        try:

            def sync(keys: Collection[str]) -> None:
                self.sync(keys)
                with self._mapped("", "sync"):
                    sync_file_system(descriptor)

            yield SyncWatch(disk, sync)
        finally:
            os.close(descriptor)

    def put_file(self, key: str, path: Path) -> None:
        """Replace the object by the content of a local file."""
        try:
            source = open_regular(path)
        except StoreError:
            raise
        except OSError as error:
            raise StoreNotFound(f"cannot read the local file {path}: {error.strerror}", key=key) from error
        with source, self._new_file(key) as (target, temp, file):
            shutil.copyfileobj(source, file, CHUNK_BYTES)
            self._replace(file, temp, target)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise `StoreExists`."""
        with self._new_file(key, "create") as (path, temp, file):
            file.write(data)
            _sync(file)
            self._link(temp, path, key)
        with self._mapped(key, "create"):
            _sync_folder(path.parent)

    def get_tagged(self, key: str) -> Tagged:
        """Return the whole object; its ETag is its SHA-256."""
        data = self.get(key)
        return Tagged(data, sha256(data).hexdigest())

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it still has this ETag.

        Raises:
            StoreConflict: another object is there, or none.
            StoreError: the file system has no locks, which this needs.
        """
        with self._new_file(key) as (path, temp, file):
            file.write(data)
            _sync(file)
            with self._locked(path.parent, fcntl.LOCK_EX):
                if not path.is_file() or sha256(read_regular(path)).hexdigest() != etag:
                    raise self._conflict(key)
                temp.replace(path)
            _sync_folder(path.parent)
        return sha256(data).hexdigest()

    def size(self, key: str) -> int:
        """Return the size of the object, bytes."""
        path = self.local_path(key)
        with self._mapped(key, "look up"):
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return path.stat().st_size

    def delete(self, key: str) -> None:
        """Remove the object; a no-op if it does not exist."""
        path = self.local_path(key)
        if not path.parent.is_dir():
            return
        self._confine(path, key)
        with self._mapped(key, "delete"), suppress(FileNotFoundError), self._locked(path.parent, fcntl.LOCK_SH):
            path.unlink()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List all objects below the folder, sorted by key."""
        infos = []
        for key, name, path in self._files(prefix):
            if is_temporary(name):
                continue
            try:
                stat = os.stat(path)  # noqa: PTH116  a Path for each of a million files would take most of the time
            except OSError as error:
                if error.errno in _NO_FILE:
                    continue  # removed since it was listed, or a link that leads nowhere
                raise self._translate(error, key, "list") from error
            infos.append(ObjectInfo(key, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime))
        return iter(sorted(infos, key=attrgetter("key")))

    def check_folder(self) -> None:
        """Check that the folder exists."""
        if not self.root.is_dir():
            self._check_no_file(self.root)
            raise StoreNotFound(f"the folder {self.root} does not exist", url=self.url)

    def _check_no_file(self, path: Path) -> None:
        """Check that no file is where a folder above `path`, or `path` itself, should be.

        Raises:
            StoreError: there is one.
        """
        for folder in (path, *path.parents):
            if folder.exists():
                if not folder.is_dir():
                    raise StoreError(
                        f"{folder} is a file, and a folder is needed there: give the address of a folder",
                        url=self.url,
                        path=str(folder),
                    )
                return

    def info(self, key: str) -> ObjectInfo:
        """Return the size and the modification time of one file."""
        path = self.local_path(key)
        with self._mapped(key, "look up"):
            stat = path.stat()
        if not S_ISREG(stat.st_mode):
            raise StoreNotFound(f"cannot look up {path}: it is no file", key=key, url=self.url)
        return ObjectInfo(key, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime)

    def unfinished_uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """List the temporary files below the folder, of active and of killed writers."""
        found = []
        for key, name, path in self._files(prefix):
            if not is_temporary(name):
                continue
            try:
                stat = os.lstat(path)
            except FileNotFoundError:
                continue  # its writer has renamed it
            upload = unfinished_upload(key, stat.st_mtime, stat.st_size)
            if upload is not None:
                found.append(upload)
        return iter(sorted(found, key=lambda each: (each.key, each.upload_id)))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove a temporary file; its writer fails if it is still active."""
        path = self.local_path(upload.key).with_name(upload.upload_id)
        if target_of(path.name) is None or not path.parent.is_dir():
            return
        self._confine(path, upload.key)
        with self._mapped(upload.key, "delete a temporary file of"):
            path.unlink(missing_ok=True)

    def old_versions(self, prefix: str = "") -> Iterator[OldVersion]:
        """Return nothing: a folder keeps no earlier contents, apart from snapshots of its file system."""
        folder_of(prefix)
        return iter(())

    def child(self, prefix: str) -> "LocalStore":
        """Return the store of a folder below this one."""
        return LocalStore(self.root / join_key(folder_of(prefix), ""))

    def check_exclusive_puts(self, folder: str) -> None:
        """Do nothing: a hard link never replaces a file, and a put to a disk without hard links raises."""

    def _files(self, prefix: str) -> Iterator[tuple[str, str, str]]:
        """List key, name and path of all files below the folder, temporary ones included."""
        top, found = self.root / folder_of(prefix), []
        if not self.root.is_dir():
            self._check_no_file(self.root)
        with self._mapped(prefix, "list"):
            for folder, _, names in os.walk(top, onerror=_raise_unless_gone):
                below = Path(folder).relative_to(self.root).as_posix()
                begin = "" if below == "." else f"{below}/"
                found += [(f"{begin}{name}", name, f"{folder}{os.sep}{name}") for name in names]
        return iter(found)

    def _replace(self, file: BinaryIO, temp: Path, path: Path) -> None:
        """Rename a finished file durably."""
        _sync(file)
        self._rename(temp, path)
        _sync_folder(path.parent)

    def _rename(self, temp: Path, path: Path) -> None:
        """Rename a file, but not while `put_if_match` compares and replaces its target."""
        with self._locked(path.parent, fcntl.LOCK_SH):
            temp.replace(path)

    @contextmanager
    def _locked(self, folder: Path, kind: int) -> Iterator[None]:
        """Hold a lock on the folder: LOCK_EX for conditional replacements, LOCK_SH for all other renames and deletions.

        The lock is on the folder itself, so that no lock file remains, and the kernel releases it when its holder dies.
        Without locks on folders `put_if_match` is refused, and the shared lock is not needed.
        """
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise StoreTimeout(
                            f"{folder} has been locked for {LOCK_SECONDS:.0f} s by a writer that is stuck"
                        ) from None
                    time.sleep(0.002)
                    continue
                except OSError as error:
                    if kind == fcntl.LOCK_EX:
                        raise StoreError(
                            f"{folder}: this file system has no locks ({error.strerror}), so nothing on it can be "
                            "replaced conditionally; use a local disk or an object store",
                            url=self.url,
                            is_unsupported=True,
                        ) from error
                break
            yield
        finally:
            os.close(descriptor)

    def _link(self, temp: Path, path: Path, key: str) -> None:
        try:
            os.link(temp, path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise StoreError(
                    f"{path}: this file system has no hard links ({error.strerror}), so a version cannot be "
                    "published exclusively on it; write to a local disk, an object store, or dbfs:/Volumes/... instead",
                    key=key,
                    url=self.url,
                ) from error
            raise

    def _writable(self, key: str) -> Path:
        path = self.local_path(key)
        with self._mapped(key, _MAKE_FOLDER):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._confine(path, key)
        return path

    @contextmanager
    def _new_file(self, key: str, action: str = "write") -> Iterator[tuple[Path, Path, BinaryIO]]:
        """Yield the file of the key, and a new temporary file beside it, which is removed unless it was renamed."""
        path = self._writable(key)
        temp = path.with_name(temporary_name(path.name))
        with self._mapped(key, action):
            try:
                with temp.open("xb") as file:
                    yield path, temp, file
            finally:
                temp.unlink(missing_ok=True)

    def _confine(self, path: Path, key: str) -> None:
        if not path.parent.resolve().is_relative_to(self.root.resolve()):
            raise StoreError(
                f"key {key!r} leads out of {self.root} through a symbolic link; writes stay inside the root",
                key=key,
                url=self.url,
            )

    @contextmanager
    def _mapped(self, key: str, action: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            raise self._translate(error, key, action) from error

    def _translate(self, error: OSError, key: str, action: str) -> StoreError:
        where = self.locate(key)
        facts = {"key": key, "url": self.url}
        if isinstance(error, FileExistsError) and action == "create":
            return StoreExists(f"{where} exists already; nothing was written", **facts)
        if isinstance(error, FileExistsError | NotADirectoryError):
            try:
                self._check_no_file(self.root)
            except StoreError as file_there:
                return file_there
        if isinstance(error, FileExistsError) or (isinstance(error, NotADirectoryError) and action == _MAKE_FOLDER):
            return StoreError(f"cannot {action} {where}: a file is where a folder is needed", **facts)
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) and action != "write":
            return StoreNotFound(f"{where} does not exist", **facts)
        if isinstance(error, PermissionError):
            return StoreAuthError(f"no permission to {action} {where}: check its owner and mode", **facts)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StoreError(
                f"cannot {action} {where}: the disk is full ({error.strerror}); free space and try again", **facts
            )
        return StoreError(f"cannot {action} {where}: {error.strerror or error}", **facts)


def _raise_unless_gone(error: OSError) -> None:
    """Raise the error that a folder cannot be listed, unless there is none; `os.walk` ignores it otherwise."""
    if error.errno not in _NO_FILE:
        raise error


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable. Best effort: some network file systems cannot sync folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_of(folder: Path) -> Disk | None:
    """Return the disk of a folder; None if files of another process cannot be synced reliably.

    It takes Linux 5.8 or newer, an existing folder, and a file system on a block device: NFS and FUSE have their own
    rules for durability.
    """
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    is_new = found is not None and (int(found[1]), int(found[2])) >= (5, 8)
    if platform.system() != "Linux" or not is_new or _c_function("syncfs", ctypes.c_int) is None:
        return None
    try:
        boot_id, stat = _BOOT_ID.read_text().strip(), folder.stat()
    except OSError:
        return None
    return Disk(boot_id, stat.st_dev, stat.st_ino) if boot_id and os.major(stat.st_dev) else None


def begin_writing(file: BinaryIO, begin: int = 0, num_bytes: int = 0) -> None:
    """Start to write flushed bytes from `begin` on to disk, without waiting; 0 bytes are all. Best effort."""
    call = _c_function("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call is not None:
        call(file.fileno(), begin, num_bytes, _SYNC_FILE_RANGE_WRITE)  # a later fsync reports the errors


def _write_behind(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all bytes; the disk begins with each part while the next one is copied."""
    view = memoryview(data)
    for begin in range(0, len(view), _WRITE_BEHIND_BYTES):
        file.write(view[begin : begin + _WRITE_BEHIND_BYTES])
        file.flush()
        begin_writing(file, begin, _WRITE_BEHIND_BYTES)


def sync_path(path: Path) -> None:
    """Wait until a file that any process wrote is on disk.

    Raises:
        OSError: it could not be written. An error that occurred while no process had the file open is reported only as
            long as the kernel caches the file; `sync_file_system` reports the others.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Wait until everything on the file system is on disk.

    Raises:
        OSError: something could not be written since the descriptor was opened. Linux reports this since 5.8
            (syncfs(2)); for older ones `disk_of` is None.
    """
    call = _c_function("syncfs", ctypes.c_int)
    if call is not None and call(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _c_function(name: str, *arguments: Any) -> Any:
    """Return a function of the C library that Python does not wrap; None if there is none, as on macOS."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    call.argtypes = list(arguments)
    return call
