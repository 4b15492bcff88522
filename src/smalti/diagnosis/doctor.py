"""`diagnose`: every check of this machine, and of one place if an address is given.

Of the machine: open files, shared memory, packages, Java, GPUs, and the folder for local copies, whether its locks
exclude and what space is left. Only the metadata of packages are read, and torch is imported by a process of its own,
so that a broken one is found, too. Of the place: its address, the source of its credentials, the data set, and the
rights to list and write.
"""

import importlib.metadata
import os
import resource
import secrets
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from smalti.cache.files import FileLock, filesystem_of, is_held
from smalti.cache.sources import detect_cache_folder
from smalti.catalog import Manifest, load_manifest
from smalti.catalog.manifest import INDEX
from smalti.catalog.table.shard_table import bytes_of
from smalti.diagnosis.findings import Check, Diagnosis, Finding, State, finding_of, one_line, run_checks, split_message
from smalti.errors import MissingDependency, SmaltiError, StoreAuthError, StoreError, StoreNotFound
from smalti.format import ShardInfo
from smalti.java import JAVA_PROGRAMS, detect_java
from smalti.redaction import redact_address
from smalti.storage import FsspecStore, Place, Store, open_store
from smalti.storage.probe import PROBE_FOLDER, probe_store
from smalti.storage.retry import Deadline
from smalti.storage.schemes import load_extra
from smalti.texts import byte_count

MIN_OPEN_FILES = 1024
"""Linux's usual limit. macOS has 256, which a loader with several workers and an object store exceeds."""
MIN_SHARED_BYTES = 512 << 20
"""Docker gives 64 MiB, which the batches of a few workers exceed."""
IMPORT_SECONDS = 90.0
"""Time limit for a process that imports torch and starts its driver."""
_COLLECTIONS = frozenset({"all", "dev"})
"""Extras that repeat others, or that serve this project's own development."""
_NO_SECURITY_MANAGER = 24
"""Java that removed the security manager, which the Hadoop of Spark before 4.2 needs to start."""
_GPU_DEVICES = {"NVIDIA": "dev/nvidia[0-9]*", "AMD": "dev/kfd"}
_SELECTOR = "choose the build for your driver at https://pytorch.org/get-started/locally and install it with pip"
_ASK = (
    "import torch; print(torch.cuda.is_available(), torch.cuda.device_count(), torch.version.cuda or torch.version.hip)"
)
LOW_BYTES, MIN_BYTES = 4 << 30, 64 << 20
"""Free bytes below which there is a warning, and a fault; 64 MiB is the default size of a shard."""
MIN_FILES = 10_000
"""Files that the file system can still create, below which there is a warning."""
OTHER_FOLDER = "give another folder as `local`"
LIMITS = {"request_timeout": 10.0, "request_attempts": 2}
"""Storage options that keep single requests of a diagnosis short."""
_GRANTS = "docs/storage.md lists the least rights of each store"
CHECK_SECONDS = 60.0
"""Time limit of each check that waits; all of them wait at the same time."""


