"""Runs whose process was killed: what the run monitoring of Dagster's daemon is told, and how such runs are ended."""

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from smalti_dagster.runs.launcher import MonitoredRunLauncher
from smalti_dagster.runs.process import HOST_TAG, PROCESS_TAG, is_alive, process_here, process_tags
from tests.code_location.events import dead_process, new_run
from tests.code_location.instances import instance_in_folder

RUNNING, GONE = WorkerStatus.RUNNING, WorkerStatus.NOT_FOUND


class Launcher(MonitoredRunLauncher):
    """A launcher whose code server answers as a test says: True or False, or None where it cannot be reached."""

    answer: bool | None = None

    def _is_known_to_server(self, run: dg.DagsterRun) -> bool | None:
        return self.answer

    def look_at(self, run: dg.DagsterRun) -> WorkerStatus:
        stored = self._instance.get_run_by_id(run.run_id)
        assert stored is not None
        return self.check_run_worker_health(stored).status


@pytest.fixture
def launcher(instance: dg.DagsterInstance) -> Launcher:
    made = Launcher(settle_seconds=0)
    made.register_instance(instance)
    return made


def executed_run(instance: dg.DagsterInstance, process: int | None, *, has_server: bool = False) -> dg.DagsterRun:
    """A started run that a process executes, by default this one."""
    run = new_run(instance, "train", tags={GRPC_INFO_TAG: "{}"} if has_server else {})
    instance.add_run_tags(run.run_id, process_tags(run.run_id, process))
    return run


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


@pytest.mark.parametrize(
    ("has_server", "is_dead", "answer", "settle_seconds", "status"),
    [
        (False, False, None, 0, RUNNING),
        (False, True, None, 0, GONE),  # a command that was killed: nobody else will say so
        (False, True, None, 60, RUNNING),
        (True, True, False, 0, GONE),
        (True, True, None, 0, RUNNING),  # it could not be started again yet
        (True, False, None, 0, RUNNING),
        (True, False, False, 0, RUNNING),  # its process lives, and is about to end
    ],
)
def test_a_run_whose_process_is_gone_counts_as_gone_once_it_can_be_started_again(
    instance: dg.DagsterInstance,
    launcher: Launcher,
    has_server: bool,
    is_dead: bool,
    answer: bool | None,
    settle_seconds: float,
    status: WorkerStatus,
) -> None:
    launcher.answer, launcher.settle_seconds = answer, settle_seconds
    with dead_process() as killed:
        run = executed_run(instance, killed if is_dead else None, has_server=has_server)
        assert launcher.look_at(run) is status


@pytest.mark.parametrize(("answer", "status"), [(True, RUNNING), (None, RUNNING), (False, GONE)])
def test_of_a_run_on_another_machine_its_code_server_is_asked(
    instance: dg.DagsterInstance, launcher: Launcher, answer: bool | None, status: WorkerStatus
) -> None:
    launcher.answer = answer
    assert launcher.look_at(new_run(instance, tags={GRPC_INFO_TAG: "{}", HOST_TAG: "elsewhere"})) is status


def test_a_run_whose_code_server_never_comes_back_is_gone_after_all(
    instance: dg.DagsterInstance, launcher: Launcher
) -> None:
    launcher.offline_seconds = 0
    with dead_process() as killed:
        assert launcher.look_at(executed_run(instance, killed, has_server=True)) is GONE


def test_a_re_execution_is_not_taken_for_dead_because_it_has_the_tags_of_the_run_that_was_killed(
    instance: dg.DagsterInstance, launcher: Launcher
) -> None:
    with dead_process() as killed:
        run = executed_run(instance, killed)
        assert launcher.look_at(new_run(instance, parent=run, tags=process_tags(run.run_id, killed))) is RUNNING


@pytest.mark.parametrize("has_server", [True, False])
def test_a_run_whose_process_is_gone_is_cancelled_at_once(
    instance: dg.DagsterInstance, launcher: Launcher, has_server: bool
) -> None:
    with dead_process() as killed:
        run = executed_run(instance, killed, has_server=has_server)
        assert launcher.terminate(run.run_id)
        assert status_of(instance, run) is dg.DagsterRunStatus.CANCELED
        assert not launcher.terminate(run.run_id)


def test_a_command_on_this_machine_is_interrupted_when_its_run_is_cancelled(
    instance: dg.DagsterInstance, launcher: Launcher
) -> None:
    program = "import signal, time; signal.signal(signal.SIGINT, lambda *_: exit(7)); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.readline()
        run = executed_run(instance, command.pid)
        assert launcher.terminate(run.run_id)
        assert command.wait(timeout=30) == 7
        assert status_of(instance, run) is dg.DagsterRunStatus.CANCELING


def test_the_daemon_fails_a_command_s_run_whose_process_was_killed() -> None:
    """The same by the settings of an instance, and the monitoring, which uses nothing of a workspace."""
    own = {"module": "smalti_dagster.runs.launcher", "class": "MonitoredRunLauncher", "config": {"settle_seconds": 0}}
    settings = {"run_launcher": own, "run_monitoring": {"enabled": True}}
    with instance_in_folder(**settings) as instance, dead_process() as killed:
        dead, alive = executed_run(instance, killed), executed_run(instance, None)
        daemon: Any = SimpleNamespace(instance=instance, create_request_context=lambda: None)
        assert not any(execute_run_monitoring_iteration(daemon, logging.getLogger()))
        assert status_of(instance, dead) is dg.DagsterRunStatus.FAILURE
        assert status_of(instance, alive) is dg.DagsterRunStatus.STARTED


def test_a_process_is_alive_until_it_ends_and_another_one_with_its_id_does_not_count() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = process_here(run_with(process_tags("run", child.pid)))
        assert process is not None
        assert is_alive(process)
        assert not is_alive(process._replace(started=process.started - 60))
        child.communicate(b"\n", timeout=500)
    assert not is_alive(process)


@pytest.mark.parametrize("value", ["", "1", "x y run", "1 0 another"])
def test_a_tag_that_is_not_of_this_run_or_was_edited_names_no_process(value: str) -> None:
    assert process_here(run_with({**process_tags("run"), PROCESS_TAG: value})) is None


def run_with(tags: dict[str, str]) -> dg.DagsterRun:
    return dg.DagsterRun("flowers_train_job", run_id="run", tags=tags)
