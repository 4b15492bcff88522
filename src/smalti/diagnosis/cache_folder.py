"""Checks of the folder for local copies: whether its locks exclude, and the space that is left."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from smalti.cache.files import FileLock, filesystem_of, is_held
from smalti.catalog import Manifest
from smalti.diagnosis.findings import Finding, State
from smalti.diagnosis.machine import byte_text
from smalti.diagnosis.store_access import set_bytes
from smalti.errors import SmaltiError
from smalti.storage.retry import Deadline

LOW_BYTES, MIN_BYTES = 4 << 30, 64 << 20
"""Free bytes below which there is a warning, and a fault; 64 MiB is the default size of a shard."""
MIN_FILES = 10_000
"""Files that the file system can still create, below which there is a warning."""
OTHER_FOLDER = "give another folder as `local`"


def check_locks(folder: Path, *, held: Callable[[Path], bool] = is_held) -> Iterator[Finding]:
    """Yield whether a lock beside the copies excludes another one, tried with a file that is removed again.

    Args:
        folder: The cache folder; it need not exist.
        held: Returns whether another process holds the lock on a file.
    """
    base = _existing_parent(folder)
    path = base / f".smalti-probe-{secrets.token_hex(8)}.lock"
    remedy = f"locks keep processes from damaging each other's copies: {OTHER_FOLDER}, on a local disk"
    try:
        with FileLock(path, Deadline(1.0), "a probe"):
            if not held(path):
                yield Finding("cache locks", State.FAULT, f"locks in {base} do not exclude anyone", remedy)
                return
    except (OSError, SmaltiError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield Finding("cache locks", State.FAULT, f"no lock can be taken in {base}: {reason}", remedy)
        return
    yield Finding("cache locks", State.OK, f"{folder}, on {filesystem_of(base) or 'a file system'}")


def check_room(folder: Path, manifest: Manifest | None, *, is_read_in_place: bool = False) -> Iterator[Finding]:
    """Yield whether the copies of a version fit into the space that is left, or how much is left if there is none."""
    base = _existing_parent(folder)
    try:
        free, files = shutil.disk_usage(base).free, os.statvfs(base)
    except OSError as error:
        yield Finding("cache space", State.FAULT, f"{base}: {error.strerror}", OTHER_FOLDER)
        return
    if files.f_files and files.f_favail < MIN_FILES:
        text = f"{base} can hold {files.f_favail:,} more files"
        yield Finding("cache files", State.WARNING, text, f"remove files (inodes are used up), or {OTHER_FOLDER}")
    text = f"{byte_text(free)} free"
    needed, largest = (0, 0) if manifest is None or is_read_in_place else set_bytes(manifest)
    remedy = f"free some, run `smalti cache clear`, or {OTHER_FOLDER}"
    if free < max(MIN_BYTES, largest):
        wanted = f"a shard takes up to {byte_text(largest)} while fetched" if largest else "too little for a shard"
        yield Finding("cache space", State.FAULT, f"{text} at {base}: {wanted}", remedy)
    elif needed > free:
        yield Finding(
            "cache space",
            State.WARNING,
            f"{text}; copies of the whole set take {byte_text(needed)}",
            f"read with cache_limit={_limit_text(free)} or less (shards are then fetched again), or {OTHER_FOLDER}",
        )
    elif free < LOW_BYTES and not needed:
        yield Finding("cache space", State.WARNING, f"{text} at {base}", remedy)
    else:
        whole = f"; the whole set takes {byte_text(needed)}" if needed else ""
        in_place = "; this set is read in place" if is_read_in_place and manifest is not None else ""
        yield Finding("cache space", State.OK, f"{text}{whole}{in_place}")


def _limit_text(free: int) -> str:
    """Return nine tenths of the free bytes, as `cache_limit` takes it. Pure."""
    unit, size = ("gb", 1 << 30) if free >= 10 << 30 else ("mb", 1 << 20)
    return f"'{max(1, int(0.9 * free / size))}{unit}'"


def _existing_parent(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))
