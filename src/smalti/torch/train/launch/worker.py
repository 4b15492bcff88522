"""What a child process of launch_processes runs: one rank, told on standard input what to train."""

import json
import sys

from smalti.errors import TrainingError
from smalti.orphans import end_with_parent
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.launch.processes import FINISHED_EXIT_CODE
from smalti.torch.train.loop import train_here

STOPPED_EXIT_CODE = 143
"""As if SIGTERM had ended the process, which it did, in good order."""


def main() -> int:
    """Train as the rank that the environment names; return the exit code."""
    order = json.loads(sys.stdin.readline())
    end_with_parent(order["parent"])
    config = TrainConfig.from_json(order["config"])
    try:
        train_here(config, meeting_port=order["port"])
    except TrainingError as error:
        if not error.facts.get("stopped"):
            raise
        sys.stderr.write(f"{error}\n")
        return STOPPED_EXIT_CODE
    return FINISHED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
