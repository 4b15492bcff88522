"""A user's training loop that is preempted by SIGTERM; it saves in one of the two usual ways.

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
"""File of a life: the state, and the samples of all steps before it."""


class Loop:
    """A loop that collects ids of batches instead of training."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.path = Path(options["folder"]) / STATE
        self.saves = options["saves"]
        self.loader = StreamingDataLoader(StreamingDataset(remote=options["root"], shuffle=True), 4, **options["way"])
        found = json.loads(self.path.read_text()) if self.path.exists() else {"state": None, "seen": []}
        if found["state"] is not None:
            self.loader.load_state_dict(found["state"])
        self.done: tuple[Any, list[Any]] = (found["state"], found["seen"])
        self.stop = False

    def run(self) -> None:
        """Take steps until the epoch ends or the process must stop."""
        for batch in self.loader:
            time.sleep(STEP_SECONDS)
            # One assignment, so that a signal handler finds a consistent state and samples at any instruction.
            self.done = (self.loader.state_dict(), [*self.done[1], batch["id"].tolist()])
            print(len(self.done[1]), flush=True)
            if self.stop:
                self.save()
                sys.exit(143)

    def save(self) -> None:
        """Save state and samples atomically."""
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"state": self.done[0], "seen": self.done[1]}))
        part.replace(self.path)

    def asked_to_stop(self, *_: object) -> None:
        """Handle SIGTERM by setting a flag."""
        self.stop = True

    def save_at_once(self, *_: object) -> NoReturn:
        """Handle SIGTERM by saving at once, whatever the loader is doing."""
        now, then = self.loader.state_dict()["sample_in_epoch"], self.done[0]
        assert now - (then["sample_in_epoch"] if then else 0) in (0, 4), "only the current batch is counted"
        self.save()
        sys.exit(143)


if __name__ == "__main__":
    loop = Loop(json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, loop.save_at_once if loop.saves == "handler" else loop.asked_to_stop)
    loop.run()
