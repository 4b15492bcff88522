"""Ranks of a run as processes without a process group: each reads an epoch and records its batches."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.reading_options import grouped

DEADLINE = 280.0


@dataclass(frozen=True)
class Rank:
    """The task of one process."""

    number: int
    num_ranks: int
    folder: str
    """Folder of the answer."""
    dataset: dict[str, Any]
    """Arguments of its datasets."""
    ways: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    """Arguments of its loaders, one for each of its datasets; all are read at the same time."""

    after: str = ""
    """A file that the process waits for before it begins."""

    @property
    def answer(self) -> Path:
        """The file with the batches of each loader, or the error."""
        return Path(self.folder) / f"rank-{self.number}.json"

    def read(self) -> dict[str, Any]:
        """Return the answer of the process."""
        found: dict[str, Any] = json.loads(self.answer.read_text())
        return found


def run_rank(task: Rank) -> None:
    """Read one epoch as a rank, and write the answer."""
    end = time.monotonic() + DEADLINE
    while task.after and not Path(task.after).exists() and time.monotonic() < end:
        time.sleep(0.02)
    launcher = {"RANK": task.number, "WORLD_SIZE": task.num_ranks}
    local = {"LOCAL_RANK": task.number, "LOCAL_WORLD_SIZE": task.num_ranks}
    os.environ.update({name: str(value) for name, value in (launcher | local).items()})
    try:
        loaders = [StreamingDataLoader(StreamingDataset(**grouped(**task.dataset)), 4, **way) for way in task.ways]
        steps = list(zip(*loaders, strict=True))
        answer: dict[str, Any] = {
            "batches": [[batch["id"].tolist() for batch in batches] for batches in zip(*steps, strict=True)]
        }
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    task.answer.write_text(json.dumps(answer))


@contextmanager
def started(ranks: list[Rank]) -> Iterator[list[int]]:
    """Start processes and yield their ids; at the end wait for them, and kill those that do not end in time."""
    tasks = json.dumps([asdict(rank) for rank in ranks])
    command = [sys.executable, "-m", "tests.faults.rank_processes", tasks]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], env=environment, stdout=subprocess.PIPE, text=True
    ) as launcher:
        pids = json.loads(launcher.stdout.readline())  # type: ignore[union-attr]
        try:
            yield pids
            launcher.wait(DEADLINE)
        finally:
            for pid in pids if launcher.poll() is None else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def launch(ranks: list[Rank]) -> None:
    """Fork all ranks, which is faster than importing torch in each, and wait for them."""
    processes = [get_context("fork").Process(target=run_rank, args=(rank,)) for rank in ranks]
    for process in processes:
        process.start()
    print(json.dumps([process.pid for process in processes]), flush=True)
    for process in processes:
        process.join()


if __name__ == "__main__":
    launch([Rank(**rank) for rank in json.loads(sys.argv[1])])
