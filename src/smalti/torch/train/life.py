"""A life of a run on one rank: what each start of the processes of a run holds until it ends, and its checkpoints.

A run has several lives. Each resumes from the newest checkpoint, and writes its own while the loop continues.

Intended behaviour of a save:
1. All ranks agree on the files that each contributes. These are copied to a local folder and the state to memory; then
   the loop continues. Hashing, flushing and putting are done by a thread.
2. One checkpoint is written at a time: the next save waits for it, for `timeout_seconds` at most.
3. Rank 0 publishes a checkpoint when all ranks have contributed their files and their part of the ledger. The threads
   of the ranks agree on that in a process group of their own.
4. A fault of a thread is raised on all ranks by the next save, `should_stop` or `finish`. A life that ends by an
   exception waits for the checkpoint that is being written, for `grace_seconds` at most. After that, the thread neither
   publishes nor removes anything in a local folder: the next life may have begun there.
"""

import contextlib
import copy
import logging
import operator
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import torch

from smalti.errors import CheckpointError, SmaltiError, TrainingError
from smalti.ledger import LedgerWriter
from smalti.process import is_orphan
from smalti.torch.train.config import RunConfig
from smalti.torch.train.ranks import Ranks, joined_ranks
from smalti.torch.train.run.checkpoint import CheckState
from smalti.torch.train.run.events import METRICS_FILE, EventLog, OnEvent
from smalti.torch.train.run.files import (
    Identity,
    Snapshot,
    Written,
    check_equal,
    copy_files,
    doubtful_names,
    given_files,
    hashes_of,
)
from smalti.torch.train.run.store import SAMPLES_FOLDER, LocalRun, opened_run

BY_FUNCTION, DONE = "`request_stop`", "`stop`"
STOPS = ("SIGTERM", "SIGUSR1", BY_FUNCTION, DONE)
"""Causes of a stop, as errors name them; of several at once, the first is named. `DONE`: the training is over."""
_CHECK_SECONDS = 1.0
"""Between two exchanges of the ranks whether to stop, about; an exchange of each step would wait for all ranks."""
_MOST_CALLS = 16
"""Calls of `should_stop` between two exchanges at most: later steps may take longer than those before."""


class StopSignal:
    """A context in which SIGTERM and SIGUSR1 request a stop instead of ending the process.

    SIGTERM is what Kubernetes, spot instances and Slurm send before they kill; SIGUSR1 is what Slurm's `--signal` is
    asked to send earlier. A signal is left alone if it has another handler (Dagster installs one for SIGTERM, which
    raises an exception), and outside the main thread, where Python cannot install handlers.
    """

    def __init__(self) -> None:
        self.cause: str | None = None
        """One of `STOPS`: what requested the stop first; None: nothing."""
        self.reason = ""
        """The reason that was given with `DONE`."""
        self.is_orphaned = False
        """True if the death of the process that started this rank was the signal: it failed, and stopped nothing."""
        self._installed: list[signal.Signals] = []

    @property
    def requested(self) -> bool:
        """True if the run is to stop."""
        return self.cause is not None

    def request(self, cause: str, reason: str = "") -> None:
        """Request a stop, for one of the causes in `STOPS`; from any thread. One that resumes later comes first."""
        self.reason = self.reason or reason
        if self.cause is None or self.cause == DONE:
            self.cause = cause

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
        if self.cause in (None, DONE):
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

    def put_logs(self) -> None:
        """Publish the ledger and, on rank 0, the log of events so far."""
        self.samples_so_far()()
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


# ------------------------------------------------------------ checkpoints


_LAST_STEP = 10**15
_OWN_SHARE = 0.8  # of `timeout_seconds`: rank 0 waits for its thread while the others wait for rank 0
_log = logging.getLogger("smalti.train")
T = TypeVar("T")
MakeSnapshot = Callable[[], Snapshot]
Files = str | Path | None


@dataclass
class _Write:
    """One checkpoint that is being written, on one rank."""

    step: int
    address: str
    staging: Path
    names: Sequence[str]
    """Files that this rank contributes."""
    snapshot: Snapshot | None = None
    """The state; rank 0 has it."""
    held_seconds: float = 0.0
    """Seconds that the loop waited."""
    seconds: float = 0.0
    """From the call of `save` to the end."""
    fault: SmaltiError | None = None
    thread: threading.Thread = field(init=False)
    began: float = field(default_factory=time.perf_counter)


