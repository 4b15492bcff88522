"""MosaicML's programs: one at a time on this machine, and none outlives the test that ran it.

Their names in shared memory clash when two begin at once. The lock is held by the test, not by the program: what a
killed program leaves behind cannot hold it.
"""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

WAIT_SECONDS = 90.0


def run_alone(command: Sequence[Any], env: Mapping[str, str], seconds: float = 90.0) -> str:
    """What the program prints on stdout; it must end well, and within `seconds` of its turn."""
    with _turn():
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
    with suppress(ProcessLookupError):  # the usual case: nobody is left
        os.killpg(program.pid, signal.SIGKILL)
    program.wait(timeout=30)


@contextmanager
def _turn() -> Iterator[None]:
    path = os.path.join(tempfile.gettempdir(), f"smalti-peer-{os.getuid()}.lock")
    deadline = time.monotonic() + WAIT_SECONDS
    with open(path, "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, f"another test held {path} for {WAIT_SECONDS:.0f} s"
                time.sleep(0.1)
        yield
