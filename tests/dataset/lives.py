"""A rank of a life, in a process of its own: reads, writes down what it read, saves, reads on, and is killed."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.dataset import StreamingDataset


@dataclass(frozen=True)
class RankLife:
    """What one process is told; everything else it finds in its environment and in the folder."""

    root: str
    folder: Path
    """Where the run's state and this life's records are."""
    environment: dict[str, str]
    """What a launcher sets."""
    options: dict[str, Any]
    """Of the dataset."""
    steps: int | None
    """Steps until the state is saved; None: to the epoch's end."""


def live(told: RankLife) -> None:
    """Ends by SIGKILL, two steps after the state was saved, or at the end of the epoch."""
    os.environ.update(told.environment)
    rank = told.environment["RANK"]
    dataset = StreamingDataset(local=told.root, include_ids=True, **told.options)
    state = told.folder / "state.json"
    if state.exists():
        dataset.load_state_dict(json.loads(state.read_text()))
    this_pass, taken, records = dataset.begin_pass(), 0, []
    for step, ids in dataset.planned(this_pass):
        batch = dataset.read(step, ids, columns=True)
        records.append([batch["_position"].tolist(), batch["id"].tolist()])
        taken += 1
        if taken == told.steps:
            save(told.folder, rank, records, dataset.cursor_after(this_pass, taken).to_state())
        if told.steps is not None and taken == told.steps + 2:
            os.kill(os.getpid(), signal.SIGKILL)
    if told.steps is None or taken < told.steps:
        save(told.folder, rank, records, dataset.cursor_after(this_pass, taken).to_state())


def save(folder: Path, rank: str, records: list[Any], state: dict[str, Any]) -> None:
    """What a trainer does at a checkpoint: all ranks are at the same step."""
    (folder / f"rank-{rank}.json").write_text(json.dumps({"records": records, "state": state}))
