"""A run worker gets SIGKILL: nothing that its steps started lives on, and nothing is recorded after the run's end."""

import json
import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._daemon.monitoring.concurrency import execute_concurrency_slots_iteration

from pipelines.home import REPOSITORY
from tests.code_location.live_deployment import processes_with, wait_until
from tests.torch.train.conftest import publish_squares

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.torch,
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
]

SECONDS = 280.0
"""In which everything has to be gone."""
PROGRAM = "import sys; from tests.code_location.run_worker import main; main(*sys.argv[1:])"


@dataclass(frozen=True)
class Killed:
    """A run whose worker was killed, and what was seen before and afterwards."""

    instance: dg.DagsterInstance
    run_id: str
    started: set[str]
    """Command lines of the processes that the run had started."""
    left: set[str]
    """Of these, those that were there when the time was over."""
    held: dict[str, int]
    """Slots of each pool that the run held."""
    still_held: dict[str, int]
    """Of these, those that it held when the time was over."""


def slots(instance: dg.DagsterInstance) -> dict[str, int]:
    """Return the number of claimed slots of each pool."""
    storage = instance.event_log_storage
    return {pool: storage.get_concurrency_info(pool).active_slot_count for pool in ("spark", "training")}


def has_trained(root: Path) -> bool:
    return any('"event":"step"' in path.read_text() for path in root.glob("runs/*/*/metrics.jsonl"))


def start_worker(home: Path, root: Path, mark: str) -> "subprocess.Popen[bytes]":
    training = {"version": 1, "model": "tests.torch.train.tiny_models:slow", "epochs": 100_000, "batch_size": 8}
    config = {
        "flowers__model": {"config": {**training, "launcher": "processes", "num_processes": 1}},
        "endless_rows": {"config": {"path": str(root / "spark runs")}},
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(home), json.dumps({"ops": config})],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "SMALTI_TEST_MARK": mark,
            "SMALTI_DEPLOYMENT": "local",
            "SMALTI_ROOT": str(root),
            "SMALTI_SPARK_MASTER": "local[1]",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """A run with a training and a Spark task, both going on when the run worker gets SIGKILL."""
    root, home, mark = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("home"), uuid.uuid4().hex
    settings = yaml.safe_load((REPOSITORY / "deploy/sqlite/dagster.yaml").read_text())
    settings["run_monitoring"]["free_slots_after_run_end_seconds"] = 1
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    metadata = {"classes": ["red", "green", "blue"], "counts": {"train": {}}, "image_size": 24}
    publish_squares(root / "flowers" / "shards", metadata=metadata)
    worker = start_worker(home, root, mark)
    try:
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert wait_until(lambda: (root / "spark runs").exists() and has_trained(root), seconds=500)
            [run] = instance.get_runs()
            started, held = set(processes_with(mark).values()), slots(instance)
            worker.kill()
            worker.wait(timeout=500)
            instance.report_run_failed(run)  # as the code server does

            def is_gone() -> bool:
                # As the daemon does; it takes no more from its context than the instance.
                list(execute_concurrency_slots_iteration(SimpleNamespace(instance=instance), logging.getLogger()))
                return not processes_with(mark) and not any(slots(instance).values())

            wait_until(is_gone, SECONDS)
            yield Killed(
                instance, run.run_id, started, set(processes_with(mark).values()), held, still_held=slots(instance)
            )
    finally:
        worker.kill()
        worker.wait(timeout=280)
        for process in processes_with(mark):
            os.kill(process, 9)


def test_training_and_spark_steps_end_with_all_that_they_started(killed: Killed) -> None:
    for part in ("smalti.torch.train.launchers.processes", "org.apache.spark.deploy.SparkSubmit", "pyspark.daemon"):
        assert any(part in command for command in killed.started), part
    assert killed.left == set()


def test_the_steps_record_nothing_after_the_run_s_end(killed: Killed) -> None:
    kinds = [entry.dagster_event_type for entry in killed.instance.all_logs(killed.run_id) if entry.dagster_event]
    assert kinds.count(dg.DagsterEventType.STEP_START) == 2
    assert kinds[-1] is dg.DagsterEventType.RUN_FAILURE


def test_the_slots_of_its_pools_are_free_again(killed: Killed) -> None:
    assert killed.held == {"spark": 1, "training": 1}
    assert killed.still_held == {"spark": 0, "training": 0}
