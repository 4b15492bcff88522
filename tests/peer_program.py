"""MosaicML's programs: one at a time on this machine, and none outlives the test that ran it.

Their names in shared memory clash when two begin at once. The lock is held by the test, not by the program: what a
killed program leaves behind cannot hold it.
"""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.turns import turn_of

WAIT_SECONDS = 500.0
FORKS = Path(__file__).parent / "golden" / "peer_forks.py"
SOURCE = Path(__file__).parents[1] / "src"
"""The folder of the library that is tested: another one may be installed."""


def run_alone(command: Sequence[Any], env: Mapping[str, str], seconds: float = 280.0) -> str:
    """Run one of MosaicML's programs and return its stdout; it must succeed within `seconds`."""
    with turn_of("peer", WAIT_SECONDS):
        return run_beside(command, env, seconds)


def run_beside(command: Sequence[Any], env: Mapping[str, str], seconds: float = 280.0) -> str:
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


def fork_alone(python: Path, paths: Sequence[Any], command: Sequence[Any], seconds: float = 280.0) -> None:
    """Run one of MosaicML's programs as `run_alone` does, forked by a process that has imported MosaicML."""
    with turn_of("peer", WAIT_SECONDS):
        program, faults = _forking(python, tuple(paths))
        print(json.dumps([str(word) for word in command]), file=program.stdin, flush=True)
        if not select.select([program.stdout], [], [], seconds)[0]:
            _forking.cache_clear()  # the answer could still come, and would be taken for that to the next program
            _end(program)
            raise TimeoutError(f"{command[0]} has not ended within {seconds:.0f} s")
        ended = program.stdout.readline()  # type: ignore[union-attr]
        assert ended == "0\n", f"{faults.read_text()[-3000:]}\n(it ended with {ended})"


@functools.cache
def _forking(python: Path, paths: tuple[Any, ...]) -> "tuple[subprocess.Popen[str], Path]":
    """Start the process that forks, which ends with this one, and return it with the file of what it complains of."""
    descriptor, faults = tempfile.mkstemp(prefix="smalti-peer-")
    program = subprocess.Popen(
        [str(python), str(FORKS)],
        env=minimal_env(paths),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=descriptor,
        text=True,
        start_new_session=True,
    )
    os.close(descriptor)
    atexit.register(Path(faults).unlink)
    atexit.register(_end, program)
    return program, Path(faults)


def minimal_env(paths: Sequence[Any]) -> dict[str, str]:
    """No more of this environment than a program needs, and the folders to look for modules."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**keep, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": "1"}


def _end(program: "subprocess.Popen[str]") -> None:
    """Everything in the program's session ends: what it forked would keep its pipes open, and its memory's names."""
    with suppress(ProcessLookupError):  # the usual case: no process is left
        os.killpg(program.pid, signal.SIGKILL)
    program.wait(timeout=60)
