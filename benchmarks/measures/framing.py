"""Writing a DataFrame: session and source are there, and a first write of a hundred rows paid for imports.

The frame is cached and the figure is a median over passes of one session, as those that the goals were set by
(`numbers.md`, section 3). The JVM compiles through several passes of a second each, and a conversion worth a wait is
minutes long: the figure is of the last passes. The first one is told apart.
"""

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.frames import is_of_files, open_files, open_frame, open_session, write_files, write_source
from benchmarks.peers import Peer, WriteOptions, find
from benchmarks.task import Figures, Task
from benchmarks.trees import cpu_seconds

_WARM_ROWS = 100
_CHECKED = 500
_PASSES = 14  # the figure is of the second half: at the sixth one the JVM still compiles on a third of a core
_FILE_PASSES = 6
_PAYLOAD = {"rows": "data", "jpeg": "image", "photos": "image"}


def prepare_frame(task: Task) -> Figures:
    """The files that are the source of all."""
    write_files(task) if is_of_files(task) else write_source(task)
    return {}


def measure_frame(task: Task) -> Figures:
    """Median rates of the last times of writing the whole frame, and those of the first, by the clock and by CPU time.

    Processor time is of this process and all below it, the JVM and Spark's Python workers.
    """
    peer = find(task.peer)
    options = WriteOptions(zstd=bool(task.options.get("zstd")), is_default=bool(task.options.get("is_default")))
    session = open_session(task.scratch / "spark")
    try:
        if is_of_files(task):
            frame, count = open_files(session, task), _FILE_PASSES
            if "partitions" in task.options:
                frame = frame.coalesce(int(task.options["partitions"]))
        else:
            frame, count = open_frame(session, task).cache(), _PASSES
            frame.count()
        # Two partitions: each of the two Python workers imports what it needs now.
        peer.write_frame(frame.limit(_WARM_ROWS).repartition(2), task.scratch / "warm", options)
        passes = []
        for number in range(count):
            folder = task.scratch / f"written-{number}"
            passes.append(_timed(lambda folder=folder: peer.write_frame(frame, folder, options)))  # type: ignore[misc]
            stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            _check(peer, task, folder)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        session.stop()
    seconds, cpu = (statistics.median(values) for values in zip(*passes[-(count // 2) :], strict=True))
    return {
        "seconds": seconds,
        "rows_per_s": task.samples / seconds,
        "mb_per_s": task.data.num_bytes / seconds / 1e6,
        "cpu_us_per_row": cpu / task.samples * 1e6,
        "stored_mb": stored / 1e6,
        "first_rows_per_s": task.samples / passes[0][0],
        "first_cpu_us_per_row": passes[0][1] / task.samples * 1e6,
    }


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    begin, cpu = time.perf_counter(), cpu_seconds(os.getpid())
    work()
    return time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu


def _check(peer: Peer, task: Task, folder: Path) -> None:
    """The number of samples, and some of them against the generated data; raises when they are not as written."""
    index = folder / "index.json"
    if not index.exists():  # a floor
        return
    total = sum(shard["samples"] for shard in json.loads(index.read_text())["shards"])
    if total != task.samples:
        raise ValueError(f"{task.peer} wrote {total} samples of {task.samples}")
    take = peer.sampler(folder, task.kind)
    samples = [take(number) for number in range(0, total, max(1, total // _CHECKED))]
    ids = [int(str(sample["name"])[:8]) for sample in samples]
    wrong = task.data.wrong(ids, [sample[_PAYLOAD[task.workload]] for sample in samples])
    if wrong or len(set(ids)) != len(ids):
        raise ValueError(f"{task.peer} wrote {wrong} wrong samples, and {len(ids) - len(set(ids))} twice")
