"""Ranks as child processes of this one, on this machine.

Intended behaviour:
1. Each rank is the leader of a session of its own, so that it can be ended with all that it started.
2. When a rank fails, the others are killed at once: they could only wait for it. The error names the first that failed.
3. When the parent is interrupted, all ranks get SIGTERM, finish their step and save; what is left after a
grace is killed.
4. When the parent dies, even by SIGKILL, the ranks end too: on Linux by the kernel's signal, elsewhere by
looking for it.
5. A rank has finished only if it says so by its exit code; `os._exit(0)` in the model or a library is a failure.
6. Nothing that holds a secret is written to disk or to a command line: the configuration goes through a pipe.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from smalti.errors import TrainingError
from smalti.torch.train.config import TrainConfig, TrainResult
from smalti.torch.train.events import METRICS_FILE, Event, EventTail, OnEvent
from smalti.torch.train.ranks import meet_at
from smalti.torch.train.run_folder import read_result

FINISHED_EXIT_CODE = 88
"""Of a rank that trained to the end. Success by any other way out, such as `os._exit(0)` in a library, is a failure."""

_POLL_SECONDS = 0.05
_GRACE_SECONDS = 15.0
_READER_SECONDS = 5.0
_TAIL_LINES = 40

# Before anything slow is imported, the kernel is asked to pass the parent's death on (1 = PR_SET_PDEATHSIG).
_BOOT = """
import os, runpy, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
runpy.run_module("smalti.torch.train.launch.worker", run_name="__main__", alter_sys=True)
"""


def train_in_processes(config: TrainConfig, on_event: OnEvent | None = None) -> TrainResult:
    """Trains with `config.num_processes` child processes of this one; blocks until all have ended.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines.
    """
    run_dir = Path(config.run_dir)
    tail = EventTail(run_dir / METRICS_FILE, on_event) if on_event is not None else None
    # The meeting point of the ranks is held here, on a port that the kernel chose: no other process can take it away.
    store = meet_at(None, config, config.num_processes)
    with _started(config, store.port) as ranks:
        while any(rank.process.poll() is None for rank in ranks):
            _deliver(ranks, tail, on_event)
            if any(rank.has_failed for rank in ranks):
                break
            time.sleep(_POLL_SECONDS)
        failed = _failed(ranks)
    _deliver(ranks, tail, on_event)
    if failed is not None:
        raise failed.as_error(len(ranks))
    return read_result(run_dir)


@dataclass
class _Rank:
    """A child process, and what it said."""

    number: int
    process: "subprocess.Popen[str]"
    lines: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)
    last: "deque[str]" = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    reader: threading.Thread | None = None

    def read(self) -> None:
        """Takes in the output until it ends; on a thread, so that a full pipe never stops the child."""
        assert self.process.stdout is not None  # noqa: S101 - it was opened as a pipe
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line.rstrip("\n"))
                self.last.append(line.rstrip("\n"))

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than by finishing its training."""
        return self.process.poll() not in {None, FINISHED_EXIT_CODE}

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the rank and everything it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def as_error(self, num_ranks: int) -> TrainingError:
        """The failure of this rank, in words."""
        code = self.process.returncode
        output = "\n".join(self.last)
        return TrainingError(
            f"rank {self.number} of {num_ranks} {_how(code)}. Its last lines:\n{output or '(it wrote nothing)'}",
            rank=self.number,
            exit_code=code,
            output=output,
        )


@contextlib.contextmanager
def _started(config: TrainConfig, port: int) -> Iterator[list[_Rank]]:
    """The child processes; none of them is left when the body is over, however it ends."""
    ranks: list[_Rank] = []
    try:
        for number in range(config.num_processes):
            ranks.append(_start(config, number, port))  # noqa: PERF401 - those begun must be ended if a later one fails
        yield ranks
    except BaseException:
        _end(ranks, grace_seconds=_GRACE_SECONDS)
        raise
    finally:
        _end(ranks, grace_seconds=0.0)


def _start(config: TrainConfig, number: int, port: int) -> _Rank:
    count = config.num_processes
    environment = {
        # Threads that wait for work sleep. Spinning ones fight for cores that do other things too: on two busy cores a
        # step took 3.4 s instead of 0.2 s.
        "OMP_WAIT_POLICY": "PASSIVE",
        **_detect_inherited(),
        "RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(number),
        "LOCAL_WORLD_SIZE": str(count),
        "PYTHONUNBUFFERED": "1",
        # What this process can import, a model's `module:function` among it, its children can.
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", _BOOT, str(os.getpid())],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    rank = _Rank(number, process)
    rank.reader = threading.Thread(target=rank.read, name=f"smalti-rank-{number}", daemon=True)
    rank.reader.start()
    assert process.stdin is not None  # noqa: S101 - it was opened as a pipe
    # A child that died at once is found by its exit code, with its output; the broken pipe tells less.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps({"config": config.to_json(), "port": port, "parent": os.getpid()}) + "\n")
        process.stdin.close()
    return rank


def _detect_inherited() -> dict[str, str]:
    return dict(os.environ)


def _end(ranks: Sequence[_Rank], *, grace_seconds: float) -> None:
    """Ends what still runs: by SIGTERM while the grace lasts, then by SIGKILL; returns when all are gone."""
    try:
        if grace_seconds:
            for rank in ranks:
                rank.signal(signal.SIGTERM)
            deadline = time.monotonic() + grace_seconds
            while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
    finally:
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        for rank in ranks:
            rank.process.wait(timeout=_GRACE_SECONDS)
            if rank.reader is not None:
                rank.reader.join(timeout=_READER_SECONDS)


def _deliver(ranks: Sequence[_Rank], tail: EventTail | None, on_event: OnEvent | None) -> None:
    """Hands on what the ranks have reported and written since the last time."""
    if tail is None or on_event is None:
        return
    tail.poll()
    for rank in ranks:
        while not rank.lines.empty():
            event: Event = {
                "event": "output",
                "time": round(time.time(), 3),
                "rank": rank.number,
                "line": rank.lines.get(),
            }
            on_event(event)


def _failed(ranks: Sequence[_Rank]) -> _Rank | None:
    """Return the rank to blame, before the others are killed; the others may have failed because they lost it.

    One that a signal ended comes first, then one that exited with success, then the first one seen to fail.
    """
    failed = [rank for rank in ranks if rank.has_failed]
    killed = [rank for rank in failed if rank.process.returncode < 0]
    left = [rank for rank in failed if rank.process.returncode == 0]
    return next(iter(killed or left or failed), None)


def _how(code: int) -> str:
    if code == 0:
        return "ended with exit code 0 before its training was over, and left no result: something called `exit`"
    if code > 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
