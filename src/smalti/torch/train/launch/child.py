"""The program of a child process of `processes`: one rank, whose configuration comes on standard input."""

import json
import sys

from smalti.errors import TrainingError
from smalti.process import end_with_parent
from smalti.torch.train.config import TrainConfig
from smalti.torch.train.launch.processes import FINISHED_EXIT_CODE
from smalti.torch.train.loop import train_here

STOPPED_EXIT_CODE = 143
"""Exit code of a rank that SIGTERM stopped after it saved a checkpoint; the same as if the signal had killed it."""


def main() -> int:
    """Train as the rank that the environment names; return the exit code."""
    task = json.loads(sys.stdin.readline())
    end_with_parent(task["parent"])
    config = TrainConfig.from_json(task["config"])
    try:
        train_here(config, meeting_port=task["port"])
    except TrainingError as error:
        if not error.facts.get("stopped"):
            raise
        sys.stderr.write(f"{error}\n")
        return STOPPED_EXIT_CODE
    return FINISHED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(main())
