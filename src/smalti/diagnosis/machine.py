"""Checks of the machine: Python, platform, open files, shared memory."""

import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from smalti.diagnosis.findings import Finding, State

MIN_PYTHON = (3, 10)
MIN_OPEN_FILES = 1024
"""Linux's usual limit. macOS has 256, which a loader with several workers and an object store exceeds."""
MIN_SHARED_BYTES = 512 << 20
"""Docker gives 64 MiB, which the batches of a few workers exceed."""


def check_machine(shared_memory: Path = Path("/dev/shm")) -> Iterator[Finding]:  # noqa: S108 -- not a temporary file
    """Yield what is found about Python, limits of this process, and shared memory."""
    yield _python()
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if sys.platform == "linux":
        yield _shared_memory(shared_memory)


def _python() -> Finding:
    version = platform.python_version()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{version} on {platform.system()} {platform.machine()}, {cores} cores"
    if sys.version_info < MIN_PYTHON:
        return Finding("python", State.FAULT, text, "use Python 3.10 or newer")
    if sys.maxsize < 1 << 32:
        return Finding("python", State.FAULT, f"{text}, 32 bits", "use a 64-bit Python: shards are mapped into memory")
    return Finding("python", State.OK, text)


def _open_files(limit: int) -> Finding:
    is_unlimited = limit == resource.RLIM_INFINITY
    text = "no limit" if is_unlimited else f"limit {limit:,}"
    if is_unlimited or limit >= MIN_OPEN_FILES:
        return Finding("open files", State.OK, text)
    return Finding(
        "open files",
        State.WARNING,
        f"{text}: shards, workers and connections may need more",
        "run `ulimit -n 65536` before the program, or raise LimitNOFILE of its service",
    )


def _shared_memory(folder: Path) -> Finding:
    remedy = (
        "start the container with more (`docker run --shm-size=8g`; in Kubernetes an `emptyDir` with `medium: Memory` "
        f"at {folder})"
    )
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Finding("shared memory", State.FAULT, f"{folder} is missing or cannot be written", remedy)
    space = shutil.disk_usage(folder)
    text = f"{byte_text(space.free)} free of {byte_text(space.total)} in {folder}"
    if space.free < MIN_SHARED_BYTES:
        return Finding("shared memory", State.WARNING, f"{text}: batches of worker processes pass through it", remedy)
    return Finding("shared memory", State.OK, text)


def byte_text(num_bytes: float) -> str:
    """Return a byte count for people, such as "1.5 GiB". Pure."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,.0f} bytes"
