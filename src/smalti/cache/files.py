"""What lies in the folder of one data set's copies, told by names, sizes and locks: nothing that is remembered.

A killed process leaves temporaries and a lock file that nobody holds; both are told from live ones by the kernel's
lock, so that no account of bytes can ever be wrong after it.

Private folders and files of the cache: mode 0700, owned by this user, never through a planted link.

What kind of file system a folder lies on: over a network, locks are weak.

Which files were verified in this run, known to this process and to its forks. No files are read here.
"""

import errno
import fcntl
import mmap
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from smalti.cache.locking import NO_LOCKS, FileLock
from smalti.errors import StoreAuthError, StoreError, StoreTimeout
from smalti.storage.retry import Deadline

PART_SUFFIX = ".part"
BAD_PREFIX = ".bad-"


def open_root(local: Path, digest: str) -> Path:
    """The folder for one data set, made with mode 0700; a variant with the user's number when another user owns it.

    Raises:
        StoreError: the folder cannot be made, or something else stands in its place.
    """
    mine = local / digest
    for candidate in (mine, local / f"{digest}.uid{os.geteuid()}"):
        try:
            local.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                candidate.mkdir(mode=0o700)
            found = candidate.lstat()
        except PermissionError as error:
            raise StoreAuthError(
                f"no permission to make the cache folder {candidate}; give another one as `local`", path=str(candidate)
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot make the cache folder {candidate}: {error.strerror}; give another one as `local`",
                path=str(candidate),
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise StoreError(
                f"{candidate} is not a folder but stands where the cache needs one; remove it", path=str(candidate)
            )
        if found.st_uid == os.geteuid():
            if stat.S_IMODE(found.st_mode) & 0o077:
                candidate.chmod(0o700)
            return candidate
    raise StoreError(
        f"{mine} and its private variant belong to other users; give another folder as `local`", path=str(mine)
    )


def make_parent(root: Path, target: Path) -> None:
    """The folders between the root and a file in it, each 0700 and none of them a link."""
    folder = root
    if not root.is_dir():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)  # somebody cleaned up while we run
    for part in target.parent.relative_to(root).parts:
        folder = folder / part
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if folder.is_symlink() or not folder.is_dir():
                raise StoreError(
                    f"{folder} is not a folder but stands where the cache needs one; remove it", path=str(folder)
                ) from None


def part_of(target: Path, token: str) -> Path:
    """A temporary name beside the target; `token` makes it unique."""
    return target.with_name(f".{target.name}.{os.getpid()}.{token}{PART_SUFFIX}")


def remove_parts(target: Path) -> None:
    """Remove temporaries that killed processes left; only for the holder of the target's lock."""
    for left in target.parent.glob(f".{_escape(target.name)}.*{PART_SUFFIX}"):
        left.unlink(missing_ok=True)


def quarantine(target: Path) -> None:
    """Put a file that does not verify aside, one per shard, so that it is never served and can be looked at."""
    try:
        target.replace(target.with_name(f"{BAD_PREFIX}{target.name}"))
    except FileNotFoundError:
        return


def is_put_aside(target: Path, inode: int) -> bool:
    """Return whether the file that had this name and inode was put aside."""
    try:
        return target.with_name(f"{BAD_PREFIX}{target.name}").stat().st_ino == inode
    except OSError:
        return False


