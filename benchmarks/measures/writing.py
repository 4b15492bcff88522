"""Writing a whole set into a folder, from samples that lie in memory."""

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.peers import WriteOptions, find
from benchmarks.task import Figures, Task


def measure_writing(task: Task) -> Figures:
    """Rates of a process's second write of the same set.

    The first pays for imports and for memory that the machine hands to this process for the first time, which on
    virtual machines costs several times what later use does; a writer of a few gigabytes pays it once.
    """
    peer, options, data = find(task.peer), WriteOptions(**task.options), task.data
    with tempfile.TemporaryDirectory(dir=task.scratch) as scratch:
        warm, target = Path(scratch, "warm"), Path(scratch, "target")
        warm.mkdir()
        target.mkdir()
        samples = peer.prepare_input(data, options)
        peer.write(samples, data.workload, warm, options)
        shutil.rmtree(warm)
        begin = time.perf_counter()
        peer.write(samples, data.workload, target, options)
        seconds = time.perf_counter() - begin
        stored = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    return {
        "seconds": seconds,
        "samples_per_s": task.samples / seconds,
        "mb_per_s": data.num_bytes / seconds / 1e6,
        "stored_mb": stored / 1e6,
    }
