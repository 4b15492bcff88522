"""A user's program, in an interpreter of its own: reads some batches, tells its workers' ids, and waits or ends.

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

ROOT = Path(__file__).parents[2]
KEPT: list[Any] = []
"""What a program still holds when its interpreter ends."""


class Slow:
    """A transform that is long in the middle of something, after some batches."""

    on_batches = thread_safe = True

    def __init__(self, seconds: float, after: int) -> None:
        self.seconds, self.left = seconds, after

    def __call__(self, columns: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            time.sleep(self.seconds)
        return columns


class Bulky:
    """A transform whose batches fill the pipe to the consumer: strings are pickled into it."""

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
"""Runs a command with a /dev/shm of its own, of so many bytes, and lists what it left there."""


@functools.cache
def can_have_own_shm() -> bool:
    """Whether this system lets its users mount what only they see."""
    tried = [*own_shm(1 << 20), "true"]
    return (
        shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True, check=False).returncode == 0
    )


def own_shm(num_bytes: int) -> list[str]:
    """The beginning of a command that is to run with a /dev/shm of its own."""
    return ["unshare", "-rm", "sh", "-c", IN_OWN_SHM, str(num_bytes)]


def started(shm: int | None = None, **told: Any) -> "subprocess.Popen[str]":
    """The program, with pipes to its output; with `shm` in a /dev/shm of its own, and what it left there is listed."""
    return subprocess.Popen(
        [*(own_shm(shm) if shm else ()), sys.executable, "-m", "tests.faults.reading_program", json.dumps(told)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(told: dict[str, Any]) -> None:
    """Reads `steps` batches; prints the ids of this process's children, and those of the samples."""
    dataset = StreamingDataset(
        remote=told["root"],
        shuffle=True,
        transform=TRANSFORMS[told.get("transform", "none")],
        **told.get("dataset", {}),
    )
    loader = StreamingDataLoader(dataset, told.get("batch", 4), **told["way"])
    batches = iter(loader)
    seen = [next(batches)["id"].tolist() for _ in range(told["steps"])]
    KEPT.extend([loader, batches])
    print(json.dumps({"pids": [child.pid for child in multiprocessing.active_children()], "seen": seen}), flush=True)
    if told["then"] == "wait":
        time.sleep(600)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
