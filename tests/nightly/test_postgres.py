"""deploy/postgres/dagster.yaml on a real PostgreSQL: a declared set is re-sharded through a live daemon."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from pipelines.home import REPOSITORY
from tests.nightly.postgres import postgres

SECONDS = 150
TOOLS = Path(sys.executable).parent


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with the shipped settings, and the environment of every process of the deployment."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(REPOSITORY / "deploy" / "postgres" / "dagster.yaml", home / "dagster.yaml")
    with postgres() as variables:
        for name, value in {**variables, "DAGSTER_HOME": str(home), "SMALTI_ROOT": str(tmp_path / "data")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SMALTI_SPARK_MASTER", "local[1]")
        yield home


def test_a_declared_set_is_resharded_by_a_live_daemon_whose_records_are_in_postgresql(home, tmp_path):
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [TOOLS / "dagster-daemon", "run", "-w", "workspace.yaml"], cwd=REPOSITORY, stdout=log, stderr=log
        )
    try:
        launch = [TOOLS / "dagster", "job", "launch", "-w", "workspace.yaml", "-j", "tokens_reshard_job"]
        launched = subprocess.run(
            launch, cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert launched.returncode == 0, launched.stdout + launched.stderr
        with dg.DagsterInstance.from_config(str(home)) as instance:
            assert type(instance.run_storage).__name__ == "PostgresRunStorage"
            [run] = instance.get_runs()
            end = time.monotonic() + SECONDS
            while not (run := instance.get_run_by_id(run.run_id)).is_finished and time.monotonic() < end:
                time.sleep(0.5)
            assert run.status is dg.DagsterRunStatus.SUCCESS, (tmp_path / "daemon.log").read_text()[-3000:]
            event = instance.get_latest_materialization_event(dg.AssetKey(["tokens", "shards"]))
            assert event.run_id == run.run_id
            assert event.asset_materialization.metadata["version"].value == 1
        # Nothing is in files beside the output of the steps.
        assert list(home.rglob("*.db")) == []
    finally:
        daemon.terminate()
        daemon.wait(60)
