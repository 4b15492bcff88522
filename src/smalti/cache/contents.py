"""What lies in the folder of one data set's copies, told by names, sizes and locks: nothing that is remembered.

A killed process leaves temporaries and a lock file that nobody holds; both are told from live ones by the kernel's
lock, so that no account of bytes can ever be wrong after it.
"""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from smalti.cache.folders import BAD_PREFIX, PART_SUFFIX
from smalti.cache.locking import NO_LOCKS, FileLock
from smalti.errors import StoreTimeout
from smalti.storage.retry import Deadline

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
