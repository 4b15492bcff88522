"""A trial in this process, on a thread: for small models, and for looking at a function with a debugger."""

import queue
import threading
from collections.abc import Iterator
from typing import Any

from smalti.torch.train.launchers.program import Program
from smalti.torch.train.launchers.start import run_program
from smalti.torch.train.run.events import Event
from smalti.torch.tuning.trial_process import GRACE_SECONDS


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
