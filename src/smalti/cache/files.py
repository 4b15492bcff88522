"""The folder of one data set's copies: its files by name, size and lock, and creating them safely.

The state of the cache is what lies on disk; nothing is remembered. A killed process leaves temporaries and a lock file
that is no longer locked: the kernel releases a `flock` when its holder dies, which distinguishes stale files from those
of living processes.

Folders and files are private: mode 0700, owned by this user, and never opened through a planted link.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from smalti.errors import StoreAuthError, StoreError, StoreTimeout
from smalti.storage.retry import Deadline, jitter

NOT_A_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO}
"""Errors of opening a lock file in whose place a link, a socket or the like was put."""
_FIRST_PAUSE = 0.002  # seconds between two attempts at a lock; grows by half each time
held_locks: set[int] = set()
"""Descriptors of the locks that this process holds, which its forks close so that they do not keep them."""
CACHE_FOLDER = "`local` (of a training: `cache_dir`)"
"""The arguments for the cache folder, in messages."""
PART_SUFFIX = ".part"
BAD_PREFIX = ".bad-"
LOCK_SUFFIX = ".lock"
LEASES = ".leases"
BUDGET_LOCK = ".budget.lock"
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs",
    "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse2", "fuse.mountpoint-s3", "fuse.goofys", "fuse.rclone", "fuse.glusterfs",
}  # fmt: skip
"""File systems over a network, where locks of one host do not hold for others."""
_PART = re.compile(r"\.(.+)\.\d+\.[0-9a-f]+(?:\.raw)?\.part")
_FOLDER = re.compile(r"[0-9a-f]{32,128}(?:\.[0-9a-f]{16})?(?:\.uid\d+)?")
_warned_folders: set[str] = set()


def _close_inherited() -> None:
    # A forked child shares the parent's open lock: if it kept it, the lock would outlive a killed parent.
    for descriptor in list(held_locks):
        with suppress(OSError):
            os.close(descriptor)
    held_locks.clear()


os.register_at_fork(after_in_child=_close_inherited)


class FileLock:
    """An exclusive lock on a path, between processes and threads; a context manager that removes the file on release.

    `what` is the thing that is locked, for messages; `longest_pause` the most seconds between two attempts.

    Raises:
        StoreTimeout: another process or thread held it until the deadline.
    """

    def __init__(self, path: Path, deadline: Deadline, what: str, *, longest_pause: float = 0.05) -> None:
        self.path, self._deadline, self._what, self._longest_pause = path, deadline, what, longest_pause
        self._descriptor = -1
        self.is_new = False
        """True if this holder created the file, so that no process was killed while it held the lock."""

    def __enter__(self) -> "FileLock":
        pause = _FIRST_PAUSE
        while True:
            if self._try():
                return self
            if self._deadline.passed():
                raise StoreTimeout(
                    f"{self._what}: another process of this host was fetching it (lock {self.path}) and did not "
                    f"finish within {self._deadline.seconds:.0f} s; raise `download_timeout`, or look at that process",
                    path=str(self.path),
                )
            time.sleep(min(pause, self._deadline.left()) * jitter(0.5, 1.0))
            pause = min(pause * 1.5, self._longest_pause)

    def reserve(self, num_bytes: int) -> None:
        """Reserve bytes for the holder: they are the size of the lock file, which is sparse and takes no space."""
        os.ftruncate(self._descriptor, num_bytes)

    def __exit__(self, *_: object) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        held_locks.discard(descriptor)
        # Removed while still locked: a waiting process notices that the name is gone and starts over.
        self.path.unlink(missing_ok=True)
        # Explicitly: a child that was forked in between shares the open file, and closing would not unlock it.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _try(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            try:
                descriptor, is_new = os.open(self.path, flags | os.O_EXCL, 0o600), True
            except FileExistsError:
                descriptor, is_new = os.open(self.path, flags, 0o600), False
        except OSError as error:
            if error.errno in NOT_A_FILE:  # a link or the like, in a folder of this user alone
                self.path.unlink(missing_ok=True)
            elif error.errno != errno.EISDIR:
                raise
            else:
                raise StoreError(f"{self.path} is a folder, and stands where a lock belongs; remove it") from error
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), self.path.stat()):  # still the file under the name
                held_locks.add(descriptor)
                self._descriptor, self.is_new = descriptor, is_new
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            held_locks.discard(descriptor)
            os.close(descriptor)
            raise
        os.close(descriptor)
        return False


def folder_name(digest: str, url: str, *, has_hash: bool) -> str:
    """Return the name of the folder of a data set's copies."""
    if has_hash:
        return digest
    # Names and sizes alone do not distinguish two sets, such as two runs of one writer over rows of fixed size: their
    # digests are equal, and only the address identifies the copies.
    return f"{digest}.{hashlib.sha256(url.encode()).hexdigest()[:16]}"