class _Pause:
    """The calls of `should_stop` until the next exchange of the ranks; their number is equal on all ranks."""

    def __init__(self) -> None:
        self._calls, self._length, self._began = 0, 1, time.perf_counter()

    def is_over(self) -> bool:
        """Count a call, and return whether it is one with an exchange."""
        self._calls += 1
        return self._calls >= self._length

    def seconds_per_call(self) -> float:
        """Return the mean time between two calls since the last exchange."""
        return (time.perf_counter() - self._began) / self._calls

    def begin(self, seconds_per_call: float) -> None:
        """Begin the next pause, at most twice as long as the last one, after calls that took so long."""
        wanted = int(_CHECK_SECONDS / max(seconds_per_call, 1e-6))
        self._length = max(1, min(wanted, 2 * self._length, _MOST_CALLS))
        self._calls, self._began = 0, time.perf_counter()


class Saves:
    """The checkpoints of one life of a run, on one rank. `save`, `should_stop` and `finish` are collective."""

    def __init__(self, life: Life, config: RunConfig, check_state: CheckState) -> None:
        self._life, self._ranks, self._events = life, life.ranks, life.events
        self._timeout, self._grace = config.timeout_seconds, config.grace_seconds
        self._is_closed, self._closing = False, threading.Lock()
        self.checkpoints = life.run.checkpoints(
            keep=config.keep_checkpoints,
            life=life.number,
            check_state=check_state,
            keep_best=config.keep_best,
            guard=self._while_open,
        )
        self._apart: Ranks = life.ranks.apart(config.timeout_seconds)
        self._last: _Write | None = None
        self._last_step = 0
        """Step of the newest checkpoint: the one that the life resumed at, or saved last."""
        self.resumed_from: dict[str, Any] | None = None
        """The checkpoint that the life resumed from, as JSON values."""
        self.stop_cause = ""
        self.stop_facts: Mapping[str, Any] = {}
        """The reason why `should_stop` was true, and the facts of the error that gives it."""
        self.is_done = False
        """True if `should_stop` was true because the training is over: there is nothing to resume."""
        self._pause = _Pause()
        life.at_end(self._await_quietly)

    def resume(self) -> Snapshot | None:
        """Find the newest checkpoint that verifies, and return its state; None if there is none. Collective."""

        def newest() -> dict[str, Any] | None:
            loaded = self.checkpoints.load_newest()
            if loaded is None:
                return None
            state = loaded.snapshot.state  # only those of the built-in trainer have an epoch
            return {**loaded.to_json(), **({"epoch": state["epoch"]} if "epoch" in state else {})}

        self.resumed_from = self._ranks.run_long_on_first(newest, "find the newest checkpoint")
        if self.resumed_from is None:
            return None
        self._last_step = int(self.resumed_from["step"])
        return self.load(str(self.resumed_from["checkpoint"]))

    def stopped(self, checkpoint: str, where: str = "", **facts: Any) -> TrainingError:
        """Return the error of a life that was stopped.

        Args:
            checkpoint: address of the newest one; empty: none was saved in this life.
            where: what the message says after the cause.
            facts: further facts of the error.
        """
        newest = f"the newest checkpoint is {checkpoint}" if checkpoint else "no checkpoint was saved in this life"
        return TrainingError(
            f"{self.stop_cause}{where}; {newest}: start the run again with the same `run_dir` to resume.",
            checkpoint=checkpoint,
            **facts,
            **self.stop_facts,
        )

    def find_best(self) -> str | None:
        """Return the address of the checkpoint with the best figure that verifies; None if none has it. Collective."""
        self.finish()
        return self._ranks.run_long_on_first(self.checkpoints.best, "find the best checkpoint")

    def load(self, address: str) -> Snapshot:
        """Return the state of a checkpoint that was found. Collective."""
        return self._ranks.run_long(lambda: self.checkpoints.load(address), "load the checkpoint")

    def save(self, step: int, make_snapshot: MakeSnapshot, files: Files = None, *, wait: bool = False) -> str:
        """Begin to write a checkpoint, and return its address; with `wait`, it is published then.

        Args:
            step: steps done, not fewer than at the newest checkpoint.
            make_snapshot: returns the state; called on rank 0.
            files: a folder, whose files become part of the checkpoint, or a file.
            wait: whether to wait until it is published.

        Raises:
            SmaltiError: this checkpoint cannot be begun, or the one before could not be written.
        """
        began = time.perf_counter()
        self._await()
        names, token = self._agree(step, files)
        staging = self.checkpoints.staging(step, token, self._ranks.rank)
        address = self.checkpoints.address_of(step)
        write = _Write(step, address, staging, names or (), began=began)

        def copy_state() -> None:
            write.snapshot = _copied(make_snapshot())

        try:
            if names is not None:
                self._ranks.run_on_all(
                    lambda: copy_files(files, write.names, staging), "copy the files of a checkpoint"
                )
            self._ranks.run_on_first(copy_state, "copy the state")
            samples = self._life.samples_so_far()
            arguments = [write, samples]
            write.thread = threading.Thread(target=self._write, args=arguments, name="smalti-checkpoint", daemon=True)
            write.thread.start()
        except BaseException:
            self.checkpoints.discard(staging, is_first=self._ranks.is_first)
            raise
        self._last = write
        write.held_seconds = time.perf_counter() - began
        if wait:
            self.finish()
        return address

    def should_stop(self) -> bool:
        """Return whether the run is to stop, because a signal was received on some rank, or a rank's parent has died.

        The ranks exchange that about every `_CHECK_SECONDS`, at a call on which they have agreed the time before.

        Raises:
            SmaltiError: a checkpoint could not be written.
        """
        if not self._pause.is_over():
            return False
        last, stop = self._last, self._life.stop
        is_over = last is not None and not last.thread.is_alive()
        has_fault = is_over and last is not None and last.fault is not None
        cause = stop.cause  # a signal may come in between
        seconds = self._pause.seconds_per_call() if self._ranks.is_first else 0.0  # of one rank: equal on all
        *causes, orphans, faults, seconds = self._ranks.total(
            [*(cause == each for each in STOPS), cause is not None and stop.is_orphaned, has_fault, seconds],
            "agree whether to stop",
        )
        if self._ranks.num_ranks > 1:
            self._pause.begin(seconds)
        stops = sum(causes)
        if 0 < orphans == stops:
            self.stop_cause = "ended because the process that had started a rank, such as a Spark executor, has died"
            self.stop_facts = {"is_orphaned": True}
        elif stops:
            first = next(name for name, number in zip(STOPS, causes, strict=True) if number)
            self.stop_cause, self.stop_facts = f"stopped by {first}", {"stopped": True}
            self.is_done = first == DONE
        if self.is_done:
            reasons = self._ranks.gather(stop.reason, "exchange the reason of the stop")
            self.stop_cause = next(filter(None, reasons), "")
        if faults:
            self._settle()
        elif is_over:
            self._announce()
        return stops > 0

    def finish(self) -> None:
        """Wait until the last checkpoint is published.

        Raises:
            SmaltiError: it could not be written.
        """
        self._await()
        self._settle()

    def _agree(self, step: int, files: Files) -> tuple[list[str] | None, str]:
        """Return the files that this rank contributes, None if no rank has any, and a token that is equal on all."""

        def offer() -> tuple[dict[str, Identity], str, int]:
            self._raise_fault()
            if step < self._last_step:
                raise TrainingError(
                    f"a checkpoint of step {step} cannot be saved after that of step {self._last_step}: it would "
                    "be older, and not be kept. Count the steps on from `context.latest().step`.",
                    step=step,
                )
            return given_files(files), secrets.token_hex(4), step

        offers = self._run_on_all(offer, "begin a checkpoint")
        steps = [each for _, _, each in offers]
        if len(set(steps)) > 1:
            raise TrainingError(f"`save` was called for different steps, by rank {steps}; call it with one step.")
        self._announce()
        self._last_step = step
        self.checkpoints.begin(step)
        names = [offered for offered, _, _ in offers]
        given = names[self._ranks.rank]
        if doubtful := doubtful_names(names):
            mine = [name for name in doubtful if name in given]
            check_equal(self._run_on_all(lambda: hashes_of(files or "", mine), "compare files of one name"))
        # Of files that several ranks give, the lowest rank contributes one.
        own = [name for name in given if not any(name in offer for offer in names[: self._ranks.rank])]
        return (own if any(names) else None), offers[0][1]

    # ------------------------------------------------------------ the thread

    def _write(self, write: _Write, put_samples: Callable[[], None]) -> None:
        def contribute() -> dict[str, Written]:
            with _as_smalti_error(self._ranks.rank):
                put_samples()
                return self.checkpoints.contribute(write.step, write.staging, write.names)

        try:
            with _as_smalti_error(self._ranks.rank):
                parts = self._apart.run_on_all(contribute, f"write the checkpoint of step {write.step}")
                if write.snapshot is not None:
                    files = {name: file for part in parts for name, file in part.items()}
                    self.checkpoints.save(write.snapshot, write.staging, files)
        except SmaltiError as error:  # raised on all ranks
            write.fault = error
        finally:
            self.checkpoints.discard(write.staging, is_first=self._ranks.is_first)
            write.snapshot = None
            write.seconds = time.perf_counter() - write.began

    @contextlib.contextmanager
    def _while_open(self) -> Iterator[None]:
        """Hold off the end of the life in the body.

        Raises:
            CheckpointError: it has ended; another life may have begun.
        """
        with self._closing:
            if self._is_closed:
                raise CheckpointError(
                    f"the checkpoint was not written within {min(self._timeout, self._grace):g} s after the life ended "
                    "by an exception, and nothing of it is kept. Raise `grace_seconds`."
                )
            yield

    # ------------------------------------------------------------ its end

    def _await(self, seconds: float | None = None) -> None:
        """Wait for this rank's thread."""
        last, seconds = self._last, self._timeout * _OWN_SHARE if seconds is None else seconds
        if last is None:
            return
        last.thread.join(seconds)
        if last.thread.is_alive():
            last.fault = TrainingError(
                f"the checkpoint of step {last.step} has not been written to {last.address} within {seconds:.0f} s. "
                "Save less often, or raise `timeout_seconds`.",
                step=last.step,
            )

    def _await_quietly(self) -> None:
        """Wait for this rank's thread, and log its fault: the life ends by an exception that matters more.

        From then on, a thread that is late changes nothing in a local folder, whose lock ends with the life.
        """
        self._await(min(self._timeout, self._grace))
        with self._closing:
            self._is_closed = True
        if self._last is not None and self._last.fault is not None:
            _log.error("the last checkpoint was not written: %s", self._last.fault)

    def _raise_fault(self) -> None:
        """Raise the fault of the last write on this rank, if there is one."""
        if self._last is not None and self._last.fault is not None:
            raise self._last.fault

    def _settle(self) -> None:
        """Raise the fault of the last write on all ranks if there is one on any, else announce it."""
        self._run_on_all(self._raise_fault, "end a checkpoint")
        self._announce()

    def _run_on_all(self, act: Callable[[], T], what: str) -> list[T]:
        """Call `act` on all ranks; a fault of one is raised on all, and the last write is forgotten if it is over."""
        try:
            return self._ranks.run_on_all(act, what)
        except SmaltiError as error:
            is_own_wait = error.facts.get("what") == what  # a rank is lost, and the last write was not asked for
            if self._last is not None and not self._last.thread.is_alive() and not is_own_wait:
                self._last = None
            raise

    def _announce(self) -> None:
        """Record that the last checkpoint was published, once."""
        last, self._last = self._last, None
        if last is not None:
            self._events.emit(
                "checkpoint",
                step=last.step,
                path=last.address,
                seconds=last.seconds,
                held_seconds=last.held_seconds,
            )


def checked_step(step: Any) -> int:
    """Return a number of optimiser steps as an integer.

    Raises:
        TrainingError: it is not a whole number from 0 that a file name can hold.
    """
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number <= _LAST_STEP:
        raise TrainingError(f"`step` is {step!r:.40}; expected the number of optimiser steps, a whole number from 0.")
    return number


def _copied(snapshot: Snapshot) -> Snapshot:
    """Return a copy of a snapshot in memory that later steps do not change."""
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
        return copies[id(tensor)]

    tensors = {stem: {name: copied(each) for name, each in named.items()} for stem, named in snapshot.tensors.items()}
    return Snapshot(snapshot.step, tensors, copy.deepcopy(dict(snapshot.state)))


@contextlib.contextmanager
def _as_smalti_error(rank: int) -> Iterator[None]:
    """Raise an exception of the body as a SmaltiError."""
    try:
        yield
    except SmaltiError:
        raise
    except Exception as error:
        fault = f"rank {rank} could not write a checkpoint: {type(error).__name__}: {error}"
        raise CheckpointError(fault, rank=rank) from error
