"""Looking at a cache folder and cleaning it, safely beside running jobs: what lives is told by its locks."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smalti.cache.fetch import folder_name
from smalti.cache.files import BUDGET_LOCK, Contents, is_held, lock_of, lock_of_part, reap, scan
from smalti.cache.leases import leases_of
from smalti.cache.locking import FileLock
from smalti.errors import FormatError, StoreAuthError, StoreTimeout
from smalti.format import ShardInfo, verify_file
from smalti.storage.retry import Deadline

_FOLDER = re.compile(r"[0-9a-f]{32,128}(?:\.[0-9a-f]{16})?(?:\.uid\d+)?")
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Copies:
    """What lies in the folder of one data set's copies; sizes in bytes."""

    folder: str
    shards: int
    num_bytes: int
    """Of whole copies."""
    in_flight: int
    """Files that processes are fetching now."""
    left: int
    """What killed processes left, and files that did not verify."""
    left_bytes: int
    readers: int
    """Living processes that read under a limit."""


@dataclass(frozen=True)
class Removed:
    """What a cleaning removed."""

    folder: str
    files: int
    num_bytes: int


def folders_of(local: Path, digest: str = "") -> list[Path]:
    """The folders of copies below `local`, of the data sets whose digests begin so, that this user may look into.

    Other folders are nobody's here; the superuser sees those of all users.

    Raises:
        StoreAuthError: `local` itself cannot be looked at.
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


def list_copies(local: Path, digest: str = "") -> list[Copies]:
    """What there is now, by data set."""
    found = []
    for folder in folders_of(local, digest):
        contents = scan(folder)
        fetching = {lock for lock in contents.locks if is_held(lock)}
        left = {path: size for path, size in contents.parts.items() if lock_of_part(path) not in fetching}
        left |= contents.bad | dict.fromkeys(contents.locks.keys() - fetching, 0)
        readers = sum(map(is_held, leases_of(folder)))
        kept = contents.copies
        found.append(
            Copies(str(folder), len(kept), sum(kept.values()), len(fetching), len(left), sum(left.values()), readers)
        )
    return found


def scrub(local: Path, digest: str = "") -> list[Removed]:
    """Removes what killed processes left, and files that did not verify; whole copies stay."""
    return [_cleaned(folder, _scrubbed) for folder in folders_of(local, digest)]


def clear(local: Path, digest: str = "") -> list[Removed]:
    """Removes all copies; a running job keeps what it has open and fetches the rest again."""
    return [_cleaned(folder, _cleared) for folder in folders_of(local, digest)]


def verify_copies(local: Path, digest: str, url: str, shards: Sequence[ShardInfo]) -> tuple[int, list[tuple[str, str]]]:
    """Compares every copy of a version with its manifest; how many are good, and what is wrong with the others."""
    good, problems = 0, []
    for info in shards:
        name = folder_name(digest, url, has_hash=bool(info.raw.hashes))
        mine = local / f"{name}.uid{os.geteuid()}"
        for file in info.raw_files:
            path = (mine if mine.is_dir() else local / name) / file.basename
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
    """Removes one copy unless it is being fetched; how many bytes it was."""
    with suppress(StoreTimeout, FileNotFoundError), FileLock(lock_of(path), Deadline(0.0), path.name):
        size = path.stat().st_size
        path.unlink()
        return size
    return 0


def _scrubbed(folder: Path, found: Contents) -> list[Path]:
    for lease in leases_of(folder):
        if not is_held(lease):
            with suppress(OSError):  # a folder may stay: it is nobody's lease
                lease.unlink(missing_ok=True)
    return list(found.bad)


def _cleared(folder: Path, found: Contents) -> list[Path]:
    return [*_scrubbed(folder, found), *found.copies]


def _cleaned(folder: Path, chosen: Callable[[Path, Contents], list[Path]]) -> Removed:
    files = num_bytes = 0
    with FileLock(folder / BUDGET_LOCK, Deadline(_PATIENCE_SECONDS), f"cleaning {folder}"):
        found = scan(folder)
        before = len(found.parts) + len(found.locks)
        num_bytes += reap(found)
        files += before - len(found.parts) - len(found.locks)
        sizes = found.copies | found.bad
        for path in chosen(folder, found):
            with suppress(FileNotFoundError):
                path.unlink()
                files, num_bytes = files + 1, num_bytes + sizes[path]
    return Removed(str(folder), files, num_bytes)