def folders_of(local: Path, digest: str = "") -> list[Path]:
    """Return the folders of copies below `local`, of data sets whose digests begin so, that belong to this user.

    The superuser gets those of all users.

    Raises:
        StoreAuthError: `local` itself cannot be listed.
    """
    try:
        return sorted(
            path
            for path in local.iterdir()
            if _FOLDER.fullmatch(path.name)
            and path.name.startswith(digest)
            and path.is_dir()
            and not path.is_symlink()
            and os.geteuid() in {0, path.lstat().st_uid}
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise StoreAuthError(
            f"no permission to look into the cache folder {local}; run this as its owner, or give another --local",
            path=str(local),
        ) from error


def open_root(local: Path, digest: str) -> Path:
    """Create the folder for one data set with mode 0700; if another user owns it, a variant with this user's number.

    Raises:
        StoreError: the folder cannot be created, or something else has its name.
    """
    mine = local / digest
    for candidate in (mine, local / f"{digest}.uid{os.geteuid()}"):
        try:
            local.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                candidate.mkdir(mode=0o700)
            found = candidate.lstat()
        except OSError as error:
            kind, text = StoreError, f"cannot make the cache folder {candidate}: {error.strerror}"
            if isinstance(error, PermissionError):
                kind, text = StoreAuthError, f"no permission to make the cache folder {candidate}"
            raise kind(f"{text}; give another one as {CACHE_FOLDER}", path=str(candidate)) from error
        if not stat.S_ISDIR(found.st_mode):
            raise _not_a_folder(candidate)
        if found.st_uid == os.geteuid():
            if stat.S_IMODE(found.st_mode) & 0o077:
                candidate.chmod(0o700)
            return candidate
    raise StoreError(
        f"{mine} and its private variant belong to other users; give another folder as {CACHE_FOLDER}",
        path=str(mine),
    )


def make_folder(path: Path) -> None:
    """Create a folder that the user chose, with the permissions that folders have by default.

    Raises:
        StoreError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the folder {path}: {error.strerror}; give another one as {CACHE_FOLDER}",
            path=str(path),
        ) from error


def make_parent(root: Path, target: Path) -> None:
    """Create the folders between the root and a file in it, each with mode 0700 and none of them a link.

    Raises:
        StoreError: something else has the name of a folder.
    """
    folder = root
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # removed by others while this process runs
    for part in target.parent.relative_to(root).parts:
        folder = folder / part
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir():
                raise _not_a_folder(folder) from None


def _not_a_folder(path: Path) -> StoreError:
    return StoreError(f"{path} is not a folder but stands where the cache needs one; remove it", path=str(path))


def part_of(target: Path, token: str) -> Path:
    """Return a temporary path beside the target; `token` makes it unique."""
    return target.with_name(f".{target.name}.{os.getpid()}.{token}{PART_SUFFIX}")


def remove_parts(target: Path) -> None:
    """Remove temporaries that killed processes left; only for the holder of the target's lock."""
    for left in target.parent.glob(f".{escape(target.name)}.*{PART_SUFFIX}"):
        left.unlink(missing_ok=True)


def quarantine(target: Path) -> None:
    """Rename a file that does not verify, so that it is never read and can be examined; one is kept per shard."""
    with suppress(FileNotFoundError):
        target.replace(target.with_name(f"{BAD_PREFIX}{target.name}"))


def is_quarantined(target: Path, inode: int) -> bool:
    """Return whether the file that had this name and inode was quarantined."""
    try:
        return target.with_name(f"{BAD_PREFIX}{target.name}").stat().st_ino == inode
    except OSError:
        return False


@dataclass
class Contents:
    """The files below one folder, by path; sizes in bytes."""

    copies: dict[Path, int] = field(default_factory=dict)
    """Whole shards, and any other file without a special name."""
    bad: dict[Path, int] = field(default_factory=dict)
    """Quarantined files, which did not verify."""
    parts: dict[Path, int] = field(default_factory=dict)
    """Temporaries of fetches."""
    locks: dict[Path, int] = field(default_factory=dict)
    """Lock files of fetches; their size is the number of bytes that the fetch has reserved."""

    @property
    def kept_bytes(self) -> int:
        """Bytes that count towards the limit: copies and quarantined files."""
        return sum(self.copies.values()) + sum(self.bad.values())

    @property
    def incoming_bytes(self) -> dict[Path, int]:
        """By lock of a fetch, the bytes that it has reserved; without a reservation, those of its temporaries.

        A compressed file and what it is unpacked to exist together for a moment, and one of them stays: a reservation
        counts that one.
        """
        incoming = dict(self.locks)
        for lock, size in self.partial_bytes.items():
            incoming[lock] = incoming.get(lock, 0) or size
        return incoming

    @property
    def partial_bytes(self) -> dict[Path, int]:
        """Bytes of temporaries, by the lock of their fetch."""
        partial: dict[Path, int] = {}
        for part, size in self.parts.items():
            lock = lock_of_part(part)
            partial[lock] = partial.get(lock, 0) + size
        return partial


SeenFiles = dict[str, tuple[int, Path, int]]
"""Copies of an earlier scan: inode, path and size by name. A published file never changes its size."""


def scan(root: Path, seen: SeenFiles | None = None) -> Contents:
    """Return the files below a folder; those that come or go during the scan may be missed.

    `seen` is the result of the last scan, which is updated: repeated scans then need no size of a known file.
    """
    found, fresh = Contents(), SeenFiles()
    before = {} if seen is None else seen
    for entry in _walk(root):
        name = entry.name
        facts = before.get(entry.path)
        if facts is None or facts[0] != entry.inode():
            try:
                facts = entry.inode(), Path(entry.path), entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
        if not name.startswith("."):
            fresh[entry.path] = facts
            found.copies[facts[1]] = facts[2]
        elif name.endswith(LOCK_SUFFIX):
            if name != BUDGET_LOCK:
                found.locks[facts[1]] = facts[2]
        elif name.endswith(PART_SUFFIX):
            found.parts[facts[1]] = facts[2]
        else:
            (found.bad if name.startswith(BAD_PREFIX) else found.copies)[facts[1]] = facts[2]
    if seen is not None:
        seen.clear()
        seen.update(fresh)
    return found


def _walk(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != LEASES:
                yield from _walk(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry


def lock_of(target: Path) -> Path:
    """Return the lock file under which a copy is fetched."""
    return target.with_name(f".{target.name}{LOCK_SUFFIX}")


def target_of(lock: Path) -> Path:
    """Return the copy that is fetched under a lock file."""
    return lock.with_name(lock.name[1 : -len(LOCK_SUFFIX)])


def lock_of_part(part: Path) -> Path:
    """Return the lock file of a temporary; a text shard's second file is fetched under the lock of the first."""
    match = _PART.fullmatch(part.name)
    own = part.with_name(f".{match[1] if match else part.name}{LOCK_SUFFIX}")
    data = part.with_name(f".{match[1].removesuffix('.meta')}{LOCK_SUFFIX}") if match else own
    return data if data.exists() else own


def is_held(path: Path) -> bool:
    """Return whether a living process holds the lock on this file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NOT_A_FILE or error.errno == errno.EISDIR:
            return False  # not a lock file of the cache
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_stale(contents: Contents) -> int:
    """Remove temporaries and locks of dead processes, on disk and from `contents`; return their bytes."""
    freed = 0
    for lock in {*contents.locks, *map(lock_of_part, contents.parts)}:
        with suppress(StoreTimeout, FileNotFoundError), FileLock(lock, Deadline(0.0), lock.name):
            for part in [part for part in contents.parts if lock_of_part(part) == lock]:
                part.unlink(missing_ok=True)
                freed += contents.parts.pop(part)
            contents.locks.pop(lock, None)
    return freed


def filesystem_of(folder: Path) -> str:
    """Return the type of a folder's file system, such as `ext4` or `nfs4`; "" where it is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place, best, kind = os.path.realpath(folder), "", ""
    for line in lines:
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def check_filesystem(folder: Path, limit: int | None, detect: Callable[[Path], str] = filesystem_of) -> None:
    """Return if locks are reliable in a folder; warn once for a folder where they are not.

    Raises:
        StoreError: they are not, and there is a limit, which could not be kept.
    """
    kind = detect(folder)
    if kind not in NETWORK:
        return
    where = f"the cache folder {folder} lies on a network file system ({kind}), where locks do not hold between hosts"
    if limit is not None:
        raise StoreError(
            f"{where}, so that `cache_limit` cannot be kept; give a folder of a local disk as {CACHE_FOLDER}",
            path=str(folder),
            filesystem=kind,
        )
    if str(folder) not in _warned_folders:
        _warned_folders.add(str(folder))
        warnings.warn(
            f"{where}: hosts may fetch a shard more than once; give a folder of a local disk as {CACHE_FOLDER}",
            stacklevel=2,
        )
