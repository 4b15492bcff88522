"""Starts ranks: has torch imported once, and forks them, so that a restart takes no seconds of a processor.

Lines in: {"job": ..., "ranks": [...]}. Lines out: {"job", "life", "rank", "pid"} and {"pid", "status"}.
"""

import json
import os
import select
import sys
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from typing import Any

import s3fs  # noqa: F401 -- once, before the forks

from benchmarks.soak.rank import live
from benchmarks.soak.told import Told, told_of

_LOOK_SECONDS = 0.05


def main() -> None:
    """Until standard input ends."""
    running: dict[int, ForkProcess] = {}
    waiting = b""
    tell({"ready": os.getpid()})
    while True:
        if select.select([0], [], [], _LOOK_SECONDS)[0]:
            data = os.read(0, 1 << 20)
            if not data:
                break
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                for given in asked["ranks"]:
                    told = told_of(given)
                    process = get_context("fork").Process(target=_own_group, args=(told,), name=told.name)
                    process.start()
                    running[process.pid or 0] = process
                    tell({"job": asked["job"], "life": told.life, "rank": told.rank, "pid": process.pid})
        for pid, process in list(running.items()):
            if process.exitcode is not None:
                del running[pid]
                tell({"pid": pid, "status": process.exitcode})
    for process in running.values():
        process.kill()


def tell(facts: dict[str, Any]) -> None:
    """A line to whoever listens."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _own_group(told: Told) -> None:
    os.setpgid(0, 0)  # its workers are in it: a kill of the group leaves none
    null, said = (
        os.open(os.devnull, os.O_RDONLY),
        os.open(f"{told.folder}/said", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    os.dup2(null, 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.close(null)
    os.close(said)
    live(told)


if __name__ == "__main__":
    main()
