"""The executors that bind a run worker."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.runs import worker as run_worker
from smalti_dagster.runs.process import process_here
from tests.code_location.events import new_run
from tests.code_location.shipped import defs


def test_every_job_of_the_deployment_has_the_executor_that_binds_its_run_worker() -> None:
    executor = defs.resolve_job_def("flowers_everything_job").executor_def
    assert executor.name == dg.multiprocess_executor.name == "multiprocess"
    assert executor.executor_creation_fn is run_worker.run_bound_executor.executor_creation_fn
    for job in ("flowers_promote_job", "flowers_observe_job"):
        assert defs.resolve_job_def(job).executor_def is run_worker.in_process_executor


def test_the_tags_name_the_process_also_where_no_code_server_has_started_it(instance: dg.DagsterInstance) -> None:
    """As of `dg launch`, whose process has no parent that could be waited for."""

    class Inner(dg.Executor):
        retries: Any = None

        def execute(self, plan_context: Any, execution_plan: Any) -> Any:
            yield process_here(instance.get_run_by_id(plan_context.run_id))

    run = new_run(instance)
    plan_context = SimpleNamespace(instance=instance, run_id=run.run_id)
    [process] = run_worker.RunBoundExecutor(Inner()).execute(plan_context, None)
    assert process.number == os.getpid()


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The signals that the handler before gets, as Dagster's handler in a run worker."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    yield arrived
    signal.signal(signal.SIGINT, before)


def test_a_cancellation_takes_effect_when_the_run_is_found_to_go_on(received: list[int]) -> None:
    asked: list[float] = []

    def is_over() -> bool:
        asked.append(time.monotonic())
        return False

    begin = time.monotonic()
    with run_worker._delayed_interrupts(is_over, threading.Event()):
        signal.raise_signal(signal.SIGINT)
        assert received == []
        while not received and time.monotonic() < begin + 60:
            time.sleep(0.01)
    assert received == [signal.SIGINT]
    assert asked[0] - begin >= run_worker.FORCED_SECONDS