def _escape(name: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


LOCK_SUFFIX = ".lock"
LEASES = ".leases"
BUDGET_LOCK = ".budget.lock"
_PART = re.compile(r"\.(.+)\.\d+\.[0-9a-f]+(?:\.raw)?\.part")


@dataclass
class Contents:
    """The files below one folder, by path; sizes in bytes."""

    copies: dict[Path, int] = field(default_factory=dict)
    """Whole shards, and whatever else has a plain name."""
    bad: dict[Path, int] = field(default_factory=dict)
    """Files that did not verify, put aside."""
    parts: dict[Path, int] = field(default_factory=dict)
    """Temporaries of fetches."""
    locks: dict[Path, int] = field(default_factory=dict)
    """Locks of fetches; their size is what the fetch has asked room for."""

    @property
    def kept(self) -> int:
        """Bytes that stay: copies, and what was put aside."""
        return sum(self.copies.values()) + sum(self.bad.values())

    @property
    def coming(self) -> dict[Path, int]:
        """By the locks of fetches, the bytes that they asked room for; of those that asked for none, what they have.

        A compressed file and what it is unpacked to are both there for a moment, of which one stays.
        """
        coming = dict(self.locks)
        for lock, size in self.brought.items():
            coming[lock] = coming.get(lock, 0) or size
        return coming

    @property
    def brought(self) -> dict[Path, int]:
        """Bytes of temporaries, by the lock of the fetch that they belong to."""
        brought: dict[Path, int] = {}
        for part, size in self.parts.items():
            lock = lock_of_part(part)
            brought[lock] = brought.get(lock, 0) + size
        return brought


Known = dict[str, tuple[int, Path, int]]
"""Copies that were seen before: inode, path and size by name. What has a name here never changes its size."""


def scan(root: Path, known: Known | None = None) -> Contents:
    """What is there now; files that come or go meanwhile may be missed. A folder that is not there is empty.

    Args:
        root: The folder.
        known: What the last look saw, which is brought up to date: for whoever looks again and again.
    """
    found, fresh = Contents(), Known()
    before = {} if known is None else known
    for entry in _walk(root):
        name = entry.name
        seen = before.get(entry.path)
        if seen is None or seen[0] != entry.inode():
            try:
                seen = entry.inode(), Path(entry.path), entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
        if not name.startswith("."):
            fresh[entry.path] = seen
            found.copies[seen[1]] = seen[2]
        elif name.endswith(LOCK_SUFFIX):
            if name != BUDGET_LOCK:
                found.locks[seen[1]] = seen[2]
        elif name.endswith(PART_SUFFIX):
            found.parts[seen[1]] = seen[2]
        else:
            (found.bad if name.startswith(BAD_PREFIX) else found.copies)[seen[1]] = seen[2]
    if known is not None:
        known.clear()
        known.update(fresh)
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
    """The lock of whoever fetches this file."""
    return target.with_name(f".{target.name}{LOCK_SUFFIX}")


def target_of(lock: Path) -> Path:
    """The file whose lock this is."""
    return lock.with_name(lock.name[1 : -len(LOCK_SUFFIX)])


def lock_of_part(part: Path) -> Path:
    """The lock under which a temporary was made; a text shard's second file is brought under the first one's."""
    match = _PART.fullmatch(part.name)
    own = part.with_name(f".{match[1] if match else part.name}{LOCK_SUFFIX}")
    data = part.with_name(f".{match[1].removesuffix('.meta')}{LOCK_SUFFIX}") if match else own
    return data if data.exists() else own


def is_held(path: Path) -> bool:
    """Whether a process that lives holds the lock on this file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NO_LOCKS or error.errno == errno.EISDIR:
            return False  # nobody of ours made it
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def reap(found: Contents) -> int:
    """Removes what processes left that died in a fetch, here and from `found`; how many bytes it were."""
    freed = 0
    for lock in {*found.locks, *map(lock_of_part, found.parts)}:
        with suppress(StoreTimeout, FileNotFoundError), FileLock(lock, Deadline(0.0), lock.name):
            for part in [part for part in found.parts if lock_of_part(part) == lock]:
                part.unlink(missing_ok=True)
                freed += found.parts.pop(part)
            found.locks.pop(lock, None)
    return freed


NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs",
    "fuse.s3fs", "fuse.gcsfuse", "fuse.blobfuse2", "fuse.mountpoint-s3", "fuse.goofys", "fuse.rclone", "fuse.glusterfs",
}  # fmt: skip
_told: set[str] = set()


def filesystem_of(folder: Path) -> str:
    """The type of the file system, such as `ext4` or `nfs4`; nothing where the system does not say."""
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
    """Return if locks can be relied on; warn once where they cannot.

    Raises:
        StoreError: they cannot, and a limit was asked for, which nobody could keep.
    """
    kind = detect(folder)
    if kind not in NETWORK:
        return
    where = f"the cache folder {folder} lies on a network file system ({kind}), where locks do not hold between hosts"
    if limit is not None:
        raise StoreError(
            f"{where}, so that `cache_limit` cannot be kept; give a folder of a local disk as `local`",
            path=str(folder),
            filesystem=kind,
        )
    if str(folder) not in _told:
        _told.add(str(folder))
        warnings.warn(
            f"{where}: hosts may fetch a shard more than once; give a folder of a local disk as `local`", stacklevel=2
        )


class Verified:
    """The state in which each shard's files were when they were verified; one fork's work is known to all.

    A loader's worker processes would otherwise hash the whole set once each, and once more in every epoch. The memory
    is anonymous and shared: a fork has it too, nothing is left behind, and what nobody wrote takes no space. Eight
    aligned bytes are written at once, so that a reader sees a whole entry or none.
    """

    def __init__(self, num_shards: int) -> None:
        memory = mmap.mmap(-1, max(1, num_shards) * 8)
        self._marks = np.frombuffer(memory, np.uint64)

    def add(self, shard_id: int, paths: Sequence[Path], *, with_status: bool = True) -> None:
        """Remembers that these files, as they are now, hold the shard."""
        self._marks[shard_id] = _mark(paths, with_status=with_status)

    def knows(self, shard_id: int, paths: Sequence[Path], *, with_status: bool = True) -> bool:
        """Whether these files were verified, and have not changed since.

        Raises:
            OSError: a file cannot be looked at.
        """
        return bool(self._marks[shard_id]) and bool(self._marks[shard_id] == _mark(paths, with_status=with_status))

    def is_changed(self, shard_id: int, paths: Sequence[Path], *, with_status: bool = True) -> bool:
        """Return whether files were verified as this shard, and are not those, or not as they were, any more.

        Raises:
            OSError: a file cannot be looked at.
        """
        return bool(self._marks[shard_id]) and not self.knows(shard_id, paths, with_status=with_status)


def _mark(paths: Sequence[Path], *, with_status: bool) -> Any:
    """Device, inode, size and times of the files, as one number that is not 0."""
    facts = []
    for path in paths:
        found = os.stat(path)  # noqa: PTH116 -- links are followed: what counts is the content
        status = found.st_ctime_ns if with_status else 0
        facts.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, status))
    return np.uint64(xxhash.xxh3_64_intdigest(repr(facts).encode()) | 1)
