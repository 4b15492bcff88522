"""Facts about the machine and the software, without which a figure says nothing."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.peers import distributions
from benchmarks.process import ROOT


def machine_facts(work: Path) -> dict[str, Any]:
    """Processor, memory, disk, versions and the state of the working tree; JSON."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "work_folder": {"path": str(work), "file_system": _file_system(work)},
        "free_disk_gb": round(shutil.disk_usage(work).free / 1e9),
        "versions": distributions(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_files": len(_git("status", "--porcelain", "--", "src").splitlines()),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The kind of file system that holds the folder, from the longest mount point above it."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines():
        _, point, found = line.split()[:3]
        if folder.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
