"""The executor of a deployment: Dagster's multiprocess executor, in a run worker that ends with code server and run.

Intended behaviour:
1. When the code server that started a run worker dies, the run worker reports the run as failed and is killed. Dagster
   itself would leave the run as started: its default launcher looks for a run worker only in that code server.
2. When the run is over although its worker lives (cancelled by force, failed by the daemon, deleted), the run worker is
   killed. SIGKILL, so that it writes nothing more: a failure after a cancellation would be the run's state.
3. Its steps end with it; see `lifetime`.
4. A cancellation takes effect after a moment, because one by force marks the run as cancelled right afterwards.
5. Only a process that a code server has started for the run is killed. In any other, such as a program that calls
   `execute_job`, this is Dagster's own executor.

The run's tags say which process executes it; `pipelines/leftovers.py` looks for runs whose process is gone.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, NoReturn

import dagster as dg
import psutil

from smalti_dagster.runs.lifetime import POLL_SECONDS, is_run_over, kill_this_process, watch_run

HOST_TAG = "smalti/host"
"""Tag of a run: name of the machine whose process executes it."""
PROCESS_TAG = "smalti/process"
"""Tag of a run: id of that process, and the second in which it started."""
FORCED_SECONDS = 1.0
"""Time between the request to cancel a run and its mark as cancelled, if it is cancelled by force."""
_REPORT_SECONDS = 60.0  # that the report of a run's end may take
_LOCK_SECONDS = 0.5  # that it waits for a lock before paused steps continue
_TRANSACTION_SECONDS = 0.05  # that they continue


def process_tags(process: int | None = None) -> dict[str, str]:
    """Return the tags of a run that a process of this machine executes; by default this one."""
    found = psutil.Process(process)
    return {HOST_TAG: socket.gethostname(), PROCESS_TAG: f"{found.pid} {found.create_time():.0f}"}


def is_alive(tags: Mapping[str, str]) -> bool:
    """Return whether the process that tags name is alive on this machine; not another one that has its id now."""
    process, _, started = tags.get(PROCESS_TAG, "").partition(" ")
    try:
        found = psutil.Process(int(process))
        is_same = bool(abs(found.create_time() - float(started)) < 2)
        return is_same and found.status() != psutil.STATUS_ZOMBIE
    except (ValueError, psutil.NoSuchProcess):
        return False
    except psutil.AccessDenied:
        return True


class RunBoundExecutor(dg.Executor):
    """An executor that binds the run worker while another one executes."""

    def __init__(self, inner: dg.Executor) -> None:
        self._inner = inner

    @property
    def retries(self) -> Any:
        """The policy by which steps are retried."""
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        """The settings that delay the start of steps."""
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[Any]:
        """Execute the plan, and yield its events."""
        with _bound(plan_context.instance, plan_context.run_id):
            yield from self._inner.execute(plan_context, execution_plan)


def _create(context: dg.InitExecutorContext) -> dg.Executor:
    create: Any = dg.multiprocess_executor.executor_creation_fn
    return RunBoundExecutor(create(context))


_config: Any = dg.multiprocess_executor.config_schema
run_bound_executor = dg.ExecutorDefinition(
    name=dg.multiprocess_executor.name,
    config_schema=_config,
    requirements=dg.multiple_process_executor_requirements(),
    executor_creation_fn=_create,
    description="Each step in a process of its own; all of them end with their run and with the code server.",
)


@contextlib.contextmanager
def _bound(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Bind this process to its code server and its run while the body runs, if it was started for the run."""
    server = multiprocessing.parent_process()
    if server is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    instance.add_run_tags(run_id, process_tags())
    parent, done = os.getppid(), threading.Event()

    def wait_for_server() -> bool:
        # The sentinel alone: the kernel's signal would come when the server's thread ends that started this process.
        return bool(wait([server.sentinel], POLL_SECONDS)) or os.getppid() != parent

    def end() -> None:
        def report() -> None:
            with contextlib.suppress(Exception):  # without the database, the next code server here finds the run
                run = instance.get_run_by_id(run_id)
                if run is not None and not run.is_finished:
                    report_lost(instance, run, "the code server of this run has died: run worker and steps were ended")

        _kill_with(_pause_steps(report))

    def ask() -> bool:
        return is_run_over(instance, run_id)

    threading.Thread(
        target=watch_run, args=(wait_for_server, ask, done), kwargs={"end": end}, name="smalti-run-watch", daemon=True
    ).start()
    with _delayed_interrupts(ask, done):
        try:
            yield
        finally:
            done.set()


def _pause_steps(report: Callable[[], None]) -> list[psutil.Process]:
    """Pause the steps, so that none writes an event after `report` has; return them when it is done, still paused.

    A step may be paused in the middle of a transaction, and hold a lock of the database for which `report` waits
    (SQLite has one lock for all writers). So the steps continue for a moment now and then, until `report` is done, or
    `_REPORT_SECONDS` are over.
    """
    steps, reporting = _signal_steps(signal.SIGSTOP), threading.Thread(target=report, daemon=True)
    reporting.start()
    deadline = time.monotonic() + _REPORT_SECONDS
    while time.monotonic() < deadline:
        reporting.join(_LOCK_SECONDS)
        if not reporting.is_alive():
            break
        _signal_steps(signal.SIGCONT)
        time.sleep(_TRANSACTION_SECONDS)
        steps = _signal_steps(signal.SIGSTOP)
    return steps


def _signal_steps(number: signal.Signals) -> list[psutil.Process]:
    """Send a signal to all processes that this one has started, and return them."""
    steps: list[psutil.Process] = psutil.Process().children()
    for step in steps:
        with contextlib.suppress(psutil.Error):
            step.send_signal(number)
    return steps


def _kill_with(steps: list[psutil.Process]) -> NoReturn:
    """Kill steps and this process at once: it must not report that they died."""
    for step in steps:
        with contextlib.suppress(psutil.Error):
            step.kill()
    kill_this_process()


def report_lost(instance: dg.DagsterInstance, run: dg.DagsterRun, message: str) -> None:
    """Report that a run has lost its process: it has failed, or is cancelled if that was requested before."""
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=message)
    else:
        instance.report_run_failed(run, message=message)


@contextlib.contextmanager
def _delayed_interrupts(is_over: Callable[[], bool], done: threading.Event) -> Iterator[None]:
    """While the body runs, hand on SIGINT and SIGTERM after `FORCED_SECONDS`, unless the run is over then.

    Steps are paused meanwhile, so that they write no event if it is.

    In a run worker, Dagster's handler sets a flag: any thread may call it.
    """
    before: Any = signal.getsignal(signal.SIGINT)

    def decide(number: int, frame: FrameType | None) -> None:
        steps = _signal_steps(signal.SIGSTOP)
        time.sleep(FORCED_SECONDS)
        if not done.is_set():
            with contextlib.suppress(Exception):
                if is_over():
                    _kill_with(steps)
        _signal_steps(signal.SIGCONT)
        before(number, frame)

    def interrupt(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=decide, args=(number, frame), daemon=True).start()

    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
