"""`diagnose`: every check of this machine, and of one place if an address is given."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from smalti.cache.sources import detect_cache_folder
from smalti.diagnosis.cache_folder import OTHER_FOLDER, check_locks, check_room
from smalti.diagnosis.findings import Check, Diagnosis, run_checks
from smalti.diagnosis.machine import IMPORT_SECONDS, check_gpu, check_java, check_machine, check_packages
from smalti.diagnosis.store_access import PlaceFacts, check_place, is_read_in_place
from smalti.storage import Place
from smalti.storage.redact import redact_address

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
