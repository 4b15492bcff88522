"""The launcher `processes`: ranks as child processes on this machine.

Run as a program, this module is one such child process, whose task comes on standard input.

Intended behaviour of `processes`:
1. Each rank is the leader of its own session, so that it can be killed together with all processes that it started.
2. When a rank fails, the others are killed at once: they could only wait for it. The error names the first that failed,
   or the one that still ran when others had waited for it for `timeout_seconds`.
3. When the parent is interrupted, or gets SIGTERM or SIGUSR1, all ranks get SIGTERM, finish their step and save a
   checkpoint. Ranks that are still running after `grace_seconds` are killed.
4. When the parent dies, even by SIGKILL, the ranks exit too: on Linux by a signal of the kernel, elsewhere by polling.
5. A rank has finished only if it exits with `_FINISHED_EXIT_CODE`; `os._exit(0)` in a model or library is a failure.
6. Secrets are written neither to the disk nor to a command line: the configuration is sent through a pipe.
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
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smalti.errors import TrainingError
from smalti.process import end_with_parent
from smalti.torch.train.config import RunConfig
from smalti.torch.train.launchers.start import (
    LOST,
    OUTAGE,
    OWN,
    STOPPED,
    SUPERSEDED,
    Program,
    kind_of,
    pickled,
    unpickled,
)
from smalti.torch.train.life import StopSignal
from smalti.torch.train.ranks import meeting_store
from smalti.torch.train.run.events import METRICS_FILE, EventTail, OnEvent
from smalti.torch.train.run.store import opened_run
from smalti.torch.train.threads import waiting_of_threads

_FINISHED_EXIT_CODE = 88
"""Exit code of a rank that trained to the end."""
_EXIT_CODES = {STOPPED: 143, OUTAGE: 75, LOST: 76, SUPERSEDED: 77}
"""Exit codes of ranks that failed in a known way; 143 is that of a process which SIGTERM has ended, too."""
_KINDS = {code: kind for kind, code in _EXIT_CODES.items()}
_POLL_SECONDS = 0.05
_CAUSE_SECONDS = 10.0  # longest wait for the rank that others have lost
_KILL_SECONDS = 15.0  # longest wait for a killed rank
_READER_SECONDS = 5.0  # longest wait for the rest of a rank's output
_TAIL_LINES = 40  # of a rank's output in its error
# The kernel is asked to signal the parent's death (1 = PR_SET_PDEATHSIG) before anything slow is imported.
_BOOT = """
import os, runpy, signal, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
runpy.run_module("smalti.torch.train.launchers.processes", run_name="__main__", alter_sys=True)
"""


def run_in_processes(
    program: Program,
    on_event: OnEvent | None = None,
    *,
    stop: StopSignal | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run with `num_processes` child processes of this one, and return the result; blocks until all have ended.

    Args:
        program: the program.
        on_event: called with the events of the run, and the output of the processes.
        stop: stops the run when it is requested, also from other threads.
        environment: variables of the processes, beside those of this one.

    Raises:
        TrainingError: a rank failed; the message names it and holds its last lines.
    """
    config = program.config
    with opened_run(config) as run:
        run.prepare()
        tail = EventTail(run.path / METRICS_FILE, on_event) if on_event is not None else None
        # The parent holds the ranks' meeting point on a port that the kernel chose, so no other process can take it.
        store = meeting_store(None, config, config.num_processes)
        scratch = None if run.path == config.local_run_dir else str(run.path)
        task = {"program": pickled(program), "port": store.port, "parent": os.getpid(), "scratch": scratch}
        with stop or StopSignal() as stopping, _started(config, json.dumps(task), environment or {}) as ranks:
            while any(rank.process.poll() is None for rank in ranks):
                _deliver(ranks, tail, on_event)
                if stopping.requested:
                    _stop(ranks, grace_seconds=config.grace_seconds)
                    _mark_hung(ranks)
                    break
                if any(rank.has_failed for rank in ranks):
                    _await_cause(ranks)
                    break
                time.sleep(_POLL_SECONDS)
            failed = min((rank for rank in ranks if rank.is_hung or rank.has_failed), key=_precedence, default=None)
        del store  # an error below would hold it, with its thread, as long as its traceback is kept
        _deliver(ranks, tail, on_event)
        if failed is not None:
            raise failed.as_error(config, was_stopped=stopping.requested)
        return run.read_result()


