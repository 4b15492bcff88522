"""Ending a step with its run: no process outlives its run worker, and no step reports to a run that is over.

Intended behaviour:
1. A step that runs in a process of its own is killed when the run worker that started it dies: on Linux by the kernel,
   elsewhere by a thread that waits for it. SIGKILL, so that the step writes no event about a run that has failed.
2. What the step started ends by itself then: ranks of a training get SIGTERM, save and end; Spark's JVM ends when its
   standard input is closed, and its Python workers with it.
3. When the run is over although the run worker lives (failed by the daemon, cancelled by force, deleted), the run
   worker ends first (`run_worker`), because it would report a step that dies before it. The same thread kills the step
   if no run worker does so.
4. A step in a process that is not its own (`execute_in_process`, an in-process executor) is never killed. It fails
   before it reports what a long operation did.
"""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, NoReturn

import dagster as dg
from pydantic import PrivateAttr

from smalti.process import request_death_signal

POLL_SECONDS = 2.0
"""Between two questions whether the run is over."""
_WORKER_SECONDS = 4.0  # that the run worker has to end the step, when the run is over

_log = logging.getLogger(__name__)


class RunBoundResource(dg.ConfigurableResource[Any]):
    """A resource that binds the step that uses it to the life of its run."""

    _context: dg.InitResourceContext | None = PrivateAttr(default=None)
    _done: threading.Event = PrivateAttr(default_factory=threading.Event)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Bind this process to the run, if it is the step's own."""
        self._context = context
        if owns_process(context):
            bind_process(lambda: is_over(context), self._done)

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002  Dagster's signature
        """Stop looking whether the run is over."""
        self._done.set()

    def guard(self, log: logging.Logger) -> None:
        """Write nothing through a step's log once the run is over, lines or events, if this process is the step's own.

        A run may be over for two seconds before this process is killed.
        """
        context = self._context
        if context is not None and owns_process(context):

            def is_written(_: logging.LogRecord) -> bool:
                if _ask(lambda: is_over(context), self._done):
                    end_after_worker()
                return True

            log.addFilter(is_written)

    def refuse_if_over(self) -> None:
        """Return if the run is active; call it after whatever takes long and before its result is reported.

        Raises:
            dg.Failure: the run is over, and this process is not the step's own.
        """
        context = self._context
        if context is None or context.run is None or not is_over(context):
            return
        if owns_process(context):
            end_after_worker()
        raise dg.Failure(
            f"run {context.run.run_id} was ended while this step was going on: the step's result is not recorded; "
            "execute the run again",
            allow_retries=False,
        )


def is_over(context: dg.InitResourceContext) -> bool:
    """Return whether the run of a step is over."""
    if context.run is None or context.instance is None:
        return False
    return is_run_over(context.instance, context.run.run_id)


def is_run_over(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Return whether a run has succeeded, failed or been cancelled, or is deleted."""
    run = instance.get_run_by_id(run_id)
    return run is None or run.is_finished


def owns_process(context: dg.InitResourceContext) -> bool:
    """Return whether this process was started for one step: its executor has then recorded the process id."""
    if context.run is None or context.instance is None:
        return False
    started = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
    return any(_process_of(entry) == str(os.getpid()) for entry in started)


def bind_process(run_is_over: Callable[[], bool], done: threading.Event) -> None:
    """Kill this process when its run worker dies or the run is over, until `done` is set."""
    worker, parent = multiprocessing.parent_process(), os.getppid()
    if worker is not None:
        # Only here, where the parent is known to be a run worker, whose thread waits for the step: the signal comes
        # when that thread ends.
        request_death_signal(signal.SIGKILL)
    sentinels = [worker.sentinel] if worker is not None else []

    def wait_for_worker() -> bool:
        # A process that the run worker started otherwise may hold the sentinel open.
        return bool(wait(sentinels, POLL_SECONDS)) or os.getppid() != parent

    threading.Thread(
        target=watch_run,
        args=(wait_for_worker, run_is_over, done),
        kwargs={"end": end_after_worker},
        name="smalti-run-watch",
        daemon=True,
    ).start()


def watch_run(
    wait_for_parent: Callable[[], bool],
    run_is_over: Callable[[], bool],
    done: threading.Event,
    *,
    end: Callable[[], None],
) -> None:
    """Call `end` when the parent process has died or the run is over; return without it when `done` is set.

    Args:
        wait_for_parent: waits a few seconds, and returns whether the parent died.
        run_is_over: asks the instance. What it raises is logged, and it is asked again.
        done: set when the step has ended.
        end: ends the process.
    """
    while not _ask(run_is_over, done) and not wait_for_parent():
        if done.is_set():
            return
    if not done.is_set():
        end()


def _ask(run_is_over: Callable[[], bool], done: threading.Event) -> bool:
    try:
        return run_is_over()
    except Exception:  # noqa: BLE001  of whichever database, logged
        # It may be away for a moment, and must not cost a training. After the step it is closed.
        if not done.is_set():
            _log.warning("cannot ask whether the run is over; it is asked again", exc_info=True)
        return False


def _process_of(entry: dg.EventLogEntry) -> str | None:
    data: Any = entry.dagster_event.event_specific_data if entry.dagster_event is not None else None
    pid = data.metadata.get("pid") if data is not None else None
    return None if pid is None else str(pid.value)


def end_after_worker() -> NoReturn:
    """Kill this process, a moment later if its run worker lives: that one is about to end, and this process with it."""
    worker = multiprocessing.parent_process()
    if worker is not None:
        wait([worker.sentinel], _WORKER_SECONDS)
    kill_this_process()


def kill_this_process() -> NoReturn:
    """End this process by SIGKILL, so that it reports nothing more."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)  # the signal may arrive a moment later
