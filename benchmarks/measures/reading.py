"""Reading through a loader: samples per second after the first batch, and whether the right samples came."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers import Peer, ReadOptions, find
from benchmarks.task import Figures, Task

_CHECKED_SAMPLES = 5_000
_NEAR = 1_000  # samples; stored neighbours at most so far apart
_MAX_EPOCHS = 8


def measure_reading(task: Task) -> Figures:
    """The first epoch, as a job with little data sees it, and the median of the later ones.

    `seconds` limits the timed part of an epoch; later epochs are read while time is left.
    """
    limit = float(task.options.get("seconds", 1.5))
    options = _read_options(task)
    peer = find(task.peer)
    loader = peer.loader(task.set_folder, task.kind, options)
    rates: list[float] = []
    spent = 0.0
    while not rates or (spent < limit and len(rates) < _MAX_EPOCHS):
        samples, seconds = _timed_epoch(loader, limit)
        rates.append(samples / seconds)
        spent += seconds
    figures = {"samples_per_s": rates[0], "later_samples_per_s": median(rates[1:] or rates), "epochs": len(rates)}
    if not options.decode:
        figures |= _checked(task, peer, loader)
    return figures


def drain(task: Task) -> Figures:
    """Reads `batches` batches, epoch after epoch, and does nothing else: for those who look from outside."""
    loader = find(task.peer).loader(task.set_folder, task.kind, _read_options(task))
    left = int(task.options["batches"])
    for batch in islice(_for_ever(loader), left):
        del batch
    return {"batches": left}


def _read_options(task: Task) -> ReadOptions:
    chosen = {key: value for key, value in task.options.items() if key in {"workers", "shuffle", "decode"}}
    return ReadOptions(batch_size=task.kind.batch_size, **chosen)


def _timed_epoch(loader: Iterable[Any], limit: float) -> tuple[int, float]:
    """Samples after the first batch, and the seconds that they took."""
    batches = iter(loader)
    next(batches)
    samples, begin = 0, time.perf_counter()
    end = begin
    for batch in batches:
        samples += len(next(iter(batch.values())))
        end = time.perf_counter()
        if end - begin > limit:
            break
    if samples == 0:
        raise ValueError("an epoch of one batch has no rate: measure with more samples")
    return samples, end - begin


def _checked(task: Task, peer: Peer, loader: Iterable[Any]) -> Figures:
    """The beginning of one more epoch against the generated data; raises when any value is wrong."""
    data, wrong = task.data, 0
    ids: list[int] = []
    # The last batch may hold repeats, with which Smalti and MosaicML fill it.
    enough = min(_CHECKED_SAMPLES, task.samples // task.kind.batch_size * task.kind.batch_size)
    for batch in loader:
        columns = peer.columns(batch)
        found = _ids(task.workload, columns)
        wrong += data.wrong(found, _payloads(task.workload, columns))
        ids += found
        if len(ids) >= enough:
            break
    if wrong or len(set(ids)) != len(ids):
        raise ValueError(f"{task.peer} returned {wrong} wrong values and {len(ids) - len(set(ids))} samples twice")
    near = np.abs(np.diff(np.asarray(ids))) < _NEAR
    return {"neighbours": float(near.mean()), "neighbours_if_uniform": min(1.0, 2 * _NEAR / task.samples)}


def _ids(workload: str, columns: Mapping[str, Sequence[Any]]) -> list[int]:
    if workload == "tokens":
        return [int(row[0]) for row in columns["tokens"]]
    if workload == "tiny":
        return [int(value) for value in columns["id"]]
    if "name" in columns:
        return [int(name[:8]) for name in columns["name"]]
    return [int(value) for value in columns["label"]]


def _payloads(workload: str, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
    return [_plain(value) for value in columns[{"tiny": "data", "jpeg": "image", "tokens": "tokens"}[workload]]]


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def _for_ever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader
