"""Listing, verifying and cleaning a cache folder while jobs run: what they use is recognized by its locks."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smalti.cache.files import (
    BUDGET_LOCK,
    FileLock,
    folder_name,
    folders_of,
    is_held,
    lock_of,
    lock_of_part,
    remove_stale,
    scan,
)
from smalti.cache.leases import lease_paths, read_leases
from smalti.errors import FormatError, StoreTimeout
from smalti.format import ShardInfo, verify_file
from smalti.storage.retry import Deadline

_LOCK_SECONDS = 10.0  # that cleaning waits for the folder's lock


@dataclass(frozen=True)
class Copies:
    """Contents of the folder of one data set's copies; sizes in bytes."""

    folder: str
    shards: int
    num_bytes: int
    """Bytes of whole copies."""
    in_flight: int
    """Files that are being fetched."""
    left: int
    """Files of killed processes, and quarantined files."""
    left_bytes: int
    readers: int
    """Processes that read with a limit."""


@dataclass(frozen=True)
class Removed:
    """Files that were removed from one folder."""

    folder: str
    files: int
    num_bytes: int


def list_copies(local: Path, digest: str = "") -> list[Copies]:
    """Return the contents of the cache by data set."""
    found = []
    for folder in folders_of(local, digest):
        contents = scan(folder)
        fetching = {lock for lock in contents.locks if is_held(lock)}
        left = {path: size for path, size in contents.parts.items() if lock_of_part(path) not in fetching}
        left |= contents.bad | dict.fromkeys(contents.locks.keys() - fetching, 0)
        readers = sum(map(is_held, lease_paths(folder)))  # a lease lives as long as its process holds its lock
        kept = contents.copies
        found.append(
            Copies(str(folder), len(kept), sum(kept.values()), len(fetching), len(left), sum(left.values()), readers)
        )
    return found


def scrub(local: Path, digest: str = "") -> list[Removed]:
    """Remove files of killed processes, and quarantined files; whole copies stay."""
    return [_clean(folder, is_all=False) for folder in folders_of(local, digest)]


def clear(local: Path, digest: str = "") -> list[Removed]:
    """Remove all copies; a running job keeps what it has open and fetches the rest again."""
    return [_clean(folder, is_all=True) for folder in folders_of(local, digest)]


def verify_copies(local: Path, digest: str, url: str, shards: Sequence[ShardInfo]) -> tuple[int, list[tuple[str, str]]]:
    """Compare every copy of a version with its manifest.

    Returns:
        How many are good, and path and error of the others.
    """
    good, problems = 0, []
    for info in shards:
        name = folder_name(digest, url, has_hash=bool(info.raw.hashes))
        private = local / f"{name}.uid{os.geteuid()}"
        for file in info.raw_files:
            path = (private if private.is_dir() else local / name) / file.basename
            try:
                verify_file(path, file, what=str(path))
            except FileNotFoundError:
                continue
            except (FormatError, OSError) as error:
                problems.append((str(path), str(error)))
            else:
                good += 1
    return good, problems


def discard(path: Path) -> int:
    """Remove one copy unless it is being fetched; return the bytes that were removed."""
    with suppress(StoreTimeout, FileNotFoundError), FileLock(lock_of(path), Deadline(0.0), path.name):
        size = path.stat().st_size
        path.unlink()
        return size
    return 0


def _clean(folder: Path, *, is_all: bool) -> Removed:
    """Remove stale and quarantined files of one folder, and copies where `is_all`."""
    files = num_bytes = 0
    with FileLock(folder / BUDGET_LOCK, Deadline(_LOCK_SECONDS), f"cleaning {folder}"):
        found = scan(folder)
        before = len(found.parts) + len(found.locks)
        num_bytes += remove_stale(found)
        files += before - len(found.parts) - len(found.locks)
        read_leases(folder)  # removes stale ones
        for path, size in (found.bad | (found.copies if is_all else {})).items():
            with suppress(FileNotFoundError):
                path.unlink()
                files, num_bytes = files + 1, num_bytes + size
    return Removed(str(folder), files, num_bytes)
