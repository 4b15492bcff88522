"""Sets that later tasks read: written by each library itself, kept between runs of the harness."""

import json
import shutil

from benchmarks.peers import distributions, find
from benchmarks.task import Figures, Task

_MARKER = ".prepared.json"


def prepare_set(task: Task) -> Figures:
    """The set of the task's folder, unless it is there already from the same version; `fresh` writes it anew."""
    peer, folder, options = find(task.peer), task.set_folder, task.write_options
    made_from = {"versions": distributions(), "bytes": task.data.num_bytes}
    marker = folder / _MARKER
    if marker.exists() and json.loads(marker.read_text()) == made_from and not task.options.get("fresh"):
        return {"kept": 1}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    peer.write(peer.prepare_input(task.data, options), task.kind, folder, options)
    marker.write_text(json.dumps(made_from))
    return {"kept": 0}


def multiply_set(task: Task) -> Figures:
    """A large set of hard links of one shard: opening looks at all of them, reading at few."""
    copies = int(task.options["copies"])
    folder = task.linked_folder(copies)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    find(task.peer).multiply(task.set_folder, folder, copies)
    return {"copies": copies}
