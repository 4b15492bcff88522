"""Programs that start a Spark Connect server; one at a time on a machine, because PySpark has one port for all."""

import os
import subprocess
import sys
from pathlib import Path

from tests.turns import turn_of

WAIT_SECONDS = 500.0  # for the turn
_RUN_SECONDS = 500.0  # a program takes 25 s on an idle machine, and 240 s at a load of 20 on two cores


def connect_turn():
    """Hold a lock so that no other test starts such a server."""
    return turn_of("spark-connect", WAIT_SECONDS)


def run_on_connect(module: str, folder: Path) -> tuple[list[str], str]:
    """Run `python -m module folder`, and return the lines that it prints and the end of its stderr."""
    with connect_turn():
        done = subprocess.run(
            [sys.executable, "-m", module, str(folder)],
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    return done.stdout.splitlines(), done.stderr[-3000:]
