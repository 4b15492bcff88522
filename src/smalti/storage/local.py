"""A folder of a disk as a store: writes are temp file, fsync, rename; exclusive creation is a hard link.

Reads follow symbolic links (downloaded sets are often laid out with them); writes and deletions never leave the root.
"""

import ctypes
import errno
import fcntl
import os
import platform
import re
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from smalti.errors import StoreAuthError, StoreConflict, StoreError, StoreExists, StoreNotFound, StoreTimeout
from smalti.storage.listing import is_temporary, target_of, temporary_name, unfinished_upload
from smalti.storage.store import (
    Disk,
    ObjectInfo,
    Store,
    Tagged,
    UnfinishedUpload,
    Watch,
    check_key,
    check_span,
    folder_of,
    join_key,
)

CHUNK_BYTES = 1 << 20
LOCK_SECONDS = 60.0
"""Whoever holds a folder longer than this is stuck: it is held for a look and a rename."""
_SYNCS = 8  # at the same time: a disk takes its queue in any order it likes
_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: start writing what is dirty, wait for nothing


class LocalStore(Store):
    """The store of one folder; the folder is made by the first put."""

    replaces_conditionally = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(os.fspath(root))))  # noqa: PTH100, PTH111 -- lexical: links stay
        self.url = str(self.root)

    def local_path(self, key: str) -> Path:
        """The file of the key."""
        return self.root / check_key(key)

    def get(self, key: str) -> bytes:
        """The whole object."""
        path = self.local_path(key)
        with self._mapped(key, "read"):
            return path.read_bytes()

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes [begin, end), shorter where the object ends before."""
        check_span(begin, end)
        path = self.local_path(key)
        with self._mapped(key, "read"), path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def fetch(self, key: str, out: BinaryIO, *, on_chunk: Callable[[bytes], None] | None = None) -> int:
        """Write the whole object to `out` in chunks."""
        path = self.local_path(key)
        total = 0
        with self._mapped(key, "open"):
            file = path.open("rb")
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
        path = self._writable(key)
        with self._mapped(key, "write"), _temp_beside(path) as (temp, file):
            file.write(data)
            _sync(file)
            self._replace(temp, path)

    def put_unsynced(self, key: str, data: bytes | memoryview) -> None:
        """As `put`, but it does not wait for the disk, which begins to write meanwhile."""
        path = self._writable(key)
        with self._mapped(key, "write"), _temp_beside(path) as (temp, file):
            file.write(data)
            file.flush()
            begin_writing(file)
            self._rename(temp, path)

    def sync(self, keys: Collection[str]) -> None:
        """Return when the files, and the folders that name them, are on disk.

        Raises:
            StoreError: the disk failed or is full: one of them may be lost; or it is not there.
        """
        if not keys:
            return
        folders = {folder for key in keys for folder in self._folders(self.local_path(key))}
        with ThreadPoolExecutor(min(_SYNCS, len(keys)), thread_name_prefix="smalti-sync") as pool:
            list(pool.map(self._sync_key, keys))
            list(pool.map(_sync_folder, folders))

    def disk(self) -> Disk | None:
        """The disk of the root, once that is there; see `disk_of`."""
        return disk_of(self.root)

    @contextmanager
    def watched(self) -> Iterator[Watch]:
        """The disk of the root, which must be there; see `Store.watched`."""
        disk = self.disk()
        if disk is None:
            yield Watch(None, self.sync)
            return
        with self._mapped("", "open"):
            descriptor = os.open(self.root, os.O_RDONLY)
        try:

            def sync(keys: Collection[str]) -> None:
                self.sync(keys)
                with self._mapped("", "sync"):
                    sync_file_system(descriptor)

            yield Watch(disk, sync)
        finally:
            os.close(descriptor)

    def put_file(self, key: str, path: Path) -> None:
        """Replace the object by the content of a local file."""
        target = self._writable(key)
        try:
            source = path.open("rb")
        except OSError as error:
            raise StoreNotFound(f"cannot read the local file {path}: {error.strerror}", key=key) from error
        with self._mapped(key, "write"), source, _temp_beside(target) as (temp, file):
            while chunk := source.read(CHUNK_BYTES):
                file.write(chunk)
            _sync(file)
            self._replace(temp, target)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise `StoreExists`."""
        path = self._writable(key)
        with self._mapped(key, "create"):
            with _temp_beside(path) as (temp, file):
                file.write(data)
                _sync(file)
                self._link(temp, path, key)
            _sync_folder(path.parent)

    def get_tagged(self, key: str) -> Tagged:
        """The whole object; its hash is its ETag."""
        data = self.get(key)
        return Tagged(data, sha256(data).hexdigest())

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """Replace the object if it is still what `get_tagged` saw, or raise `StoreConflict`.

        Raises:
            StoreError: the file system has no locks, so that it cannot be done here.
        """
        path = self._writable(key)
        with self._mapped(key, "write"), _temp_beside(path) as (temp, file):
            file.write(data)
            _sync(file)
            with self._held(path.parent, fcntl.LOCK_EX):
                if not path.is_file() or sha256(path.read_bytes()).hexdigest() != etag:
                    raise StoreConflict(
                        f"{path} is no longer what it was when it was read; nothing was written: read it again",
                        key=key,
                        url=self.url,
                    )
                temp.replace(path)
            _sync_folder(path.parent)
        return sha256(data).hexdigest()

    def size(self, key: str) -> int:
        """The size of the object, bytes."""
        path = self.local_path(key)
        with self._mapped(key, "look up"):
            if not path.is_file():
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return path.stat().st_size

    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        path = self.local_path(key)
        if not path.parent.is_dir():
            return
        self._confine(path, key)
        with self._mapped(key, "delete"), suppress(FileNotFoundError), self._held(path.parent, fcntl.LOCK_SH):
            path.unlink()

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects below the folder, sorted by key."""
        infos = []
        for path in self._files(prefix):
            if is_temporary(path.name):
                continue
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # removed between listing and looking, or a dangling link
            key = path.relative_to(self.root).as_posix()
            infos.append(ObjectInfo(key, stat.st_size, str(stat.st_mtime_ns), stat.st_mtime))
        return iter(sorted(infos, key=lambda info: info.key))

    def unfinished_uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """Return the temporary files below the folder: of writers at work, and of killed ones."""
        found = []
        for path in self._files(prefix):
            if not is_temporary(path.name):
                continue
            try:
                stat = path.lstat()
            except FileNotFoundError:
                continue  # its writer has finished
            upload = unfinished_upload(path.relative_to(self.root).as_posix(), stat.st_mtime, stat.st_size)
            if upload is not None:
                found.append(upload)
        return iter(sorted(found, key=lambda each: (each.key, each.upload_id)))

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Remove a temporary file; its writer, if it is still at work, fails."""
        path = self.local_path(upload.key).with_name(upload.upload_id)
        if target_of(path.name) is None or not path.parent.is_dir():
            return
        self._confine(path, upload.key)
        with self._mapped(upload.key, "delete a temporary file of"):
            path.unlink(missing_ok=True)

    def child(self, prefix: str) -> "LocalStore":
        """The store of a folder below this one."""
        return LocalStore(self.root / join_key(folder_of(prefix), ""))

    def check_exclusive_puts(self, folder: str) -> None:
        """Nothing to prove: a hard link never replaces a file, and a disk without hard links raises at the put."""

    def _files(self, prefix: str) -> Iterator[Path]:
        """Return all files below the folder, temporary ones too."""
        top = self.root / folder_of(prefix)
        with self._mapped(prefix, "list"):
            return iter([Path(folder, name) for folder, _, names in os.walk(top) for name in names])

    def _replace(self, temp: Path, path: Path) -> None:
        """Give a finished file its name, for good."""
        self._rename(temp, path)
        _sync_folder(path.parent)

    def _rename(self, temp: Path, path: Path) -> None:
        """Give a file its name, but not while `put_if_match` looks at what has that name now."""
        with self._held(path.parent, fcntl.LOCK_SH):
            temp.replace(path)

    def _sync_key(self, key: str) -> None:
        with self._mapped(key, "sync"):
            sync_path(self.local_path(key))

    def _folders(self, path: Path) -> Iterator[Path]:
        """Those above a file, up to the root."""
        for folder in path.parents:
            yield folder
            if folder == self.root:
                return

    @contextmanager
    def _held(self, folder: Path, kind: int) -> Iterator[None]:
        """While inside, nobody else changes what a name means (LOCK_EX), or nobody replaces by condition (LOCK_SH).

        The lock is the folder's own: no file is left, and the system lets go of it when its holder dies. Where there
        are no locks of folders, `put_if_match` is refused, and nothing is left to be guarded from.
        """
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            end = time.monotonic() + LOCK_SECONDS
            while not self._try_lock(descriptor, kind, folder):
                if time.monotonic() > end:
                    raise StoreTimeout(f"{folder} has been locked for {LOCK_SECONDS:.0f} s by a writer that is stuck")
                time.sleep(0.002)
            yield
        finally:
            os.close(descriptor)

    def _try_lock(self, descriptor: int, kind: int, folder: Path) -> bool:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if kind == fcntl.LOCK_EX:
                raise StoreError(
                    f"{folder}: this file system has no locks ({error.strerror}), so nothing on it can be replaced "
                    "conditionally; use a local disk or an object store",
                    url=self.url,
                    is_unsupported=True,
                ) from error
        return True

    def _link(self, temp: Path, path: Path, key: str) -> None:
        try:
            os.link(temp, path)
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                raise StoreError(
                    f"{path}: this file system has no hard links ({error.strerror}), so a version cannot be "
                    "published "
                    "exclusively on it; write to a local disk, an object store, or dbfs:/Volumes/... instead",
                    key=key,
                    url=self.url,
                ) from error
            raise

    def _writable(self, key: str) -> Path:
        path = self.local_path(key)
        with self._mapped(key, "make the folder of"):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._confine(path, key)
        return path

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
        if isinstance(error, FileExistsError):
            if action == "create":
                return StoreExists(f"{where} exists already; nothing was written", **facts)
            return StoreError(f"cannot {action} {where}: a file stands where a folder is needed", **facts)
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError) and action != "write":
            return StoreNotFound(f"{where} does not exist", **facts)
        if isinstance(error, PermissionError):
            return StoreAuthError(f"no permission to {action} {where}: check its owner and mode", **facts)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return StoreError(
                f"cannot {action} {where}: the disk is full ({error.strerror}); free space and try again", **facts
            )
        return StoreError(f"cannot {action} {where}: {error.strerror or error}", **facts)


