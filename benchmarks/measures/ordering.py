"""The order alone, without a set: planning an epoch and taking ids at its start, or where a run was cut short."""

import gc
import resource
import sys
import time
from importlib import import_module
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.measures.memory import PeakMemory
from benchmarks.peers import OrderOptions, Peer, Unsupported, find
from benchmarks.task import Figures, Task

_IDS = 10_000
_LATE = 0.9  # of the epoch
_MOST_BYTES = 13 << 30  # more than anybody is asked to take; beyond it an allocation fails, and not the machine
_PAIRS = 7


def measure_order(task: Task) -> Figures:
    """Seconds from nothing to the first ids, or with `late` to those after nine tenths of the epoch; memory above all.

    `instead` says why this is not run.
    """
    if "instead" in task.options:
        raise Unsupported(f"not run: {task.options['instead']}")
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))
    peer, wanted = _imported(task), _wanted(task, late=bool(task.options.get("late")))
    count = min(_IDS, wanted.samples - wanted.start)
    memory, begin = PeakMemory(), time.perf_counter()
    take = peer.order(wanted)
    planned = time.perf_counter()
    ids = take(count)
    end = time.perf_counter()
    figures = {
        "seconds": end - begin,
        "plan_s": planned - begin,
        "ids_s": end - planned,
        "added_mb": memory.added_mb(),
    }
    check_ids(np.asarray(ids), count, wanted.samples)
    return figures


def check_ids(ids: NDArray[np.int64], count: int, samples: int) -> None:
    """Raises when these are not `count` different ids of a set of so many samples."""
    if ids.shape != (count,) or len(np.unique(ids)) != count or ids.min() < 0 or ids.max() >= samples:
        raise ValueError(f"{count} different ids below {samples} were asked for, and others came: {ids[:5]} ...")


def measure_late_ids(task: Task) -> Figures:
    """What ids at nine tenths of an epoch cost beside those at its start, in one process, each with a plan of its own.

    Pairs, begun by the one and the other in turn; the median of their ratios.
    """
    peer = _imported(task)
    ratios: list[float] = []
    early: list[float] = []
    for pair in range(_PAIRS):
        spent = {late: _seconds_for_ids(peer, _wanted(task, late=late)) for late in (pair % 2 == 0, pair % 2 == 1)}
        ratios.append(spent[True] / spent[False])
        early.append(spent[False])
    return {"late_over_early": median(ratios), "ids_s": median(early)}


def _seconds_for_ids(peer: Peer, wanted: OrderOptions) -> float:
    gc.collect()
    take = peer.order(wanted)
    begin = time.perf_counter()
    take(min(_IDS, wanted.samples - wanted.start))
    return time.perf_counter() - begin


def _imported(task: Task) -> Peer:
    peer = find(task.peer)
    for module in peer.order_imports or peer.imports:
        import_module(module)
    return peer


def _wanted(task: Task, *, late: bool) -> OrderOptions:
    per_shard = int(task.options["samples_per_shard"])
    step = task.kind.batch_size
    start = int(_LATE * task.samples) // step * step if late else 0
    return OrderOptions(task.samples, per_shard, start, task.options.get("algorithm"))
