"""One sample at a time, at random, from a set that is open and in the page cache."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers import find
from benchmarks.task import Figures, Task

_WARM_UP = 2_000


def measure_access(task: Task) -> Figures:
    """Median and 99th percentile of single reads, microseconds."""
    reads = int(task.options.get("reads", 20_000))
    take = find(task.peer).sampler(task.set_folder, task.kind)
    _check(task, take)
    ids = np.random.default_rng(7).integers(0, task.samples, reads + _WARM_UP).tolist()
    for sample_id in ids[:_WARM_UP]:
        take(sample_id)
    clock, spent = time.perf_counter_ns, []
    for sample_id in ids[_WARM_UP:]:
        begin = clock()
        take(sample_id)
        spent.append(clock() - begin)
    p50, p99 = np.percentile(np.asarray(spent) / 1e3, [50, 99])
    return {"p50_us": float(p50), "p99_us": float(p99)}


def _check(task: Task, take: Callable[[int], Any]) -> None:
    """Raises when a sample is not the one that was asked for."""
    column = {"tiny": "data", "jpeg": "image", "tokens": "tokens"}[task.workload]
    ids = list(range(0, task.samples, max(1, task.samples // 100)))
    samples = [take(sample_id) for sample_id in ids]
    payloads = [sample[column] if isinstance(sample, dict) else sample for sample in samples]
    if task.data.wrong(ids, payloads):
        raise ValueError(f"{task.peer} returned wrong samples")
