"""MosaicML's programs: one at a time on this machine, and none outlives the test that ran it.

Their names in shared memory clash when two begin at once. The lock is held by the test, not by the program: what a
killed program leaves behind cannot hold it.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.turns import turn_of

WAIT_SECONDS = 90.0
SOURCE = Path(__file__).parents[1] / "src"
"""The folder of the library that is tested: another one may be installed."""


def run_alone(command: Sequence[Any], env: Mapping[str, str], seconds: float = 90.0) -> str:
    """Run one of MosaicML's programs and return its stdout; it must succeed within `seconds`."""
    with turn_of("peer", WAIT_SECONDS):
        return run_beside(command, env, seconds)


def run_beside(command: Sequence[Any], env: Mapping[str, str], seconds: float = 90.0) -> str:
    """Run a program that may run beside others, as `run_alone` does."""
    program = subprocess.Popen(
        [str(word) for word in command],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, faults = program.communicate(timeout=seconds)
    finally:
        _end(program)
    assert program.returncode == 0, f"{faults[-3000:]}\n(it ended with {program.returncode})"
    return told


def minimal_env(paths: Sequence[Any]) -> dict[str, str]:
    """No more of this environment than a program needs, and the folders to look for modules."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**keep, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}


def _end(program: "subprocess.Popen[str]") -> None:
    """Everything in the program's session ends: what it forked would keep its pipes open, and its memory's names."""
    with suppress(ProcessLookupError):  # the usual case: no process is left
        os.killpg(program.pid, signal.SIGKILL)
    program.wait(timeout=30)
