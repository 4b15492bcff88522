"""The executor that binds a run worker, and the tags by which dead ones are found."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from pipelines.home import REPOSITORY
from smalti_dagster.runs import worker as run_worker
from smalti_dagster.runs.worker import PROCESS_TAG, is_alive, process_tags
from tests.code_location import paused_step
from tests.code_location.shipped import defs


def test_a_process_is_alive_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    tags = process_tags(child.pid)
    assert is_alive(tags)
    child.communicate(b"\n", timeout=60)
    assert not is_alive(tags)


def test_another_process_with_the_same_id_does_not_count() -> None:
    process, _, started = process_tags()[PROCESS_TAG].partition(" ")
    assert is_alive({PROCESS_TAG: f"{process} {started}"})
    assert not is_alive({PROCESS_TAG: f"{process} {int(started) - 60}"})


@pytest.mark.parametrize("value", ["", "1", "x y"])
def test_a_tag_that_names_no_process_names_a_dead_one(value: str) -> None:
    assert not is_alive({PROCESS_TAG: value} if value else {})


def test_every_job_of_the_deployment_has_the_executor_that_binds_its_run_worker() -> None:
    executor = defs.resolve_job_def("flowers_everything_job").executor_def
    assert executor.name == dg.multiprocess_executor.name == "multiprocess"
    assert executor.executor_creation_fn is run_worker.run_bound_executor.executor_creation_fn


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
        while not received and time.monotonic() < begin + 10:
            time.sleep(0.01)
    assert received == [signal.SIGINT]
    assert asked[0] - begin >= run_worker.FORCED_SECONDS


def test_a_step_that_is_paused_within_a_transaction_does_not_keep_the_run_from_being_reported(tmp_path: Path) -> None:
    """SQLite has one lock for all writers, and Dagster waits 30 seconds for it, then fails."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        run = instance.create_run_for_job(defs.resolve_job_def("flowers_everything_job"))
        instance.report_engine_event("the first event creates the file", run)
    [path] = tmp_path.rglob(f"{run.run_id}.db")
    done = subprocess.run(
        [sys.executable, "-m", paused_step.__name__, str(tmp_path), run.run_id, str(path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "reported stopped\n", done.stderr
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE
