"""Functions as Databricks jobs: a stand-in for the workspace, whose jobs are real processes that speak Pipes."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti.storage.databricks.api import FilesApi
from smalti.storage.databricks.workspace import Workspace as Open
from smalti_dagster.resources.databricks.code import build_wheel
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.databricks.entry import StepLease, prepare, resolve_secrets
from smalti_dagster.resources.databricks.messages import remove_left
from smalti_dagster.resources.databricks.open_job import PAGE
from smalti_dagster.resources.databricks.settings import cluster_environment
from tests.code_location.databricks.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.process]

SECRET = "aws-secret-0123456789"
STAGES = "tests.code_location.databricks.stages"


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace(tmp_path / "workspace", {"keys/AWS_SECRET_ACCESS_KEY": SECRET}) as made:
        yield made


def compute(workspace: Workspace, **settings: Any) -> DatabricksResource:
    given = {
        "volume": workspace.volume,
        "host": workspace.url,
        "token": workspace.token,
        "cluster": {"spark_version": "17.3.x-scala2.13", "num_workers": 1},
        "environment": {"AWS_SECRET_ACCESS_KEY": "{{secrets/keys/AWS_SECRET_ACCESS_KEY}}"},
        "packages": ["smalti", "smalti_dagster", STAGES.rpartition(".")[0]],
        "poll_seconds": 0.2,
    }
    return DatabricksResource(**{**given, **settings})


def materialise(spark: DatabricksResource, function: str, instance: dg.DagsterInstance, **arguments: Any) -> Any:
    """Run a function in an asset, and return the run: its result stands in the asset's metadata."""

    @dg.asset
    def made(context: dg.AssetExecutionContext, spark: DatabricksResource) -> dg.MaterializeResult[Any]:
        result, metadata = spark.run(context, f"{STAGES}:{function}", arguments)
        return dg.MaterializeResult(metadata={"result": dg.MetadataValue.json(result), **metadata})

    return dg.materialize([made], resources={"spark": spark}, instance=instance, raise_on_error=False)


