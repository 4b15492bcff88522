"""A declared training function: the one of an example, in the asset, which resumes when Dagster retries the step."""

from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from examples.launch_pytorch import train
from smalti.errors import StoreTimeout
from smalti_dagster import build_definitions
from smalti_dagster.declaration import Train
from smalti_dagster.lineage import facts_of
from smalti_dagster.models.training_function import FunctionReport
from smalti_dagster.resources.storage import LocalStorage
from smalti_dagster.resources.training import TrainerResource
from tests.code_location.declared import declare, define
from tests.code_location.shard_sets import make_version, rows_of
from tests.code_location.test_declaration import TABLE, read

pytestmark = pytest.mark.torch

OPTIONS = {"num_classes": 2, "size": 12, "epochs": 2, "batch_size": 2, "learning_rate": 0.01, "save_every": 2}
"""Of 6 samples, an epoch is 3 steps."""


def fails_once(context):
    """Train as the example does; after step 3 of the first life, a store does not answer."""
    report, save = context.report, context.save

    def report_and_fail(metrics, *, step):
        report(metrics, step=step)
        if step == 3 and context.latest() is None:
            raise StoreTimeout("no answer for 120 s")

    context.report, context.save = report_and_fail, partial(save, wait=True)
    return train(context)


@pytest.mark.slow
def test_a_function_is_trained_by_the_asset_and_a_step_that_is_retried_resumes(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    storage = LocalStorage(root=str(tmp_path / "data"), retry_seconds=0)
    manifest = make_version(instance, storage, {"train": rows_of(3, 3), "validation": rows_of(1, 1)}, source="drawn")
    declared = declare(train=Train(function=f"{__name__}:fails_once", options=OPTIONS))
    trainer = TrainerResource(run_root=str(tmp_path / "runs"))
    job = define(declared, storage=storage, trainer=trainer).resolve_job_def("flowers_train_job")
    done = job.execute_in_process(instance=instance)
    assert done.success
    [record] = instance.fetch_materializations(declared.key("model"), limit=5).records
    facts = facts_of(record)
    assert (facts["steps"], facts["resumed_at_step"]) == (6, 2)
    run_dir = tmp_path / "runs" / "flowers" / done.run_id
    assert facts["checkpoint"] == str(run_dir / "checkpoints" / "step-00000006-00001-1")  # saved twice
    assert (facts["shards_version"], facts["shards_digest"]) == (1, manifest.digest)


def test_reports_are_lines_with_what_was_measured_and_observations_twice_a_minute() -> None:
    lines: list[str] = []
    points: list[dict[str, Any]] = []
    now = [0.0]
    report = FunctionReport(lines.append, points.append, run_id="abc", clock=lambda: now[0])
    report({"event": "start", "step": 4, "device": "cpu", "num_ranks": 2})
    report({"event": "tracking", "name": "mlflow", "link": "http://mlflow/#/experiments/1/runs/2"})
    report({"event": "checkpoint", "path": "/runs/1/checkpoints/step-00000004"})
    for step in (5, 6, 7):
        now[0] += 16.0
        metrics, measures = {"f1": 0.12345, "loss": "inf"}, {"samples_per_second": 9.6, "data_fraction": 0.25}
        report({"event": "report", "step": step, "metrics": metrics, "measures": measures})
    assert lines[:3] == [
        "training on cpu, 2 processes, going on after step 4",
        "mlflow: http://mlflow/#/experiments/1/runs/2",
        "step 5, f1 0.1235, loss inf, samples/s 10, waiting for data 25%",
    ]
    assert [point["progress"] for point in points] == ["step 6"]
    assert points[0]["step"].records[0].data == {
        "f1": "0.1235", "loss": "inf", "samples/s": "10", "waiting for data": "25%",
    }  # fmt: skip
    assert points[0]["run"].value == "abc"
    assert report.facts == {
        "resumed_at_step": 4, "checkpoint": dg.MetadataValue.path("/runs/1/checkpoints/step-00000004"),
    }  # fmt: skip
    assert report.links() == {"mlflow": dg.MetadataValue.url("http://mlflow/#/experiments/1/runs/2")}


def test_rows_can_be_trained_on_by_a_function_without_promotion() -> None:
    loaded = build_definitions(read(f"{TABLE}train: {{function: 'examples.launch_pytorch:train'}}"))
    names = {job.name for job in loaded.jobs or []}
    assert "sales_train_job" in names
    assert "sales_promote_job" not in names
