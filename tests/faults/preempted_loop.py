"""A training loop as people write it by hand, which is preempted by SIGTERM; it saves in one of the two usual ways.

`python -m tests.faults.preempted_loop '{"root": ..., "folder": ..., "way": {...}, "saves": "handler"}'`
"""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from smalti.torch import StreamingDataLoader, StreamingDataset

STEP_SECONDS = 0.02
STATE = "state.json"
"""What a life leaves: the state, and the samples of all steps that it stands for."""


class Loop:
    """Batches of ids instead of training."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.path = Path(told["folder"]) / STATE
        self.saves = told["saves"]
        self.loader = StreamingDataLoader(StreamingDataset(remote=told["root"], shuffle=True), 4, **told["way"])
        found = json.loads(self.path.read_text()) if self.path.exists() else {"state": None, "seen": []}
        if found["state"] is not None:
            self.loader.load_state_dict(found["state"])
        self.done: tuple[Any, list[Any]] = (found["state"], found["seen"])
        self.stop = False

    def run(self) -> None:
        """Steps, until the epoch or the process is to end."""
        for batch in self.loader:
            time.sleep(STEP_SECONDS)
            # One assignment: a handler that comes between any two instructions finds state and samples that agree.
            self.done = (self.loader.state_dict(), [*self.done[1], batch["id"].tolist()])
            print(len(self.done[1]), flush=True)
            if self.stop:
                self.save()
                sys.exit(143)

    def save(self) -> None:
        """As a checkpoint is saved."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"state": self.done[0], "seen": self.done[1]}))
        part.replace(self.path)

    def asked_to_stop(self, *_: object) -> None:
        """The handler that sets a flag."""
        self.stop = True

    def save_at_once(self, *_: object) -> NoReturn:
        """The handler that saves where it stands, in the middle of whatever the loader is at."""
        now, then = self.loader.state_dict()["sample_in_epoch"], self.done[0]
        assert now - (then["sample_in_epoch"] if then else 0) in (0, 4), "the batch at hand is counted, no other"
        self.save()
        sys.exit(143)


if __name__ == "__main__":
    loop = Loop(json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, loop.save_at_once if loop.saves == "handler" else loop.asked_to_stop)
    loop.run()
