"""From nothing to the first shuffled batch, or the next one of a saved state, in a process that only imported."""

import json
import time
from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.measures.memory import PeakMemory
from benchmarks.peers import Peer, ReadOptions, find
from benchmarks.task import Figures, Task

_TAKEN = 0.9  # of the epoch, before it is continued, where a row does not say another share


def measure_opening(task: Task) -> Figures:
    """Seconds until the first batch is there; what the import took is told apart."""
    peer, options, imported = _begin(task)
    folder, kind = task.opened_folder, task.opened_kind
    memory, begin = PeakMemory(), time.perf_counter()
    batches = iter(peer.loader(folder, kind, options))
    batch = next(batches)
    return {"seconds": time.perf_counter() - begin, "import_s": imported} | _checked(task, peer, batch, memory)


def save_state(task: Task) -> Figures:
    """The state within the first epoch, in a file, as a training run saves it."""
    peer, options, _ = _begin(task)
    kind = task.opened_kind
    step = options.batch_size * max(1, options.workers)
    taken = int(task.options.get("taken", _TAKEN) * kind.samples) // step * step
    state = json.dumps(peer.state(task.opened_folder, kind, options, taken))
    task.state_file.parent.mkdir(parents=True, exist_ok=True)
    task.state_file.write_text(state)
    return {"taken": taken, "state_bytes": len(state)}


def measure_resuming(task: Task) -> Figures:
    """Seconds from a saved state until the next batch is there; the opening is part of it."""
    peer, options, imported = _begin(task)
    folder, kind = task.opened_folder, task.opened_kind
    memory, begin = PeakMemory(), time.perf_counter()
    batches = peer.resumed(folder, kind, options, json.loads(task.state_file.read_text()))
    batch = next(batches)
    return {"seconds": time.perf_counter() - begin, "import_s": imported} | _checked(task, peer, batch, memory)


def _begin(task: Task) -> tuple[Peer, ReadOptions, float]:
    begin = time.perf_counter()
    peer = find(task.peer)
    for module in peer.imports:
        import_module(module)
    options = ReadOptions(batch_size=task.kind.batch_size, workers=int(task.options.get("workers", 0)))
    return peer, options, time.perf_counter() - begin


def _checked(task: Task, peer: Peer, batch: Any, memory: PeakMemory) -> Figures:
    """The memory until now; raises when the batch is not whole, or its samples are not those of their ids."""
    figures = {"added_mb": memory.added_mb()}
    columns = peer.columns(batch)
    ids = np.asarray(columns["id"]).reshape(-1)
    if len(ids) != task.kind.batch_size:
        raise ValueError(f"{task.peer}: the first batch is {len(ids)} samples, not {task.kind.batch_size}")
    if not np.array_equal(ids, _own_ids(columns)):
        raise ValueError(f"{task.peer}: samples of the first batch hold the data of others")
    return figures


def _own_ids(columns: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The ids that tiny samples carry in their first bytes."""
    values = [value.numpy().tobytes() if hasattr(value, "numpy") else bytes(value) for value in columns["data"]]
    return np.frombuffer(b"".join(chain(value[:8] for value in values)), "<i8")