def failure_of(done: Any) -> dg.DagsterEvent:
    [event] = [event for event in done.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    return event


def error_of(done: Any) -> str:
    data = failure_of(done).step_failure_data
    return f"{data.error.message} {data.user_failure_data.description if data.user_failure_data else ''}"


def lines_of(done: Any, instance: dg.DagsterInstance) -> str:
    return "\n".join(entry.user_message for entry in instance.all_logs(done.run_id))


def test_a_function_runs_on_the_cluster_with_this_code_and_its_lines_and_result_come_back(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    done = materialise(compute(workspace), "add", instance, one=1, two=2)
    assert done.success
    [made] = done.asset_materializations_for_node("made")
    result = made.metadata["result"].value
    assert (result["sum"], result["secret"]) == (3, len(SECRET))
    assert result["code"].startswith(str(workspace.root / "cluster-100"))
    assert made.metadata[PAGE].value.endswith("#job/run/100")
    said = lines_of(done, instance)
    assert "adding 1 and 2" in said
    # The secret is neither in the job, nor in the log, nor in what is left in the volume.
    assert SECRET not in json.dumps(workspace.submitted) + said
    assert workspace.token not in json.dumps(workspace.submitted) + said
    assert list(Path(workspace.volume, "sessions").iterdir()) == []


def test_functions_of_a_step_share_one_job_which_ends_with_the_step_and_throttled_requests_are_repeated(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    @dg.asset
    def made(context: dg.AssetExecutionContext, spark: DatabricksResource) -> dg.MaterializeResult[Any]:
        one, _ = spark.run(context, f"{STAGES}:add", {"one": 1, "two": 2}, is_last=False)
        two, _ = spark.run(context, f"{STAGES}:add", {"one": one["sum"], "two": 4}, is_last=False)
        return dg.MaterializeResult(metadata={"sum": two["sum"]})

    workspace.fail_with = [429, 503]
    done = dg.materialize([made], resources={"spark": compute(workspace)}, instance=instance)
    assert done.asset_materializations_for_node("made")[0].metadata["sum"].value == 7
    assert len(workspace.submitted) == 1  # although the first requests were refused
    assert workspace.look(100)["state"]["result_state"] == "SUCCESS"
    assert list(Path(workspace.volume, "sessions").iterdir()) == []


def test_sessions_of_runs_that_are_over_are_removed_and_those_of_others_are_not(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    over = dg.materialize([dg.asset(name="any")(lambda: None)], instance=instance).run_id
    sessions = Path(workspace.volume, "sessions")
    for name in (f"{over}-0a1b2c3d", "00000000-0000-4000-8000-000000000000-0a1b2c3d"):
        (sessions / name).mkdir(parents=True)
        (sessions / name / "context.json").write_text("{}")
    remove_left(FilesApi(Open({"host": workspace.url, "token": workspace.token})), str(sessions), instance)
    assert [each.name for each in sessions.iterdir()] == ["00000000-0000-4000-8000-000000000000-0a1b2c3d"]


def test_a_function_that_fails_on_the_cluster_fails_the_step_with_its_error_without_secrets(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    done = materialise(compute(workspace), "fail", instance)
    assert "failed on Databricks: Failure: no such table; ***" in error_of(done)
    assert "#job/run/100" in error_of(done)
    assert SECRET not in error_of(done) + lines_of(done, instance) + workspace.output(100)
    assert failure_of(done).step_failure_data.user_failure_data.metadata["traceback_on_the_cluster"]


def test_an_outage_of_the_storage_on_the_cluster_is_one_that_lets_the_step_be_tried_again(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    done = materialise(compute(workspace), "lose", instance)
    found = failure_of(done).step_failure_data.error
    assert found is not None
    caused = found.cause or found
    assert caused.cls_name == "StoreError"
    assert "failed on Databricks: StoreTimeout: the store has not answered for 120 s" in caused.message


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("internal_error", "run 100 got no cluster (CLUSTER_ERROR): no quota"),
        ("pending", "got no cluster within 1 s (PENDING"),
        ("lost", "succeeded on Databricks, but its result did not arrive"),
    ],
)
def test_the_error_says_what_became_of_the_run(
    workspace: Workspace, instance: dg.DagsterInstance, plan: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Dagster waits so long for the last messages.
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    workspace.plan = plan
    done = materialise(compute(workspace, start_seconds=1), "add", instance, one=1, two=2)
    assert said in error_of(done)
    assert workspace.look(100)["state"]["life_cycle_state"] in {"TERMINATED", "INTERNAL_ERROR"}


def test_a_job_that_is_refused_says_so(
    workspace: Workspace, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    workspace.fail_with = [400]
    done = materialise(compute(workspace), "add", instance, one=1, two=2)
    assert "Databricks did not accept the job" in error_of(done)
    assert workspace.submitted == []


def test_a_run_that_is_cancelled_there_fails_the_step(
    workspace: Workspace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    threading.Thread(target=lambda: (running(tmp_path / "pid"), workspace.cancel(100)), daemon=True).start()
    done = materialise(compute(workspace), "wait", instance, path=str(tmp_path / "pid"))
    assert "run 100 was cancelled on Databricks: by the user" in error_of(done)


def test_an_interrupted_step_cancels_the_run_and_its_process_is_gone(
    workspace: Workspace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)

    def interrupt() -> None:
        running(tmp_path / "pid")
        os.kill(os.getpid(), 2)  # as Dagster's Terminate does

    threading.Thread(target=interrupt, daemon=True).start()
    done = materialise(compute(workspace), "wait", instance, path=str(tmp_path / "pid"))
    assert "DagsterExecutionInterruptedError" in error_of(done)
    assert workspace.look(100)["state"]["result_state"] == "CANCELED"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def running(path: Path) -> None:
    """Wait until the function on the cluster has written its process id."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_secret_in_the_environment_of_the_cluster_is_refused(
    workspace: Workspace, instance: dg.DagsterInstance
) -> None:
    done = materialise(compute(workspace, environment={"AWS_SECRET_ACCESS_KEY": SECRET}), "add", instance)
    assert "AWS_SECRET_ACCESS_KEY for the cluster must be a reference" in error_of(done)
    assert SECRET not in error_of(done)
    assert workspace.submitted == []


def test_secret_variables_become_references_to_a_scope() -> None:
    given = {"AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": SECRET}
    assert cluster_environment(given, "keys") == {
        "AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "{{secrets/keys/AWS_SECRET_ACCESS_KEY}}"
    }  # fmt: skip
    with pytest.raises(ValueError, match="AWS_SECRET_ACCESS_KEY is a secret"):
        cluster_environment(given, None)


def test_references_are_resolved_on_compute_that_takes_no_variables() -> None:
    found = resolve_secrets({"A": "plain", "B": "{{secrets/scope/key}}"}, lambda scope, key: f"{scope}:{key}")
    assert found == {"A": "plain", "B": "scope:key"}


def test_the_program_on_the_cluster_starts_without_dagster() -> None:
    """A function's module may import it."""
    code = "import sys, smalti_dagster.resources.databricks.entry; print({'dagster', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout == "set()\n"


def test_another_version_of_the_code_on_the_cluster_is_refused() -> None:
    with pytest.raises(RuntimeError, match="restart the cluster"):
        prepare({"code": "0.1.0+other", "environment": {}})


def test_a_lease_that_is_not_renewed_ends_the_process(tmp_path: Path) -> None:
    ended: list[bool] = []
    (tmp_path / "lease").write_text("1")
    StepLease(tmp_path / "lease", 0.3, threading.Event(), lambda done: ended.append(True)).run()
    assert ended == [True]


def test_equal_code_gives_an_equal_wheel() -> None:
    assert build_wheel(["assets"]) == build_wheel(["assets"])
    assert build_wheel(["assets"]).version != build_wheel(["assets", "pipelines"]).version
    with pytest.raises(ValueError, match="there is no package"):
        build_wheel(["no_such_package"])
