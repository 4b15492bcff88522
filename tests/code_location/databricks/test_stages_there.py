"""The data op of a declared set, whose stages run as a job of the stand-in when they need Spark."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from smalti_dagster.declaration import Declaration, Prepare, Source
from smalti_dagster.resources.databricks.compute import DatabricksResource
from smalti_dagster.resources.databricks.open_job import PAGE
from smalti_dagster.resources.databricks.settings import read_databricks
from smalti_dagster.resources.deployment import detect_resources
from smalti_dagster.resources.storage import FsspecStorage, LocalStorage, S3Storage
from tests.code_location.databricks.there import NOTES, compute, content
from tests.code_location.databricks.workspace import Workspace
from tests.code_location.declared import declare, define
from tests.code_location.graph import Graph, draw_all
from tests.code_location.instances import instance_in_memory

pytestmark = [pytest.mark.slow, pytest.mark.process]

CANARY = "canary-0123456789"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    root = tmp_path_factory.mktemp("workspace")
    with Workspace(root, {"keys/AWS_SECRET_ACCESS_KEY": CANARY}) as made:
        yield made


def lines_of(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    return [entry.user_message for entry in instance.all_logs(run_id)]


def stored(instance: dg.DagsterInstance, run_id: str) -> str:
    """All that Dagster keeps of a run."""
    run = instance.get_run_by_id(run_id)
    return dg.serialize_value(run) + "".join(map(dg.serialize_value, instance.all_logs(run_id)))


# ---------------------------------------------------------------- equal to a local run


@pytest.mark.spark
def test_images_on_the_cluster_give_the_shard_set_of_a_local_run_by_one_job_and_an_unchanged_run_starts_none(
    workspace: Workspace, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    photos = tmp_path / "photos"
    draw_all(photos, per_class=4)
    (photos / "daisy").rename(photos / "Gänseblümchen 雏菊")
    with instance_in_memory() as here, instance_in_memory() as there:
        local = Graph(here, photos, tmp_path / "local").run()
        remote = Graph(there, photos, tmp_path / "remote")
        spark = compute(workspace)
        job = remote.defs(spark).resolve_job_def("flowers_reshard_job")
        done, jobs = job.execute_in_process(instance=there), len(workspace.submitted)
        made = {stage: remote.facts(stage) for stage in ("raw", "prepared", "shards")}
        assert content(tmp_path / "remote" / "flowers") == content(tmp_path / "local" / "flowers")
        assert made["prepared"]["digest"] == local["prepared"]["digest"]
        added = {PAGE}  # and the places and times differ, but nothing is missing
        assert {stage: each.keys() - added for stage, each in made.items()} == {
            stage: each.keys() for stage, each in local.items()
        }
        assert (PAGE in made["raw"], PAGE in made["prepared"], PAGE in made["shards"]) == (False, True, True)
        assert all(check.passed for check in done.get_asset_check_evaluations())
        # What the stage has said on the cluster is in the run's log.
        assert "8 new or changed files prepared, 0 kept as they were" in lines_of(there, done.run_id)
        # The job has the reference, and its parameters are far below the limit of 10,000 bytes.
        [body] = workspace.submitted[jobs - 1 :]
        assert len(json.dumps(body["tasks"][0]["python_wheel_task"]["parameters"])) < 2000
        for secret in (CANARY, workspace.token):
            assert secret not in json.dumps(body) + stored(there, done.run_id)
        again = job.execute_in_process(instance=there)
        assert (again.success, len(workspace.submitted)) == (True, jobs)
        assert list(Path(workspace.volume, "sessions").iterdir()) == []
        assert not list((tmp_path / "remote").rglob("probe-*"))


# ---------------------------------------------------------------- ends


def job_of(declared: Declaration, **resources: Any) -> dg.JobDefinition:
    defs = dg.Definitions.merge(define(declared, **resources), dg.Definitions(executor=dg.in_process_executor))
    return defs.resolve_job_def(f"{declared.name}_reshard_job")


def failed_with(job: dg.JobDefinition, instance: dg.DagsterInstance, **tags: str) -> str:
    """Run a job that fails, and return the error of its step."""
    done = job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
    [failure] = [each for each in done.all_events if each.event_type is dg.DagsterEventType.STEP_FAILURE]
    said = failure.step_failure_data
    return f"{said.error.to_string()} {said.user_failure_data.description if said.user_failure_data else ''}"


def test_a_storage_that_the_cluster_does_not_see_fails_the_step_with_the_error_from_there(
    workspace: Workspace, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """A job that an earlier attempt has left, as the run's tag says, is cancelled first."""
    workspace.plan = "pending"
    left = workspace.submit({"idempotency_token": "left", "tasks": [{}]})
    workspace.plan = ""
    draw_all(tmp_path, per_class=4)
    declared = declare(source=Source(folder=str(tmp_path)), train=None)
    storage = FsspecStorage(root="memory://lake")
    job = job_of(declared, storage=storage, spark=compute(workspace))
    said = failed_with(job, instance, **{"smalti/flowers__data.job": str(left)})
    assert "failed on Databricks: Failure: the cluster does not see in memory://lake" in said
    assert workspace.look(left)["state"]["result_state"] == "CANCELED"


