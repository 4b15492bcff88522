"""One rank of a segment of a run over several streams, as a process with loader workers."""

import json
import os
import signal
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from smalti import Stream
from smalti.torch import StreamingDataLoader, StreamingDataset
from tests.reading_options import grouped


@dataclass(frozen=True)
class MixedRankTask:
    """Arguments of one process; the rest is in its environment and in the folder."""

    streams: list[Stream]
    folder: Path
    """Folder of the run's state and of this segment's records."""
    environment: dict[str, str]
    """Environment variables that a launcher sets."""
    options: dict[str, Any]
    """Options of the dataset."""
    loader: dict[str, Any]
    """Options of the loader."""
    steps: int | None
    """Steps until the state is saved; None to read to the epoch's end."""


def run_rank(task: MixedRankTask) -> None:
    """Read until a step after the state was saved, then kill this process with batches prefetched; or to the end."""
    os.environ.update(task.environment)
    dataset = StreamingDataset(streams=task.streams, include_ids=True, **grouped(**task.options))
    loader = StreamingDataLoader(dataset, **task.loader)
    state = task.folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    batches = iter(loader)
    records = [[batch["_position"].tolist(), batch["_sample_id"].tolist()] for batch in islice(batches, task.steps)]
    saved = {"records": records, "state": loader.state_dict()}
    (task.folder / f"rank-{task.environment['RANK']}.json").write_text(json.dumps(saved))
    if task.steps is not None and next(batches, None) is not None:
        os.kill(os.getpid(), signal.SIGKILL)
