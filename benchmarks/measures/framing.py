"""Writing a DataFrame: session and source are there, and a first write of a hundred rows paid for imports."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.frames import open_frame, open_session, write_source
from benchmarks.peers import Peer, WriteOptions, find
from benchmarks.task import Figures, Task
from benchmarks.trees import cpu_seconds

_WARM_ROWS = 100
_CHECKED = 500
_PASSES = 2
_SLOW_SECONDS = 4.0  # a second pass of that length says less than a third process
_PAYLOAD = {"rows": "data", "jpeg": "image", "photos": "image"}


def prepare_frame(task: Task) -> Figures:
    """The Parquet files that are the source of all."""
    write_source(task)
    return {}


def measure_frame(task: Task) -> Figures:
    """Rates of the first write of the whole frame, and of a second one unless the first was slow, by the clock and by
    processor time.

    Processor time is of this process and all below it, the JVM and Spark's Python workers.
    """
    peer, options = find(task.peer), WriteOptions(zstd=bool(task.options.get("zstd")))
    session = open_session(task.scratch / "spark")
    try:
        frame = open_frame(session, task)
        # Two partitions: each of the two Python workers imports what it needs now.
        peer.write_frame(frame.limit(_WARM_ROWS).repartition(2), task.scratch / "warm", options)
        passes = []
        for number in range(_PASSES):
            folder = task.scratch / f"written-{number}"
            passes.append(_timed(lambda folder=folder: peer.write_frame(frame, folder, options)))  # type: ignore[misc]
            stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            _check(peer, task, folder)
            shutil.rmtree(folder, ignore_errors=True)
            if passes[0][0] > _SLOW_SECONDS:
                break
    finally:
        session.stop()
    seconds, cpu = passes[0]
    figures = {
        "seconds": seconds,
        "rows_per_s": task.samples / seconds,
        "mb_per_s": task.data.num_bytes / seconds / 1e6,
        "cpu_us_per_row": cpu / task.samples * 1e6,
        "stored_mb": stored / 1e6,
    }
    for later, later_cpu in passes[1:]:
        figures["later_rows_per_s"] = task.samples / later
        figures["later_cpu_us_per_row"] = later_cpu / task.samples * 1e6
    return figures


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
