"""A trial as a process of its own. Run as a program, this module is that process; its task comes on standard input.

Intended behaviour:
1. The process gets its own session. SIGTERM ends it in seconds, with all ranks that it has started.
2. It ends when its parent does, even by SIGKILL.
3. Its events and its result have a pipe of their own. Whatever it prints, to standard output too, explains a failure.
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
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import IO, Any

from smalti.process import end_with_parent
from smalti.torch.train.config import LAUNCHERS
from smalti.torch.train.launchers.program import Program
from smalti.torch.train.launchers.start import run_program
from smalti.torch.train.run.events import Event
from smalti.torch.train.threads import waiting_of_threads

GRACE_SECONDS = 25.0
"""Between SIGTERM and SIGKILL: longer than the ranks of a trial are given."""
_MARK = "smalti-trial:"
"""Before each message: the interpreter may print to the same pipe before the program begins."""
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
                **waiting_of_threads(os.environ),  # several trials share the cores
                **os.environ,
                **environment,
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdin is not None  # noqa: S101 - it was opened as a pipe, as the others
        assert self._process.stdout is not None  # noqa: S101
        assert self._process.stderr is not None  # noqa: S101
        self._readers = [
            threading.Thread(target=_read, args=(pipe, take), name="smalti-trial", daemon=True)
            for pipe, take in ((self._process.stdout, self._take), (self._process.stderr, self._keep))
        ]
        for reader in self._readers:
            reader.start()
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
        self._join_readers()
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
        self._join_readers()

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(_READER_SECONDS)

    def _take(self, line: str) -> None:
        """Take a line of the pipe for messages."""
        before, mark, text = line.partition(_MARK)
        self._keep(before)
        if not mark:
            return
        try:
            message = json.loads(text)
            if "result" in message:
                self.result = dict(message["result"])
            else:
                self._events.put(dict(message))
        except (ValueError, TypeError):  # half a message, of a process that was killed
            self._keep(text)

    def _keep(self, line: str) -> None:
        if text := line.rstrip("\n"):
            self._last_lines.append(text)


def _read(pipe: IO[str], take: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            take(line)


def _message_pipe() -> IO[str]:
    """Return the pipe for messages, which was standard output; what is printed from now on goes to standard error."""
    sys.stdout.flush()
    pipe = os.fdopen(os.dup(1), "w")  # children do not inherit it
    os.dup2(2, 1)
    return pipe


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
    raise SystemExit(_STOPPED)  # the launcher ends its ranks


def _main() -> None:
    messages = _message_pipe()

    def send(message: Mapping[str, Any]) -> None:
        messages.write(f"{_MARK}{json.dumps(message)}\n")
        messages.flush()

    task = json.loads(sys.stdin.readline())
    end_with_parent(task["parent"])
    program = Program.from_json(task["program"])
    if LAUNCHERS[program.config.launcher].starts_processes:
        signal.signal(signal.SIGTERM, _stop)
    send({"result": run_program(program, send)})


if __name__ == "__main__":
    _main()


# ------------------------------------------------------------ a trial in this process


class _StoppedError(Exception):
    """The trial was asked to end."""


class InlineTrial:
    """A trial that runs on a thread of this process; it ends at its next event after it was asked to."""

    def __init__(self, program: Program) -> None:
        self.result: dict[str, Any] | None = None
        self.failure = ""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._handled = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(program,), name="smalti-trial", daemon=True)
        self._thread.start()

    def events(self) -> Iterator[Event]:
        """Return the events since the last call; the trial waits after each of them."""
        while not self._events.empty():
            yield self._events.get()
            self._handled.release()

    def has_ended(self) -> bool:
        """Return whether the trial is over."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Make the trial end at its next event."""
        self._stopped.set()
        self._handled.release()

    def kill(self) -> None:
        """Wait until the trial has ended; a thread cannot be ended."""
        self._thread.join(GRACE_SECONDS)

    def _run(self, program: Program) -> None:
        try:
            self.result = run_program(program, self._hear)
        except _StoppedError:
            self.failure = "it was stopped"
        except Exception as error:  # noqa: BLE001 - the function's own: the trial's failure
            self.failure = f"{type(error).__name__}: {error}"

    def _hear(self, event: Event) -> None:
        self._events.put(event)
        self._handled.acquire(timeout=GRACE_SECONDS)
        if self._stopped.is_set():
            raise _StoppedError
