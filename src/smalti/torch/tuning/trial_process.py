"""A trial as a process of its own. Run as a program, this module is that process; its task comes on standard input.

Intended behaviour:
1. The process gets its own session. SIGTERM ends it in seconds, with all ranks that it has started.
2. It ends when its parent does, even by SIGKILL.
3. Its events and its result are lines of its output with a mark; other lines explain a failure.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from smalti.process import end_with_parent
from smalti.torch.train.config import LAUNCHERS
from smalti.torch.train.launchers.program import Program
from smalti.torch.train.launchers.start import run_program
from smalti.torch.train.run.events import Event

GRACE_SECONDS = 25.0
"""Between SIGTERM and SIGKILL: longer than the ranks of a trial are given."""
_MARK = "smalti-trial:"
_TAIL_LINES = 30
_READER_SECONDS = 10.0
_STOPPED = 143


class TrialProcess:
    """A trial that runs in a child process.

    Args:
        task: `Program.to_json()`.
        environment: variables for the process, beside those of this one.
    """

    def __init__(self, task: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.result: dict[str, Any] | None = None
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-m", __name__],
            env={
                "OMP_WAIT_POLICY": "PASSIVE",  # several trials share the cores
                **os.environ,
                **environment,
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="smalti-trial", daemon=True)
        self._reader.start()
        assert self._process.stdin is not None  # noqa: S101 - it was opened as a pipe
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:  # its exit code says more
            pipe.write(json.dumps({"program": dict(task), "parent": os.getpid()}) + "\n")

    def events(self) -> Iterator[Event]:
        """Return the events since the last call."""
        while not self._events.empty():
            yield self._events.get()

    def has_ended(self) -> bool:
        """Return whether the trial is over and all its events are here."""
        if self._process.poll() is None:
            return False
        self._reader.join(_READER_SECONDS)
        return True

    @property
    def failure(self) -> str:
        """The reason why an ended trial has no result."""
        output = "\n".join(self._last_lines) or "(it wrote nothing)"
        return f"its process ended with exit code {self._process.returncode}: {output}"

    def stop(self) -> None:
        """Ask the trial to end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the trial now; blocks until it has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(GRACE_SECONDS)
        self._reader.join(_READER_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 - it was opened as a pipe
        with self._process.stdout as lines:
            for line in lines:
                if not line.startswith(_MARK):
                    self._last_lines.append(line.rstrip("\n"))
                    continue
                message = json.loads(line.removeprefix(_MARK))
                if "result" in message:
                    self.result = message["result"]
                else:
                    self._events.put(message)


def _send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{_MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
    raise SystemExit(_STOPPED)  # the launcher ends its ranks


def _main() -> None:
    task = json.loads(sys.stdin.readline())
    end_with_parent(task["parent"])
    program = Program.from_json(task["program"])
    if LAUNCHERS[program.config.launcher].starts_processes:
        signal.signal(signal.SIGTERM, _stop)
    _send({"result": run_program(program, _send)})


if __name__ == "__main__":
    _main()