@dataclass
class _Rank:
    """A child process and its output."""

    number: int
    process: "subprocess.Popen[str]"
    lines: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)
    """Lines that are not yet delivered as events."""
    last_lines: "deque[str]" = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    reader: threading.Thread | None = None
    is_hung: bool = False
    """True if it still ran when the others had waited for it too long."""

    def read(self) -> None:
        """Read the output until it ends; runs on a thread, so that a full pipe never blocks the child."""
        assert self.process.stdout is not None  # noqa: S101 - it was opened as a pipe
        with self.process.stdout as output:
            for line in output:
                self.lines.put(line.rstrip("\n"))
                self.last_lines.append(line.rstrip("\n"))

    @property
    def has_failed(self) -> bool:
        """True if the rank ended without finishing its training."""
        return self.process.poll() not in {None, _FINISHED_EXIT_CODE}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the rank and all processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def as_error(self, config: RunConfig, *, was_stopped: bool) -> TrainingError:
        """Return the error for this rank's failure."""
        tail = "\n".join(self.last_lines) or "(it wrote nothing)"
        facts: dict[str, Any] = {"kind": "hung", "output": tail}
        if self.is_hung:
            what = "did not answer the others for `timeout_seconds`, and was ended"
            if was_stopped:
                what = f"did not stop within {config.grace_seconds:g} s (`grace_seconds`), and was ended"
        else:
            code = self.process.returncode
            what = f"ended with exit code {code}"
            if code == 0:
                what += " before its training was over, and left no result: something called `exit`"
            elif code < 0:
                name = signal.Signals(-code).name
                hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
                what = f"was ended by {name}{hint}"
            facts |= {"exit_code": code, "kind": "killed" if code < 0 else _KINDS.get(code, OWN)}
            if code == _EXIT_CODES[OUTAGE]:
                facts["is_transient"] = True
        if was_stopped:
            facts["kind"] = STOPPED
        text = f"rank {self.number} of {config.num_processes} {what}. Its last lines:\n{tail}"
        return TrainingError(text, rank=self.number, **facts)


@contextlib.contextmanager
def _started(config: RunConfig, task: str, environment: Mapping[str, str]) -> Iterator[list[_Rank]]:
    """Start the child processes with their task, and end them all when the body ends, for whatever reason."""
    ranks: list[_Rank] = []
    try:
        for number in range(config.num_processes):
            variables = {
                **waiting_of_threads(os.environ),
                **os.environ,
                **environment,
                "RANK": str(number),
                "WORLD_SIZE": str(config.num_processes),
                "LOCAL_RANK": str(number),
                "LOCAL_WORLD_SIZE": str(config.num_processes),
                "PYTHONUNBUFFERED": "1",
                # The children can import what this process can, such as a model's `module:function`.
                "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            }
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-c", _BOOT, str(os.getpid())],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            rank = _Rank(number, process)
            ranks.append(rank)  # those that were started are ended if a later one fails
            rank.reader = threading.Thread(target=rank.read, name=f"smalti-rank-{number}", daemon=True)
            rank.reader.start()
            assert process.stdin is not None  # noqa: S101 - it was opened as a pipe
            # A child that died at once is reported by its exit code and output, which say more than a broken pipe.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(task + "\n")
                process.stdin.close()
        yield ranks
    except BaseException:
        _end(ranks, grace_seconds=config.grace_seconds)
        raise
    finally:
        _end(ranks, grace_seconds=0.0)


def _stop(ranks: Sequence[_Rank], *, grace_seconds: float) -> None:
    """Ask the ranks to stop, and wait until they have or the grace period is over."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(rank.process.poll() is None for rank in ranks) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _end(ranks: Sequence[_Rank], *, grace_seconds: float) -> None:
    """End the ranks that still run, by SIGTERM and after the grace period by SIGKILL; blocks until all have exited."""
    try:
        if grace_seconds:
            _stop(ranks, grace_seconds=grace_seconds)
    finally:
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        for rank in ranks:
            rank.process.wait(timeout=_KILL_SECONDS)
            if rank.reader is not None:
                rank.reader.join(timeout=_READER_SECONDS)


def _deliver(ranks: Sequence[_Rank], tail: EventTail | None, on_event: OnEvent | None) -> None:
    """Deliver the events and the output of the ranks since the last call."""
    if tail is None or on_event is None:
        return
    tail.poll()
    for rank in ranks:
        while not rank.lines.empty():
            line = rank.lines.get()
            on_event({"event": "output", "time": round(time.time(), 3), "rank": rank.number, "line": line})


def _await_cause(ranks: Sequence[_Rank]) -> None:
    """Wait until a rank has failed for a reason of its own; returns after `_CAUSE_SECONDS` in any case.

    A rank often ends first that has only lost its connection to the one that caused the failure, which is still ending.
    """
    deadline = time.monotonic() + _CAUSE_SECONDS
    while time.monotonic() < deadline and any(rank.process.poll() is None for rank in ranks):
        if any(rank.has_failed and rank.process.returncode != _EXIT_CODES[LOST] for rank in ranks):
            return
        time.sleep(_POLL_SECONDS)
    _mark_hung(ranks)


def _mark_hung(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.is_hung = rank.process.poll() is None


def _precedence(rank: _Rank) -> int:
    """Return how early a failed or hung rank is taken for the one that caused the failure of all.

    A rank that was killed by a signal is taken first, then one that exited with status 0, then one that a store did not
    answer, then any other, then one that hangs, and last one that lost another rank.
    """
    code = rank.process.returncode
    if rank.is_hung:
        return 4
    return 0 if code < 0 else {0: 1, _EXIT_CODES[OUTAGE]: 2, _EXIT_CODES[LOST]: 5}.get(code, 3)


def _main() -> int:
    """Run as the rank that the environment names; return the exit code."""
    task = json.loads(sys.stdin.readline())
    end_with_parent(task["parent"])
    program: Program = unpickled(task["program"])
    try:
        program.run(meeting_port=task["port"], scratch=task["scratch"])
    except Exception as error:
        kind = kind_of(error)
        if kind == OWN:
            raise
        if kind == STOPPED:
            sys.stderr.write(f"{error}\n")
        else:
            traceback.print_exc()
        return _EXIT_CODES[kind]
    return _FINISHED_EXIT_CODE


if __name__ == "__main__":
    sys.exit(_main())
