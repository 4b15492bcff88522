"""From nothing to the first shuffled batch, in a process that has only imported the library."""

import time
from importlib import import_module

from benchmarks.peers import ReadOptions, find
from benchmarks.task import Figures, Task
from benchmarks.workloads import Workload


def measure_opening(task: Task) -> Figures:
    """Seconds until the first batch is there; what the import took is told apart."""
    copies = int(task.options["copies"])
    begin = time.perf_counter()
    peer = find(task.peer)
    for module in peer.imports:
        import_module(module)
    imported = time.perf_counter()
    whole = Workload(task.workload, task.samples * copies)
    loader = peer.loader(task.linked_folder(copies), whole, ReadOptions(batch_size=task.kind.batch_size))
    batch = next(iter(loader))
    seconds = time.perf_counter() - imported
    if len(next(iter(batch.values()))) != task.kind.batch_size:
        raise ValueError(f"{task.peer}: the first batch is not {task.kind.batch_size} samples")
    return {"seconds": seconds, "import_s": imported - begin}
