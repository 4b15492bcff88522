"""Programs that start a Spark Connect server, which PySpark puts on one port for all: one at a time on this machine."""

import os
import subprocess
import sys
from pathlib import Path

from tests.turns import turn_of

WAIT_SECONDS = 150.0


def connect_turn():
    """While inside, no other test starts such a server."""
    return turn_of("spark-connect", WAIT_SECONDS)


def run_on_connect(module: str, folder: Path, seconds: float) -> tuple[list[str], str]:
    """The lines that `python -m module folder` prints, and the end of what it says on stderr."""
    with connect_turn():
        done = subprocess.run(
            [sys.executable, "-m", module, str(folder)],
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    return done.stdout.splitlines(), done.stderr[-3000:]
