"""A rank of a life over several streams, in a process of its own, with loader workers; `test_mixture_processes.py`."""

import json
import os
import signal
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from smalti import Stream
from smalti.torch import StreamingDataLoader, StreamingDataset


@dataclass(frozen=True)
class MixedLife:
    """What one process is told."""

    streams: list[Stream]
    folder: Path
    """Where the run's state is, and this life's records go."""
    environment: dict[str, str]
    """What a launcher sets."""
    options: dict[str, Any]
    """Of the dataset."""
    loader: dict[str, Any]
    """Of the loader."""
    steps: int | None
    """Steps until the state is saved; None: to the epoch's end."""


def live(told: MixedLife) -> None:
    """Ends by SIGKILL, a step after the state was saved and with batches read ahead, or at the end of the epoch."""
    os.environ.update(told.environment)
    dataset = StreamingDataset(streams=told.streams, include_ids=True, **told.options)
    loader = StreamingDataLoader(dataset, **told.loader)
    state = told.folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    batches = iter(loader)
    records = [[batch["_position"].tolist(), batch["_sample_id"].tolist()] for batch in islice(batches, told.steps)]
    saved = {"records": records, "state": loader.state_dict()}
    (told.folder / f"rank-{told.environment['RANK']}.json").write_text(json.dumps(saved))
    if told.steps is not None and next(batches, None) is not None:
        os.kill(os.getpid(), signal.SIGKILL)
