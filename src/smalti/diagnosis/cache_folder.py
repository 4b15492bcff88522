"""Checks of the folder for local copies: whether it can be written, its locks, its space, and leftovers in it."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from smalti.cache.files import NETWORK, FileLock, filesystem_of, is_held
from smalti.cache.inspect import list_copies
from smalti.catalog import Manifest
from smalti.diagnosis.findings import Finding, State, finding_of
from smalti.diagnosis.machine import byte_text
from smalti.diagnosis.store_access import set_bytes
from smalti.errors import SmaltiError
from smalti.storage.retry import Deadline

LOW_BYTES, MIN_BYTES = 4 << 30, 64 << 20
"""Free bytes below which there is a warning, and a fault; 64 MiB is the default size of a shard."""
MIN_FILES = 10_000
"""Files that the file system can still create, below which there is a warning."""
OTHER_FOLDER = "give another folder as `local`"


def check_cache(
    folder: Path, *, detect: Callable[[Path], str] = filesystem_of, held: Callable[[Path], bool] = is_held
) -> Iterator[Finding]:
    """Yield what is found about a cache folder; files that are made for it are removed.

    Args:
        folder: The folder; it need not exist.
        detect: Returns the type of a folder's file system.
        held: Returns whether another process holds the lock on a file.
    """
    base = _existing_parent(folder)
    text = str(folder) if folder.is_dir() else f"{folder} (made when it is first needed)"
    fault = _write_fault(folder, base) or _lock_fault(base, held)
    if fault is not None:
        yield fault
        return
    kind = detect(base)
    if kind in NETWORK:
        yield Finding(
            "cache locks",
            State.WARNING,
            f"{folder} is on a network file system ({kind}), where locks do not hold between hosts",
            f"`cache_limit` is refused there: {OTHER_FOLDER}, on a local disk",
        )
    else:
        yield Finding("cache folder", State.OK, f"{text}, {kind or 'a file system'} with working locks")
    yield from _leftovers(folder)


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


def _write_fault(folder: Path, base: Path) -> Finding | None:
    """Return a fault if no file can be made, tried with one that is removed."""
    if not base.is_dir():
        return Finding("cache folder", State.FAULT, f"{base} is a file, so {folder} cannot be made", OTHER_FOLDER)
    probe = base / f".smalti-probe-{secrets.token_hex(8)}"
    try:
        try:
            with probe.open("xb") as file:
                file.write(b"\0" * 4096)
                file.flush()
                os.fsync(file.fileno())
        finally:
            with suppress(FileNotFoundError):
                probe.unlink()
    except OSError as error:
        text = f"nothing can be written into {base}: {error.strerror}"
        return Finding("cache folder", State.FAULT, text, f"check its owner, mount and quota, or {OTHER_FOLDER}")
    return None


def _lock_fault(base: Path, held: Callable[[Path], bool]) -> Finding | None:
    """Return a fault if a lock cannot be taken, or does not exclude a second one; tried with a file of its own."""
    path = base / f".smalti-probe-{secrets.token_hex(8)}.lock"
    remedy = f"locks keep processes from damaging each other's copies: {OTHER_FOLDER}, on a local disk"
    try:
        with FileLock(path, Deadline(1.0), "a probe"):
            if held(path):
                return None
            return Finding("cache locks", State.FAULT, f"locks in {base} do not exclude anyone", remedy)
    except (OSError, SmaltiError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Finding("cache locks", State.FAULT, f"no lock can be taken in {base}: {reason}", remedy)


def _leftovers(folder: Path) -> Iterator[Finding]:
    try:
        copies = list_copies(folder)
    except SmaltiError as error:
        yield finding_of("cache copies", error, OTHER_FOLDER)
        return
    left, left_bytes = sum(each.left for each in copies), sum(each.left_bytes for each in copies)
    if left:
        text = f"{left:,} files of dead processes or damaged copies, {byte_text(left_bytes)}"
        yield Finding("cache copies", State.WARNING, text, f"smalti cache scrub --local {folder}")
        return
    held = sum(each.num_bytes for each in copies)
    yield Finding("cache copies", State.OK, f"{byte_text(held)} of {len(copies):,} data sets, nothing left over")
