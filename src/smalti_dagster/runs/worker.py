"""The executors of a deployment: Dagster's own, in a run worker that ends with its code server and its run.

Intended behaviour:
1. The run's tags name the process that executes it, whatever has started that (`process`). By them the daemon finds
   that it is gone, and fails the run (`launcher`).
2. When the code server that started a run worker dies, the run worker is killed. Dagster itself would leave it working
   for a run that cannot be cancelled any more, and that is started again beside it.
3. When the run is over although its worker lives (cancelled by force, failed by the daemon, deleted), the run worker is
   killed. SIGKILL, so that it writes nothing more: a failure after a cancellation would be the run's state.
4. Its steps end with it; see `lifetime`.
5. A cancellation takes effect after a moment, because one by force marks the run as cancelled right afterwards.
6. Only a process that a code server has started for the run is killed. In any other, such as `dg launch` or a program
   that calls `execute_job`, these are Dagster's own executors.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, NoReturn

import dagster as dg
import psutil

from smalti_dagster.runs.lifetime import POLL_SECONDS, is_run_over, kill_this_process, watch_run
from smalti_dagster.runs.process import process_tags

FORCED_SECONDS = 1.0
"""Time between the request to cancel a run and its mark as cancelled, if it is cancelled by force."""


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


def _bind(executor: dg.ExecutorDefinition, description: str) -> dg.ExecutorDefinition:
    """Return an executor definition whose executor binds its run worker."""
    create: Any = executor.executor_creation_fn
    schema: Any = executor.config_schema
    return dg.ExecutorDefinition(
        name=executor.name,
        config_schema=schema,
        requirements=executor.get_requirements,
        executor_creation_fn=lambda context: RunBoundExecutor(create(context)),
        description=description,
    )


run_bound_executor = _bind(
    dg.multiprocess_executor,
    "Each step in a process of its own; all of them end with their run and with the code server.",
)
in_process_executor = _bind(
    dg.in_process_executor, "All steps in the process of the run, which ends with the run and with the code server."
)


@contextlib.contextmanager
def _bound(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Note which process executes a run; bind it to code server and run while the body runs, if started for the run."""
    instance.add_run_tags(run_id, process_tags(run_id))
    server = multiprocessing.parent_process()
    if server is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    parent, done = os.getppid(), threading.Event()

    def wait_for_server() -> bool:
        # The sentinel alone: the kernel's signal would come when the server's thread ends that started this process.
        return bool(wait([server.sentinel], POLL_SECONDS)) or os.getppid() != parent

    def ask() -> bool:
        return is_run_over(instance, run_id)

    threading.Thread(
        target=watch_run,
        args=(wait_for_server, ask, done),
        kwargs={"end": _kill_all},
        name="smalti-run-watch",
        daemon=True,
    ).start()
    with _delayed_interrupts(ask, done):
        try:
            yield
        finally:
            done.set()


def _signal_steps(number: signal.Signals) -> None:
    """Send a signal to all processes that this one has started."""
    for step in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            step.send_signal(number)


def _kill_all() -> NoReturn:
    """Kill the steps, which are paused before, and this process: it must not report that they died."""
    _signal_steps(signal.SIGSTOP)
    _signal_steps(signal.SIGKILL)
    kill_this_process()


@contextlib.contextmanager
def _delayed_interrupts(is_over: Callable[[], bool], done: threading.Event) -> Iterator[None]:
    """While the body runs, hand on SIGINT and SIGTERM after `FORCED_SECONDS`, unless the run is over then.

    Steps are paused meanwhile, so that they write no event if it is.

    In a run worker, Dagster's handler sets a flag: any thread may call it.
    """
    before: Any = signal.getsignal(signal.SIGINT)

    def decide(number: int, frame: FrameType | None) -> None:
        _signal_steps(signal.SIGSTOP)
        time.sleep(FORCED_SECONDS)
        if not done.is_set():
            with contextlib.suppress(Exception):
                if is_over():
                    _kill_all()
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
