"""One rank of a segment of a run, as a process: it reads, records what it read, saves, reads on, and is killed."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.dataset import StreamingDataset
from smalti.dataset.epoch_reader import BatchForm
from tests.reading_options import grouped


@dataclass(frozen=True)
class RankTask:
    """Arguments of one process; the rest is in its environment and in the folder."""

    root: str
    folder: Path
    """Folder of the run's state and of this segment's records."""
    environment: dict[str, str]
    """Environment variables that a launcher sets."""
    options: dict[str, Any]
    """Options of the dataset."""
    steps: int | None
    """Steps until the state is saved; None to read to the epoch's end."""


def run_rank(task: RankTask) -> None:
    """Read until two steps after the state was saved, then kill this process; or read to the epoch's end."""
    os.environ.update(task.environment)
    rank = task.environment["RANK"]
    dataset = StreamingDataset(remote=task.root, include_ids=True, **grouped(**task.options))
    state = task.folder / "state.json"
    if state.exists():
        dataset.load_state_dict(json.loads(state.read_text()))
    this_pass, taken, records = dataset._smalti.begin_pass(), 0, []
    for step, ids in dataset._smalti.planned(this_pass):
        batch = dataset._smalti.read(step, ids, BatchForm.COLUMNS)[0]
        records.append([batch["_position"].tolist(), batch["id"].tolist()])
        taken += 1
        if taken == task.steps:
            save(task.folder, rank, records, dataset._smalti.reading(this_pass).cursor_after(taken).to_state())
        if task.steps is not None and taken == task.steps + 2:
            os.kill(os.getpid(), signal.SIGKILL)
    if task.steps is None or taken < task.steps:
        save(task.folder, rank, records, dataset._smalti.reading(this_pass).cursor_after(taken).to_state())


def save(folder: Path, rank: str, records: list[Any], state: dict[str, Any]) -> None:
    """Save records and state, as a trainer does at a checkpoint."""
    (folder / f"rank-{rank}.json").write_text(json.dumps({"records": records, "state": state}))
