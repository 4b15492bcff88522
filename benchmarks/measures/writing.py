"""Writing a whole set into a folder, from samples that lie in memory."""

import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.peers import WriteOptions, find
from benchmarks.task import Figures, Task
from benchmarks.workloads import Data, Workload

_WARM_UP_SAMPLES = 256


def measure_writing(task: Task) -> Figures:
    """Rates of one write; a small one before it pays for imports, as a long-lived writer pays once."""
    peer, options = find(task.peer), WriteOptions(**task.options)
    small = Data(Workload(task.workload, _WARM_UP_SAMPLES), task.work / "cache")
    data = task.data
    with tempfile.TemporaryDirectory(dir=task.scratch) as scratch:
        warm, target = Path(scratch, "warm"), Path(scratch, "target")
        warm.mkdir()
        target.mkdir()
        peer.write(peer.prepare_input(small, options), small.workload, warm, options)
        samples = peer.prepare_input(data, options)
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
