"""One trainer at a time in a run folder: a lock that the kernel frees when its holder dies, and the count of lives."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from smalti.errors import TrainingError
from smalti.torch.train.events import LineLog, read_lines

_WAIT_SECONDS = 30.0  # a killed run's ranks may still be saving their last checkpoint
_POLL_SECONDS = 0.2


@contextlib.contextmanager
def run_lock(run_dir: Path, *, wait_seconds: float = _WAIT_SECONDS) -> Iterator[None]:
    """Holds the run folder for the body; blocks up to `wait_seconds`.

    Raises:
        TrainingError: another process trains there.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise TrainingError(
            f"`run_dir` {run_dir} cannot be written: {error}. Choose a folder that this user may write to.",
            run_dir=str(run_dir),
        ) from error
    deadline = time.monotonic() + wait_seconds
    try:
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise TrainingError(
                    f"another process has been training in {run_dir} for the last {wait_seconds:.0f} s; "
                    "wait for it, end it, or choose another `run_dir`.",
                    run_dir=str(run_dir),
                )
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def begin_life(run_dir: Path, *, num_ranks: int) -> int:
    """Count one more start of the run, under its lock, and return its number, from 0.

    Raises:
        TrainingError: the file that counts them is damaged or cannot be written.
    """
    path = run_dir / "lives.jsonl"
    log = LineLog(path)
    try:
        life = len(read_lines(path, advice="Restore the file, or remove that line and start the run again."))
        log.append({"life": life, "num_ranks": num_ranks, "time": round(time.time(), 3), "pid": os.getpid()})
        return life
    finally:
        log.close()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