def test_an_interrupted_op_cancels_its_job_and_leaves_nothing(
    workspace: Workspace, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster._core.pipes.utils.WAIT_FOR_LOGS_AFTER_EXECUTION_INTERVAL", 0)
    before = len(workspace.runs)

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while len(workspace.runs) == before and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), 2)  # as Dagster's Terminate does

    threading.Thread(target=interrupt, daemon=True).start()
    storage = LocalStorage(root=str(tmp_path / "data"))
    declared = NOTES.model_copy(update={"partitions": None})
    said = failed_with(job_of(declared, storage=storage, spark=compute(workspace)), instance)
    assert "DagsterExecutionInterruptedError" in said
    [number] = list(workspace.runs)[before:]
    assert workspace.look(number)["state"]["result_state"] == "CANCELED"
    assert list(Path(workspace.volume, "sessions").iterdir()) == []


# ---------------------------------------------------------------- refused before a job


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"source": Source(sql="select '${LAKE_KEY}'")}, "refers to the variable LAKE_KEY: name it in `environment`"),
        (
            {"source": Source(sql="select 1", version="tests.code_location.declared:declare")},
            "no package 'tests' of tests.code_location.declared:declare: name it in `packages`",
        ),
        (
            {"source": Source(sql="select 1"), "prepare": Prepare(function="tests.code_location.declared:declare")},
            "no package 'tests' of tests.code_location.declared:declare: name it in `packages`",
        ),
    ],
)
def test_what_the_cluster_would_miss_is_refused_without_a_job(
    workspace: Workspace,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    declared: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setenv("LAKE_KEY", "0")
    before = len(workspace.submitted)
    spark = compute(workspace, packages=["smalti", "smalti_dagster"])
    job = job_of(declare(train=None, **declared), storage=LocalStorage(root=str(tmp_path)), spark=spark)
    assert said in failed_with(job, instance)
    assert len(workspace.submitted) == before


def test_another_endpoint_on_the_cluster_is_refused(workspace: Workspace, instance: dg.DagsterInstance) -> None:
    storage = S3Storage(root="s3://lake", endpoint_url="http://127.0.0.1:1")
    job = job_of(
        declare(train=None, source=Source(sql="select 1")), storage=storage, spark=compute(workspace, environment={})
    )
    assert "would open s3://lake with another endpoint_url" in failed_with(job, instance)


# ---------------------------------------------------------------- settings


def test_one_variable_makes_a_deployment_run_on_databricks_with_references_to_secrets(tmp_path: Path) -> None:
    settings = tmp_path / "databricks.json"
    settings.write_text(json.dumps({"volume": "/Volumes/a/b/c", "secret_scope": "keys", "environment": {"X": "y"}}))
    environ = {
        "SMALTI_ROOT": "s3://lake", "AWS_SECRET_ACCESS_KEY": CANARY, "AWS_REGION": "eu-west-1",
        "SMALTI_DATABRICKS": str(settings),
    }  # fmt: skip
    spark = detect_resources(environ)["smalti_spark"]
    assert isinstance(spark, DatabricksResource)
    assert spark.environment == {
        "AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "{{secrets/keys/AWS_SECRET_ACCESS_KEY}}", "X": "y"
    }  # fmt: skip
    assert {each.partition(">")[0] for each in spark.libraries} == {"s3fs", "botocore"}
    with pytest.raises(ValueError, match="two places for Spark"):
        detect_resources({**environ, "SMALTI_SPARK_MASTER": "local[2]"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"volume": "/Volumes/a/b/c", "token": "x"}', "have no 'token'"),
        ("nothing.json", "must be JSON or a file with JSON"),
        ("[1]", "must be JSON or a file"),
        ('{"volume": "/Volumes/a/b/c"}', "AWS_SECRET_ACCESS_KEY is a secret"),
    ],
)
def test_settings_of_databricks_that_do_not_fit_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_databricks(text, "s3://lake", {"AWS_SECRET_ACCESS_KEY": CANARY})
