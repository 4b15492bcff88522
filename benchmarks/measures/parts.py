"""Parts of a set over the link: the first batch after a resume, single samples by id, and a small share of a set.

Smalti alone: of its own set, which has block hashes, and of MosaicML's, whose shards it fetches whole.
"""

import random
import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks.link.server import LinkServer, num_bytes_sent, of_shards, rounds, shard_bytes
from benchmarks.photos import number_in
from benchmarks.task import Figures, Task

_SHARE_TAKEN = 0.9
_ITEMS = 200
_SPARSE_SHARE = 0.01


def measure_first_resumed(task: Task) -> Figures:
    """Seconds from constructing the dataset to the first batch after a state at 90 % of the epoch."""
    size = task.kind.batch_size
    with LinkServer(task) as server:
        taken = int(_SHARE_TAKEN * task.samples) // size * size
        before = _dataset(server, task, "before", batch_size=size, shuffle=True)
        state = before.state_dict(num_samples=taken, from_beginning=True)
        server.forget()
        begin = time.perf_counter()
        dataset = _dataset(server, task, "cache", batch_size=size, shuffle=True)
        dataset.load_state_dict(state)
        batches = dataset.batches()
        batch = next(batches)
        seconds, now = time.perf_counter() - begin, time.time()
        log = [entry for entry in server.log() if entry.began <= now]
        _check(batch["image"], [int(name[:8]) for name in batch["name"]])
        del batches
    return {"seconds": seconds, "requests": len(log), "fetched_mb": num_bytes_sent(of_shards(log)) / 1e6}


def measure_items(task: Task) -> Figures:
    """Round trips of `dataset[i]` at random, for the first sample of each shard and for further ones."""
    order = random.Random(0)
    trips: dict[bool, list[int]] = {True: [], False: []}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with LinkServer(task) as server:
        dataset = _dataset(server, task, "cache")
        ends = np.cumsum([shard.samples for shard in dataset.manifest.shards])
        seen: set[int] = set()
        num_bytes = 0
        for _ in range(_ITEMS):
            number = order.randrange(len(dataset))
            shard = int(np.searchsorted(ends, number, side="right"))
            server.forget()
            begin = time.perf_counter()
            sample = dataset[number]
            took = time.perf_counter() - begin
            log = server.log()
            _check([sample["image"]], [int(sample["name"][:8])])
            trips[shard not in seen].append(rounds([entry.began for entry in log]))
            seconds[shard not in seen].append(took)
            num_bytes += num_bytes_sent(of_shards(log))
            seen.add(shard)
    return {
        "round_trips": max(trips[False]),
        "first_round_trips": max(trips[True]),
        "median_ms": 1e3 * median(seconds[False]),
        "first_ms": 1e3 * median(seconds[True]),
        "fetched_mb": num_bytes / 1e6,
    }


def measure_sparse(task: Task) -> Figures:
    """Seconds and bytes of one percent of the samples, chosen at random and read in batches without a cache."""
    size, whole = task.kind.batch_size, shard_bytes(task.set_folder)
    with LinkServer(task) as server:
        dataset = _dataset(server, task, "cache", mode="none")
        chosen = random.Random(0).sample(range(len(dataset)), max(size, int(_SPARSE_SHARE * len(dataset))))
        server.forget()
        begin = time.perf_counter()
        for first in range(0, len(chosen), size):
            samples = dataset[chosen[first : first + size]]
            _check([each["image"] for each in samples], [int(each["name"][:8]) for each in samples])
        seconds, log = time.perf_counter() - begin, server.log()
    return {"seconds": seconds, "requests": len(log), "fetched_share": num_bytes_sent(of_shards(log)) / whole}


def _dataset(server: LinkServer, task: Task, folder: str, mode: str = "shards", **options: Any) -> Any:
    from smalti import CacheOptions, StreamingDataset

    place = server.place(task.scratch / folder)
    return StreamingDataset(remote=place.url, cache=CacheOptions(local=str(place.cache), mode=mode), **options)


def _check(images: Any, numbers: list[int]) -> None:
    """Compare the number in each photo with that in its name."""
    wrong = [number for image, number in zip(images, numbers, strict=True) if number_in(image) != number]
    if wrong:
        raise ValueError(f"the photos of {wrong[:10]} are others than their names say")
