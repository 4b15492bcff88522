"""A life of a run on one rank: what each start of the processes of a run holds until it ends.

A run has several lives. Each resumes from the newest checkpoint.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType

from smalti.ledger import LedgerWriter
from smalti.process import is_orphan
from smalti.torch.train.config import RunConfig
from smalti.torch.train.ranks import Ranks, joined_ranks
from smalti.torch.train.run.events import METRICS_FILE, EventLog, OnEvent
from smalti.torch.train.run.folder import SAMPLES_FOLDER
from smalti.torch.train.run.store import LocalRun, opened_run

BY_FUNCTION = "`request_stop`"
STOPS = ("SIGTERM", "SIGUSR1", BY_FUNCTION)
"""Causes of a stop, as errors name them; of several at once, the first is named."""


class StopSignal:
    """A context in which SIGTERM and SIGUSR1 request a stop instead of ending the process.

    SIGTERM is what Kubernetes, spot instances and Slurm send before they kill; SIGUSR1 is what Slurm's `--signal` is
    asked to send earlier. A signal is left alone if it has another handler (Dagster installs one for SIGTERM, which
    raises an exception), and outside the main thread, where Python cannot install handlers.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        """One of `STOPS`: what requested the stop first; None: nothing."""
        self.is_orphaned = False
        """True if the death of the process that started this rank was the signal: it failed, and stopped nothing."""
        self._installed: list[signal.Signals] = []

    @property
    def requested(self) -> bool:
        """True if the run is to stop."""
        return self.cause is not None

    def request(self, cause: str) -> None:
        """Request a stop, for one of the causes in `STOPS`; from any thread."""
        self.cause = self.cause or cause

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._request)
                    self._installed.append(number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._installed:
            signal.signal(number, signal.SIG_DFL)
        self._installed.clear()

    def _request(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        if not self.requested:
            self.is_orphaned = is_orphan()  # a parent that was asked to stop may die after it has passed that on
        self.request(signal.Signals(number).name)


@dataclass(frozen=True)
class Life:
    """One start of a run, seen from one rank: the other ranks, its files and records, and the signal that stops it."""

    number: int
    ranks: Ranks
    run: LocalRun
    events: EventLog
    ledger: LedgerWriter | None
    stop: StopSignal
    at_end: Callable[[Callable[[], object]], object]
    """Registers a function to be called before the life ends, for whatever reason."""

    def samples_so_far(self) -> Callable[[], None]:
        """Return a function that publishes this rank's file of the ledger as it is now."""
        return self.run.samples_so_far(None if self.ledger is None else self.ledger.path)

    def put_samples(self) -> None:
        """Publish this rank's file of the ledger so far."""
        self.samples_so_far()()

    def put_logs(self) -> None:
        """Publish the ledger and, on rank 0, the log of events so far."""
        self.put_samples()
        if self.ranks.is_first:
            self.run.put_log()


@contextlib.contextmanager
def begun_life(
    config: RunConfig, on_event: OnEvent | None, *, meeting_port: int | None, scratch: str | None
) -> Iterator[Life]:
    """Begin a life of a run as one rank: that of the process group, of the environment, or the only one. Collective.

    Args:
        config: the run.
        on_event: called with the events of rank 0.
        meeting_port: port on this machine at which the ranks meet; None: as the environment says.
        scratch: the local folder for files that are put to a store, made by the process that started this one.

    Raises:
        TrainingError: another process trains in the same folder, or a rank is gone.
        WorldMismatch: so many ranks cannot work on the run.
        StoreError: the run's store cannot be read or written.
    """
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        ranks = stack.enter_context(joined_ranks(config, meeting_port))
        config.check_ranks(ranks.num_ranks)
        run = stack.enter_context(opened_run(config, scratch))
        # Rank 0 holds the run until the stack unwinds, or the process dies.
        number = ranks.run_on_first(
            lambda: stack.enter_context(run.begun(num_ranks=ranks.num_ranks)), "begin a life of the run"
        )
        events = EventLog(run.path / METRICS_FILE if ranks.is_first else None, on_event)
        stack.callback(events.close)
        ledger: LedgerWriter | None = None
        if config.log_samples:
            ledger = stack.enter_context(LedgerWriter(run.path / SAMPLES_FOLDER, life=number, world=ranks.world))
        yield Life(number, ranks, run, events, ledger, stop, stack.callback)
