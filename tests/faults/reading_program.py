"""A user's program in its own interpreter: reads some batches, prints its workers' ids, and waits or ends.

`python -m tests.faults.reading_program '{"root": ..., "way": {...}, "steps": 3, "then": "wait"}'`
"""

import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.reading_options import grouped

ROOT = Path(__file__).parents[2]
REFERENCED: list[Any] = []
"""Objects that the program still references when its interpreter ends."""


class Slow:
    """A transform that blocks for a long time, after some batches."""

    on_batches = thread_safe = True

    def __init__(self, seconds: float, after: int) -> None:
        self.seconds, self.left = seconds, after

    def __call__(self, columns: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            time.sleep(self.seconds)
        return columns


class Bulky:
    """A transform whose batches fill the pipe to the consumer with pickled strings."""

    on_batches = thread_safe = True

    def __call__(self, columns: Any) -> Any:
        columns["text"] = ["x" * 100_000 for _ in columns["text"]]
        return columns


class Wide:
    """A transform whose batches are larger than a small /dev/shm."""

    on_batches = thread_safe = True

    def __call__(self, columns: Any) -> Any:
        columns["wide"] = np.zeros((len(columns["text"]), 1 << 12), np.uint8)
        return columns


TRANSFORMS = {"wide": Wide(), "none": None, "slow": Slow(60.0, after=2), "bulky": Bulky()}


IN_OWN_SHM = 'mount -t tmpfs -o size="$0" none /dev/shm && "$@"; status=$?; ls -A /dev/shm; exit $status'
"""A shell script that runs a command with its own /dev/shm of some size, and lists what the command left there."""


@functools.cache
def can_have_own_shm() -> bool:
    """Return whether users of this system can mount file systems in their own namespace."""
    command = [*own_shm(1 << 20), "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


def own_shm(num_bytes: int) -> list[str]:
    """Return the prefix of a command that runs with its own /dev/shm."""
    return ["unshare", "-rm", "sh", "-c", IN_OWN_SHM, str(num_bytes)]


def started(shm: int | None = None, **options: Any) -> "subprocess.Popen[str]":
    """Start the program with pipes to its output; with `shm`, in its own /dev/shm, whose leftovers are listed."""
    return subprocess.Popen(
        [*(own_shm(shm) if shm else ()), sys.executable, "-m", "tests.faults.reading_program", json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(options: dict[str, Any]) -> None:
    """Read `steps` batches; print the ids of this process's children and of the samples."""
    dataset = StreamingDataset(
        remote=options["root"],
        shuffle=True,
        transform=TRANSFORMS[options.get("transform", "none")],
        **grouped(**options.get("dataset", {})),
    )
    loader = StreamingDataLoader(dataset, options.get("batch", 4), **options["way"])
    batches = iter(loader)
    seen = [next(batches)["id"].tolist() for _ in range(options["steps"])]
    REFERENCED.extend([loader, batches])
    print(json.dumps({"pids": [child.pid for child in multiprocessing.active_children()], "seen": seen}), flush=True)
    if options["then"] == "wait":
        time.sleep(600)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
