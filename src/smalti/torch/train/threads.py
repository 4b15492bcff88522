"""The cores that a process may use, and how torch's threads wait for each other; imports no torch."""

import os
from collections.abc import Mapping
from pathlib import Path

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Processor time that the container may use: microseconds, or `max`, in each period of so many microseconds."""


def waiting_of_threads(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which OpenMP's threads spin for some 50 microseconds while they wait, and then sleep.

    They are read when torch is first imported. Empty if the environment has a choice of its own.
    """
    chosen = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    if any(name in environment for name in chosen):
        return {}
    # libgomp, which torch's packages for Linux contain, spins for about 10 ms by default: while another process needs
    # a core, a step takes several times as long. If its threads sleep at once, a step on idle cores takes up to twice
    # as long. See the rows `train-threads` of the benchmarks.
    return {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def detect_cores(cpu_max: Path = _CPU_MAX) -> int:
    """Return the number of processor cores that this process may use: those of its affinity, or a container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroups of version 2, or no limit, which is `max`
        return cores
