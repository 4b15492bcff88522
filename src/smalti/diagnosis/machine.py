"""Checks of this machine: open files, shared memory, packages, Java and GPUs.

Only the metadata of packages are read, and torch is imported by a process of its own, so that a broken one is found,
too.
"""

import importlib.metadata
import os
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from smalti.diagnosis.findings import Finding, State, one_line
from smalti.errors import MissingDependency
from smalti.java import JAVA_PROGRAMS, detect_java

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
    text = f"{byte_text(space.free)} free of {byte_text(space.total)} in {shared_memory}"
    if space.free < MIN_SHARED_BYTES:
        yield Finding("shared memory", State.WARNING, f"{text}: batches of worker processes pass through it", remedy)
    else:
        yield Finding("shared memory", State.OK, text)


def check_packages() -> Iterator[Finding]:
    """Yield a fault for each package that is missing or does not fit, or one finding that all of them fit."""
    try:
        declared = _declared_requirements()
    except importlib.metadata.PackageNotFoundError:
        text = "smalti runs without the metadata of an installation"
        yield Finding("packages", State.SKIPPED, text, "install it with pip to have its requirements checked")
        return
    in_use = [extra for extra, wanted in declared.items() if not extra or all(map(_version_text, wanted))]
    faults = [fault for extra in in_use for wanted in declared[extra].values() if (fault := _misfit(extra, wanted))]
    if _version_text("pyspark") and _version_text("databricks-connect"):
        text = "pyspark beside databricks-connect: both install the package `pyspark`"
        remedy = "pip uninstall -y pyspark databricks-connect, then install the one that you need"
        faults.append(Finding("packages", State.FAULT, text, remedy))
    yield from dict.fromkeys(faults)
    if not faults:
        extras = ", ".join(sorted(filter(None, in_use))) or "no extra"
        smalti, python = _version_text("smalti"), sys.version.split()[0]
        text = f"all fit the requirements of smalti {smalti} ({extras}), on Python {python}"
        yield Finding("packages", State.OK, text)


def _declared_requirements() -> dict[str, dict[str, Requirement]]:
    """Return the requirements of the installed Smalti by extra ("" for all) and canonical name of the package.

    Raises:
        importlib.metadata.PackageNotFoundError: it was not installed.
    """
    declared: dict[str, dict[str, Requirement]] = defaultdict(dict)
    metadata = importlib.metadata.metadata("smalti")
    extras = set(metadata.get_all("Provides-Extra") or ()) - _COLLECTIONS
    for line in importlib.metadata.requires("smalti") or ():
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        if name == "smalti":
            continue
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            declared[""][name] = wanted
            continue
        for extra in extras:
            if wanted.marker.evaluate({"extra": extra}):
                declared[extra][name] = wanted
    return dict(declared)


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


def _misfit(extra: str, wanted: Requirement) -> Finding | None:
    version = _version(wanted.name)
    if version is not None and wanted.specifier.contains(version, prereleases=True):
        return None
    whose = f"smalti[{extra}]" if extra else "smalti"
    text = f"{wanted.name} {version}" if version else f"{wanted.name} is not installed or has broken metadata"
    needed = f"{wanted.name}{wanted.specifier}"
    return Finding("packages", State.FAULT, f"{text}; {whose} needs {needed}", f"pip install '{needed}'")


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


def byte_text(num_bytes: float) -> str:
    """Return a byte count for people, such as "1.5 GiB". Pure."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"
