"""What a child process of launch_processes runs: one rank, told on standard input what to train."""

import json
import os
import signal
import sys
import threading
import time

from smalti.errors import TrainingError
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.loop import train_here

STOPPED_EXIT_CODE = 143
"""As if SIGTERM had ended the process, which it did, in good order."""
_ORPHAN_POLL_SECONDS = 1.0
_ORPHAN_GRACE_SECONDS = 20.0


def main() -> int:
    """Trains as the rank that the environment tells; returns the exit code."""
    order = json.loads(sys.stdin.readline())
    _end_with(order["parent"])
    config = TrainConfig.from_json(order["config"])
    try:
        train_here(config, meeting_port=order["port"])
    except TrainingError as error:
        if not error.facts.get("stopped"):
            raise
        sys.stderr.write(f"{error}\n")
        return STOPPED_EXIT_CODE
    return 0


def _end_with(parent: int) -> None:
    """Ends this process when its parent is gone: by SIGTERM, so that it saves, and for good if that takes too long."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="smalti-orphan-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