@contextmanager
def _temp_beside(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside `path` under a unique name, which is gone at the end unless it was renamed."""
    temp = path.with_name(temporary_name(path.name))
    try:
        with temp.open("xb") as file:
            yield temp, file
    finally:
        temp.unlink(missing_ok=True)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable; some network file systems cannot, and have their own rules."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_of(folder: Path) -> Disk | None:
    """The disk of a folder; None where files that another process wrote cannot be synced for certain.

    That is: no Linux from 5.8 on, no such folder, or a file system without a block device of its own. Behind such a one
    (NFS, FUSE) stands somebody with rules of his own for what is on disk, and when.
    """
    if not _tells_errors():
        return None
    try:
        boot_id, stat = _BOOT_ID.read_text().strip(), folder.stat()
    except OSError:
        return None
    return Disk(boot_id, stat.st_dev, stat.st_ino) if boot_id and os.major(stat.st_dev) else None


def begin_writing(file: BinaryIO) -> None:
    """Have the disk begin with what was written and flushed; waits for nothing, and promises nothing."""
    call = _from_c("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    if call is not None:
        call(file.fileno(), 0, 0, _WRITE)  # an error of the disk is told by the fsync that follows anyway


def sync_path(path: Path) -> None:
    """Return when the file is on disk, whoever wrote it.

    Raises:
        OSError: it is not, and may never be. An error that came while nobody had the file open is told here as long as
            the kernel remembers the file; `sync_file_system` tells the others.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(descriptor: int) -> None:
    """Return when everything on the file system is on disk.

    Raises:
        OSError: something could not be written since the descriptor was opened, be it forgotten by now. Linux tells
            this since 5.8 (syncfs(2)); `disk_of` is None before.
    """
    call = _from_c("syncfs", ctypes.c_int)
    if call is not None and call(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def _tells_errors() -> bool:
    """Whether `sync_file_system` does what it says."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    is_new = found is not None and (int(found[1]), int(found[2])) >= (5, 8)
    return platform.system() == "Linux" and is_new and _from_c("syncfs", ctypes.c_int) is not None


@cache
def _from_c(name: str, *arguments: Any) -> Any:
    """A function of the C library that Python has no name for; None where there is none, as on macOS."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (AttributeError, OSError):
        return None
    call.argtypes = list(arguments)
    return call
