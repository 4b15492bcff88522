"""The code server of a live deployment gets SIGKILL, and runs are cancelled by force; the whole matrix is nightly.

All of this is done with the kernel's death signal switched off, as on systems that have none.
"""

import logging
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._daemon.monitoring.concurrency import execute_concurrency_slots_iteration
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from tests.code_location.live_deployment import LiveDeployment, deployed, shipped_settings, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

SECONDS = 280.0
NO_DEATH_SIGNAL = """
import ctypes

class CDLL(ctypes.CDLL):
    def __getattr__(self, name):
        return (lambda *arguments: 0) if name == "prctl" else super().__getattr__(name)

ctypes.CDLL = CDLL
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDeployment]:
    """A code server and a webserver; a run is launched at once, and the test does what the daemon would do."""
    folder = tmp_path_factory.mktemp("deployment")
    (folder / "without").mkdir()
    (folder / "without" / "sitecustomize.py").write_text(NO_DEATH_SIGNAL)
    settings = shipped_settings()
    settings["run_coordinator"] = {"module": "dagster._core.run_coordinator", "class": "DefaultRunCoordinator"}
    del settings["concurrency"]["runs"], settings["run_queue"]
    settings["run_monitoring"]["free_slots_after_run_end_seconds"] = 1
    settings["run_launcher"]["config"] = {"settle_seconds": 0}
    path = os.pathsep.join([str(folder / "without"), *filter(None, [os.environ.get("PYTHONPATH")])])
    with deployed(folder, "code server", "webserver", settings=settings, PYTHONPATH=path) as made:
        yield made


def begin(made: LiveDeployment) -> str:
    """Launch a run, and return its id when its step is at work."""
    made.hold("waiting")
    run_id = made.launch("waiting_job")
    assert wait_until(lambda: made.has_reached("waiting"), 180), made.log("code server")
    assert made.slots()["spark"] == 1
    return run_id


def is_gone(made: LiveDeployment, run_id: str) -> bool:
    """Return whether nothing of a run is left; looks at runs and slots as the daemon does, by the instance alone."""
    daemon: Any = SimpleNamespace(instance=made.instance, create_request_context=lambda: None)
    for iteration in (execute_run_monitoring_iteration, execute_concurrency_slots_iteration):
        list(iteration(daemon, logging.getLogger()))
    run = made.instance.get_run_by_id(run_id)
    return run is not None and run.is_finished and not made.of_runs() and not any(made.slots().values())


def check_nothing_is_left(made: LiveDeployment, run_id: str, status: dg.DagsterRunStatus) -> None:
    assert wait_until(lambda: is_gone(made, run_id), SECONDS), (made.of_runs(), made.slots())
    run = made.instance.get_run_by_id(run_id)
    assert run is not None
    assert run.status is status
    assert made.after_the_end(run_id) == []


def test_j4_a_run_that_is_cancelled_by_force_ends_at_once_and_records_nothing_more(deployment: LiveDeployment) -> None:
    run_id = begin(deployment)
    deployment.terminate(run_id, by_force=True)
    check_nothing_is_left(deployment, run_id, dg.DagsterRunStatus.CANCELED)


@pytest.mark.nightly  # beside `test_j4_a_run_that_is_cancelled_by_force_ends_at_once_and_records_nothing_more`
def test_j5_runs_of_a_killed_code_server_end_without_a_death_signal_and_fail_when_they_can_be_started_again(
    deployment: LiveDeployment,
) -> None:
    """Dagster tries once to start a failed run again, and drops it if the code server cannot be reached then."""
    run_id = begin(deployment)
    deployment.kill("code server")
    assert wait_until(lambda: not deployment.of_runs(), SECONDS)
    assert not is_gone(deployment, run_id)
    deployment.start("code server")
    check_nothing_is_left(deployment, run_id, dg.DagsterRunStatus.FAILURE)
