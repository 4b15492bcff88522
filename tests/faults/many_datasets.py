"""Many data sets, one after the other in one process, and what is left of them: run by `test_nothing_left.py`.

python many_datasets.py FOLDER HOW_MANY OUT.json      (FOLDER holds `plain` and `packed`, two shard sets)
"""

import contextlib
import gc
import json
import multiprocessing
import os
import sys
import threading
import time
from itertools import islice
from pathlib import Path

from smalti.cache import CacheOptions
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.shard_sets import write_set

DEADLINE = 120.0
FORK = {"multiprocessing_context": "fork"}
SHM = Path("/dev/shm")
SEMAPHORES = f"mp{os.getpid()}"  # the prefix of this program's names; others of the machine have `mp`, or their own
family = {os.getpid()}
"""This process and all that were ever its loaders' workers: torch writes the maker's id into a name."""

WAYS = [
    # where from, the loader's options, batches taken (None: all)
    ("plain", {}, None),
    ("plain", {}, 2),
    ("plain", {"num_workers": 2}, None),
    ("plain", {"num_workers": 2}, 1),
    ("plain", {"num_workers": 2, **FORK}, None),
    ("plain", {"num_workers": 2, **FORK}, 1),
    ("plain", {"num_workers": 1, "persistent_workers": True, **FORK}, None),
    ("packed", {}, 1),
    ("packed", {"num_workers": 2}, None),
    ("packed", {"num_workers": 1, **FORK}, 2),
    ("memory", {}, None),
    ("memory", {"num_workers": 2}, 1),
    ("memory", {"num_workers": 2, "prefetch_factor": 4, **FORK}, 1),
]


def use(folder, number):
    """Builds a dataset and a loader, reads all or a part, and forgets both; every second time it closes the dataset."""
    source, options, steps = WAYS[number % len(WAYS)]
    remote = "memory://many/set" if source == "memory" else str(folder / source)
    # Every fourth time a cache of its own, or what is fetched would be there already.
    local = None if source == "plain" else str(folder / f"cache-{number // len(WAYS) // 4}")
    dataset = StreamingDataset(remote=remote, cache=CacheOptions(local=local), shuffle=True)
    loader = StreamingDataLoader(dataset, 4, **options)
    batches = iter(loader)
    family.update(worker.pid for worker in multiprocessing.active_children())
    taken = sum(len(batch["id"]) for batch in islice(batches, steps))
    assert taken == (40 if steps is None else 4 * steps)
    if steps is not None and number % 3 == 0:
        loader.load_state_dict(loader.state_dict())
        again = iter(loader)
        family.update(worker.pid for worker in multiprocessing.active_children())
        next(again)  # and leave the first iteration as it is
    if number // len(WAYS) % 2:
        dataset.close()


def left(folder, before):
    """Count everything that could be left behind."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own is gone
            links.append(os.readlink(link))
    maps = Path("/proc/self/maps").read_text()
    boards = [link for link in links if "smalti-board" in link]  # one for each program, as long as it runs
    return {
        "descriptors": len(links),
        "boards beyond the program's one": max(0, len(boards) - 1),
        "of shards and rings": sum(".mds" in link or "smalti" in link for link in links if link not in boards),
        "maps of shards and rings": maps.count(".mds") + maps.count("smalti-ring"),
        "threads": threading.active_count(),
        "children": len(children_of(os.getpid())),
        "shared memory": len(lasting(before)),
        "locks and parts": len([*folder.rglob(".*.lock"), *folder.rglob("*.part")]),
    }


def children_of(pid):
    """Child processes, dead ones included that nobody has waited for."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(") ", 1)[1].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(stat.parent.name))
    return found


def lasting(before):
    """Names of ours in /dev/shm that are new, and still there after a while."""
    end = time.monotonic() + DEADLINE
    names = {name for name in set(os.listdir(SHM)) - before if is_ours(name)}
    while names and time.monotonic() < end:
        time.sleep(0.05)
        names &= set(os.listdir(SHM))
    return names


def is_ours(name):
    """Return whether this program or one of its workers made a name: concurrent tests use /dev/shm too."""
    if name.startswith("sem."):
        return name.startswith(f"sem.{SEMAPHORES}-")
    pids = [int(part) for part in name.split("_") if part.isdigit()]
    return not pids or pids[0] in family


def settled(folder, before):
    """Wait until idle threads have ended by themselves, and count what is left."""
    gc.collect()
    end = time.monotonic() + DEADLINE
    while any(thread.name.startswith("smalti") for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.05)
    gc.collect()
    return left(folder, before)


def main(folder, how_many, out):
    """Writes down what is left after one of each way, and after all."""
    folder, count = Path(folder), int(how_many)
    multiprocessing.current_process()._config["semprefix"] = f"/{SEMAPHORES}"  # workers inherit it
    write_set("memory://many/set", 40)
    before = set(os.listdir(SHM))
    found = {}
    for number in range(count):
        use(folder, number)
        if number + 1 in (len(WAYS), count):
            found[number + 1] = settled(folder, before)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
