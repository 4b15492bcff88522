"""Ranks of a run, each a process, without a process group: each reads an epoch and writes down what it saw."""

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

DEADLINE = 90.0


@dataclass(frozen=True)
class Rank:
    """What a process is told."""

    number: int
    num_ranks: int
    folder: str
    """Where its answer goes."""
    dataset: dict[str, Any]
    """Arguments of its datasets."""
    ways: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    """Arguments of its loaders: one for each of its datasets, all of which are read at the same time."""

    after: str = ""
    """A file that it waits for before it begins."""

    @property
    def answer(self) -> Path:
        """A file with the batches of each loader, or the error."""
        return Path(self.folder) / f"rank-{self.number}.json"

    def read(self) -> dict[str, Any]:
        """What the process wrote."""
        found: dict[str, Any] = json.loads(self.answer.read_text())
        return found


def live(told: Rank) -> None:
    """The process."""
    end = time.monotonic() + DEADLINE
    while told.after and not Path(told.after).exists() and time.monotonic() < end:
        time.sleep(0.02)
    launcher = {"RANK": told.number, "WORLD_SIZE": told.num_ranks}
    local = {"LOCAL_RANK": told.number, "LOCAL_WORLD_SIZE": told.num_ranks}
    os.environ.update({name: str(value) for name, value in (launcher | local).items()})
    try:
        loaders = [StreamingDataLoader(StreamingDataset(**told.dataset), 4, **way) for way in told.ways]
        steps = list(zip(*loaders, strict=True))
        answer: dict[str, Any] = {
            "batches": [[batch["id"].tolist() for batch in batches] for batches in zip(*steps, strict=True)]
        }
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    told.answer.write_text(json.dumps(answer))


@contextmanager
def started(ranks: list[Rank]) -> Iterator[list[int]]:
    """Their process ids; at the end the processes are waited for, and killed if they do not come to one."""
    told = json.dumps([asdict(rank) for rank in ranks])
    command = [sys.executable, "-m", "tests.faults.rank_processes", told]
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
    """The launcher: forks all ranks, which is quicker than that each imports torch; ends when all have ended."""
    processes = [get_context("fork").Process(target=live, args=(rank,)) for rank in ranks]
    for process in processes:
        process.start()
    print(json.dumps([process.pid for process in processes]), flush=True)
    for process in processes:
        process.join()


if __name__ == "__main__":
    launch([Rank(**rank) for rank in json.loads(sys.argv[1])])
