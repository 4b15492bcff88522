"""The process that measures: runs one task, writes its figures to a file, and ends."""

import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.measures import MEASURES
from benchmarks.peers import Unsupported
from benchmarks.task import Task


def main(arguments: list[str]) -> int:
    """Takes the task as JSON and the path of the answer; returns an exit status."""
    task = Task(**json.loads(arguments[0]))
    answer: dict[str, Any]
    try:
        answer = {"figures": MEASURES[task.measure](task)}
    except Unsupported as error:
        answer = {"unsupported": str(error)}
    except Exception as error:  # noqa: BLE001 - the parent reports it beside the other results, with the traceback
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    answer["max_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    Path(arguments[1]).write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
