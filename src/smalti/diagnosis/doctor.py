"""`diagnose`: every check of this machine, and of one place if an address is given.

Also here: checks of the folder for local copies, whether its locks exclude, and the space that is left.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.cache.files import FileLock, filesystem_of, is_held
from smalti.cache.sources import detect_cache_folder
from smalti.catalog import Manifest
from smalti.diagnosis.findings import Check, Diagnosis, Finding, State, run_checks
from smalti.diagnosis.machine import IMPORT_SECONDS, byte_text, check_gpu, check_java, check_machine, check_packages
from smalti.diagnosis.store_access import PlaceFacts, check_place, is_read_in_place, set_bytes
from smalti.errors import SmaltiError
from smalti.redaction import redact_address
from smalti.storage import Place
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
        unit, size = ("gb", 1 << 30) if free >= 10 << 30 else ("mb", 1 << 20)
        limit = f"'{max(1, int(0.9 * free / size))}{unit}'"
        yield Finding(
            "cache space",
            State.WARNING,
            f"{text}; copies of the whole set take {byte_text(needed)}",
            f"read with cache_limit={limit} or less (shards are then fetched again), or {OTHER_FOLDER}",
        )
    elif free < LOW_BYTES and not needed:
        yield Finding("cache space", State.WARNING, f"{text} at {base}", remedy)
    else:
        whole = f"; the whole set takes {byte_text(needed)}" if needed else ""
        in_place = "; this set is read in place" if is_read_in_place and manifest is not None else ""
        yield Finding("cache space", State.OK, f"{text}{whole}{in_place}")


def _existing_parent(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


CHECK_SECONDS = 60.0
"""Time limit of each check that waits; all of them wait at the same time."""


def diagnose(
    place: Place | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    local: str | Path | None = None,
    write: bool = False,
    seconds: float = CHECK_SECONDS,
    on_check: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Check this machine and, if one is given, a place; never raises for what is wrong there.

    Nothing is changed, and nothing is imported that could fail: torch and Spark are examined through their metadata,
    and in processes of their own. What an error says by itself when it happens has no check.

    Args:
        place: Address or store of a shard set, or of a folder that is to hold one.
        storage_options: Options of the store.
        local: Cache folder; by default the user's own.
        write: Also try to create, replace and delete a small object at the place, which is removed again.
        seconds: Time limit of each check; they run side by side.
        on_check: Called with (done, total) after each check that may wait.

    Examples:
        >>> diagnosis = diagnose("s3://bucket/users")
        >>> to_do = [finding.to_do for finding in diagnosis.findings if finding.state is State.FAULT]
    """
    begun = time.monotonic()
    folder = detect_cache_folder() if local is None else Path(local).expanduser()
    facts = PlaceFacts()
    checks = [
        Check("machine", check_machine, seconds, "restart the machine"),
        Check("packages", check_packages, seconds, "check the disk that Python is installed on"),
        Check("java", check_java, seconds, "run `java -version`, and check JAVA_HOME"),
        Check("gpu", check_gpu, seconds + IMPORT_SECONDS, "run `nvidia-smi`"),
        Check("cache locks", partial(check_locks, folder), seconds, f"the file system hangs: {OTHER_FOLDER}"),
    ]
    if place is not None:
        look = partial(check_place, place, storage_options, facts, write=write)
        advice = "the store answers slowly or not at all: check the network, or give the checks more seconds"
        checks.append(Check("store", look, seconds, advice))
    findings = run_checks(checks, on_check)
    manifest, store = facts.manifest, facts.store
    in_place = manifest is not None and store is not None and is_read_in_place(store, manifest.shards)
    room = partial(check_room, folder, manifest, is_read_in_place=in_place)
    findings += run_checks([Check("cache space", room, seconds, f"the file system hangs: {OTHER_FOLDER}")])
    url = "" if place is None else redact_address(str(getattr(place, "url", place)))
    return Diagnosis(url, tuple(findings), time.monotonic() - begun)