def check_machine(shared_memory: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 -- not a temporary file
    """Yield the findings about limits of this process and shared memory."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    is_unlimited = limit == resource.RLIM_INFINITY
    text = "no limit" if is_unlimited else f"limit {limit:,}"
    if is_unlimited or limit >= MIN_OPEN_FILES:
        yield Finding("open files", State.OK, text)
    else:
        text = f"{text}: shards, workers and connections may need more"
        remedy = "run `ulimit -n 65536` before the program, or raise LimitNOFILE of its service"
        yield Finding("open files", State.WARNING, text, remedy)
    if sys.platform != "linux":
        return
    remedy = (
        "start the container with more (`docker run --shm-size=8g`; in Kubernetes an `emptyDir` with `medium: Memory` "
        f"at {shared_memory})"
    )
    if not shared_memory.is_dir() or not os.access(shared_memory, os.W_OK):
        yield Finding("shared memory", State.FAULT, f"{shared_memory} is missing or cannot be written", remedy)
        return
    space = shutil.disk_usage(shared_memory)
    text = f"{byte_count(space.free)} free of {byte_count(space.total)} in {shared_memory}"
    if space.free < MIN_SHARED_BYTES:
        yield Finding("shared memory", State.WARNING, f"{text}: batches of worker processes pass through it", remedy)
    else:
        yield Finding("shared memory", State.OK, text)


def check_packages() -> Iterator[Finding]:
    """Yield a fault for each package that is missing or does not fit, or one finding that all of them fit."""
    try:
        extras = set(importlib.metadata.metadata("smalti").get_all("Provides-Extra") or ()) - _COLLECTIONS
        requirements = [Requirement(line) for line in importlib.metadata.requires("smalti") or ()]
    except importlib.metadata.PackageNotFoundError:
        text = "smalti runs without the metadata of an installation"
        yield Finding("packages", State.SKIPPED, text, "install it with pip to have its requirements checked")
        return
    declared: dict[str, dict[str, Requirement]] = defaultdict(dict)  # by extra, "" for all, and canonical name
    for wanted in requirements:
        name = canonicalize_name(wanted.name)
        if name == "smalti":
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            declared[""][name] = wanted
            continue
        for extra in extras:
            if wanted.marker.evaluate({"extra": extra}):
                declared[extra][name] = wanted
    in_use = [extra for extra, wanted_by in declared.items() if not extra or all(map(_version_text, wanted_by))]
    faults = []
    for extra, wanted in [(name, wanted) for name in in_use for wanted in declared[name].values()]:
        version = _version(wanted.name)
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            whose = f"smalti[{extra}]" if extra else "smalti"
            text = f"{wanted.name} {version}" if version else f"{wanted.name} is not installed or has broken metadata"
            needed = f"{wanted.name}{wanted.specifier}"
            remedy = f"pip install '{needed}'"
            faults.append(Finding("packages", State.FAULT, f"{text}; {whose} needs {needed}", remedy))
    if _version_text("pyspark") and _version_text("databricks-connect"):
        text = "pyspark beside databricks-connect: both install the package `pyspark`"
        remedy = "pip uninstall -y pyspark databricks-connect, then install the one that you need"
        faults.append(Finding("packages", State.FAULT, text, remedy))
    yield from dict.fromkeys(faults)
    if not faults:
        shown = ", ".join(sorted(filter(None, in_use))) or "no extra"
        smalti, python = _version_text("smalti"), sys.version.split()[0]
        text = f"all fit the requirements of smalti {smalti} ({shown}), on Python {python}"
        yield Finding("packages", State.OK, text)


def _version(package: str) -> Version | None:
    """Return the version of an installed package; None if it is not installed."""
    text = _version_text(package)
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _version_text(package: str) -> str:
    """Return the version as text; "" if the package is not installed, or its metadata are broken."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_java(places: tuple[str, ...] = JAVA_PROGRAMS) -> Iterator[Finding]:
    """Yield whether there is a Java that the installed Spark starts on; `places` are tried after JAVA_HOME and PATH."""
    spark = _version("pyspark")
    if spark is None:
        yield Finding("java", State.SKIPPED, "not needed without PySpark")
        return
    try:
        java = detect_java(places)
    except MissingDependency as error:
        text, _, remedy = one_line(error).partition(". ")
        yield Finding("java", State.FAULT, text, remedy)
        return
    text = f"Java {java.version} in {java.home}"
    if java.version >= _NO_SECURITY_MANAGER and spark < Version("4.2"):
        text = f"{text}; Spark {spark} does not start on it"
        yield Finding("java", State.FAULT, text, "install Java 17 or 21, and set JAVA_HOME to its folder")
    else:
        yield Finding("java", State.OK, text)


def check_gpu(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield whether torch uses the GPUs of this machine; `root` is the folder below which their devices are."""
    gpus = {maker: len(list(root.glob(pattern))) for maker, pattern in _GPU_DEVICES.items()}
    shown = ", ".join(f"{number} of {maker}" for maker, number in gpus.items() if number)
    version = _version("torch")
    if version is None or not shown:
        yield Finding("gpu", State.SKIPPED, "none in this machine" if version else "PyTorch is not installed")
        return
    driver = "check the driver with `nvidia-smi`, and restart the machine"
    try:
        done = subprocess.run(  # noqa: S603 -- this very Python; a broken driver can end the process
            [sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"{shown}, but torch did not answer within {IMPORT_SECONDS:.0f} s"
        yield Finding("gpu", State.FAULT, text, driver)
        return
    answer = done.stdout.split()
    if done.returncode == 0 and answer[0] == "True":
        yield Finding("gpu", State.OK, f"{shown}, {answer[1]} usable by torch {version}, built for {answer[2]}")
    elif done.returncode == 0 and answer[2] == "None":
        text = f"{shown} in this machine, but torch {version} is a build for the CPU"
        yield Finding("gpu", State.FAULT, text, _SELECTOR)
    else:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        why = f": {lines[-1][:200]}" if lines else ""
        text = f"{shown}, but torch {version} can use none{why}"
        yield Finding("gpu", State.FAULT, text, f"{driver}; or {_SELECTOR}")


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
    text = f"{byte_count(free)} free"
    needed = largest = 0  # bytes that copies of the whole version take, and its largest shard while it is fetched
    if manifest is not None and not is_read_in_place and len(manifest.shards):
        sizes = bytes_of(manifest.shards)
        needed, largest = int(sizes.raw.sum()), int((sizes.raw + sizes.zipped).max())
    remedy = f"free some, run `smalti cache clear`, or {OTHER_FOLDER}"
    if free < max(MIN_BYTES, largest):
        wanted = f"a shard takes up to {byte_count(largest)} while fetched" if largest else "too little for a shard"
        yield Finding("cache space", State.FAULT, f"{text} at {base}: {wanted}", remedy)
    elif needed > free:
        unit, size = ("gb", 1 << 30) if free >= 10 << 30 else ("mb", 1 << 20)
        limit = f"'{max(1, int(0.9 * free / size))}{unit}'"
        yield Finding(
            "cache space",
            State.WARNING,
            f"{text}; copies of the whole set take {byte_count(needed)}",
            f"read with cache_limit={limit} or less (shards are then fetched again), or {OTHER_FOLDER}",
        )
    elif free < LOW_BYTES and not needed:
        yield Finding("cache space", State.WARNING, f"{text} at {base}", remedy)
    else:
        whole = f"; the whole set takes {byte_count(needed)}" if needed else ""
        in_place = "; this set is read in place" if is_read_in_place and manifest is not None else ""
        yield Finding("cache space", State.OK, f"{text}{whole}{in_place}")


def _existing_parent(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.exists()), Path("/"))


@dataclass
class PlaceFacts:
    """The facts about a place that other checks need."""

    manifest: Manifest | None = None
    """The newest version; None if there is none, or it could not be read."""
    store: Store | None = None
    """The store; None if it could not be opened."""


def check_place(
    place: Place, options: Mapping[str, Any] | None, facts: PlaceFacts, *, write: bool = False
) -> Iterator[Finding]:
    """Yield what is found about a place, up to the first fault that makes all later checks pointless.

    Args:
        place: Address or store.
        options: Options of the store.
        facts: Filled in on the way.
        write: Try to put, replace and delete a probe object, which is removed again.
    """
    try:
        store = facts.store = open_store(place, {**LIMITS, **(options or {})})
        for package in store.scheme.packages if isinstance(store, FsspecStore) else ():
            load_extra(package)
    except MissingDependency as error:
        text, _, remedy = one_line(error).partition(": ")
        yield Finding("address", State.FAULT, text, remedy)
        return
    except (SmaltiError, TypeError, ValueError) as error:
        yield finding_of("address", error)
        return
    data_set = _data_set(store, facts)
    if isinstance(store, FsspecStore):
        try:  # errors of requests do not say where the credentials come from
            source = store.login()
        except Exception as error:  # noqa: BLE001 -- of any client library; the requests show whether it matters
            yield Finding("credentials", State.WARNING, one_line(error), store.scheme.credentials_help)
        else:
            text = f"from {source}" if source else "found by the client itself, or none needed"
            yield Finding("credentials", State.OK, text)
    yield data_set
    if data_set.state is State.FAULT:
        return
    is_read_only = isinstance(store, FsspecStore) and store.scheme.is_read_only
    yield _listing(store, is_read_only=is_read_only)
    if is_read_only:
        yield Finding("write", State.SKIPPED, "this kind of store is read only")
        return
    if not write:
        yield Finding("write", State.SKIPPED, "not tried", "--write tries it with a small object, which it removes")
        return
    folder = store.local_path(PROBE_FOLDER)
    new = [] if folder is None else [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield from _try_writing(store)
    finally:
        for path in new:  # object stores have no empty folders
            with suppress(OSError):  # not empty, or not made
                path.rmdir()


def _data_set(store: Store, facts: PlaceFacts) -> Finding:
    """Return the newest version, or the library's error about opening it."""
    try:
        manifest = facts.manifest = load_manifest(store)
    except StoreNotFound:
        # Opening does not distinguish a bucket that does not exist from an empty one.
        try:
            store.get_range(INDEX, 0, 1)
        except StoreError as error:
            if error.facts.get("is_bucket"):
                return finding_of("bucket", error)
        text = f"no shard set at {store.url}"
        return Finding("data set", State.WARNING, text, "check the address, unless you are about to write the first")
    except SmaltiError as error:
        return finding_of("data set", error)
    shards = manifest.shards
    name = f"version {manifest.version}" if manifest.version else "a plain MDS set, without versions"
    text = f"{name}: {manifest.rows:,} samples in {len(shards):,} shards, {byte_count(manifest.num_bytes)}"
    if len(shards):
        first = shards[0]
        text = f"{text}, {first.format}" + (f" in {first.compression}" if first.zip is not None else "")
    return Finding("data set", State.OK, text)


def _listing(store: Store, *, is_read_only: bool) -> Finding:
    """Return whether the store may be listed, which only vacuum and delete need."""
    try:
        next(iter(store.list("_versions")), None)
    except StoreAuthError:
        text = "not allowed with these credentials; reading works without, vacuum and delete do not"
        return Finding("list", State.WARNING, text, f"grant it (S3: s3:ListBucket on the bucket); {_GRANTS}")
    except StoreError as error:
        if is_read_only:
            return Finding("list", State.SKIPPED, "a web server cannot be listed; reading a set needs no listing")
        return finding_of("list", error)
    return Finding("list", State.OK, "allowed")


def _try_writing(store: Store) -> Iterator[Finding]:
    probe = probe_store(store)
    failed = [step for step in probe.steps if step.problem]
    for step in failed:
        found, advice = split_message(step.problem)
        grant = f"grant it (S3: s3:PutObject and s3:DeleteObject on the objects); {_GRANTS}"
        if step.is_refused and step.name == "list":
            continue  # reported before
        if step.is_refused:
            yield Finding("write", State.FAULT, f"{step.name}: not allowed with these credentials", grant)
        else:
            yield Finding("write", State.FAULT, f"{step.name}: {found}", advice or "check the store")
    if failed:
        return
    yield Finding("write", State.OK, "create, create only once, replace and delete work")
    try:
        store.check_conditional_puts(PROBE_FOLDER)
    except StoreError as error:
        text, advice = split_message(one_line(error))
        is_known = bool(error.facts.get("is_unsupported"))
        yield Finding("conditional put", State.WARNING if is_known else State.FAULT, text, advice)
    else:
        yield Finding("conditional put", State.OK, "honoured (If-Match)")


def is_read_in_place(store: Store, shards: Sequence[ShardInfo]) -> bool:
    """Return whether shards are files on this machine that need not be unpacked, so that none is copied."""
    return store.local_path(INDEX) is not None and not bytes_of(shards).zipped.any()


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
    checks: list[Check] = [
        ("machine", check_machine, seconds, "restart the machine"),
        ("packages", check_packages, seconds, "check the disk that Python is installed on"),
        ("java", check_java, seconds, "run `java -version`, and check JAVA_HOME"),
        ("gpu", check_gpu, seconds + IMPORT_SECONDS, "run `nvidia-smi`"),
        ("cache locks", partial(check_locks, folder), seconds, f"the file system hangs: {OTHER_FOLDER}"),
    ]
    if place is not None:
        look = partial(check_place, place, storage_options, facts, write=write)
        advice = "the store answers slowly or not at all: check the network, or give the checks more seconds"
        checks.append(("store", look, seconds, advice))
    findings = run_checks(checks, on_check)
    manifest, store = facts.manifest, facts.store
    in_place = manifest is not None and store is not None and is_read_in_place(store, manifest.shards)
    room = partial(check_room, folder, manifest, is_read_in_place=in_place)
    findings += run_checks([("cache space", room, seconds, f"the file system hangs: {OTHER_FOLDER}")])
    url = "" if place is None else redact_address(str(getattr(place, "url", place)))
    return Diagnosis(url, tuple(findings), time.monotonic() - begun)
