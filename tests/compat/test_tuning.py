"""Petastorm's pages tune hyperparameters on a cluster over a converter, with Hyperopt; here a study does it."""

import json
import os
from pathlib import Path

import pytest

from smalti.compat.petastorm import make_spark_converter
from smalti.torch.tuning import StudyOptions, hyperparameter_study
from tests.torch.tuning.functions import hopeless

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.torch, pytest.mark.process, pytest.mark.nightly]
CACHE = "petastorm.spark.converter.parentCacheDirUrl"


@pytest.fixture
def converter(spark, tmp_path):
    """64 rows with y = 2 x."""
    spark.conf.set(CACHE, f"file://{tmp_path}/converted")
    made = make_spark_converter(spark.range(64).selectExpr("float(id % 8) / 8 as x", "float(id % 8) / 4 as y"))
    yield made
    made.delete()
    spark.conf.unset(CACHE)


def test_trials_run_side_by_side_as_spark_tasks_each_over_the_converter(converter, tmp_path):
    def train(context):
        import torch

        slope = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.SGD([slope], lr=context.config["learning_rate"])
        rows = 0
        with converter.make_torch_dataloader(batch_size=16, num_epochs=4) as loader:
            for step, batch in enumerate(loader, 1):
                loss = ((slope * batch["x"] - batch["y"]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                rows += len(batch["x"])
                context.report({"loss": loss}, step=step)
        return {"loss": loss.item(), "slope": slope.item(), "rows": rows, "parent": os.getppid()}

    options = StudyOptions(
        study_dir=str(tmp_path / "study"), metric="loss", direction="minimize", trials=2, parallel=2,
        trials_on="spark", pruner="none",
    )  # fmt: skip
    heard = []
    found = hyperparameter_study(train, {"learning_rate": [1e-6, 0.5]}, options, on_event=heard.append)
    assert [trial.state for trial in found.trials] == ["complete", "complete"], found.trials
    assert [event["state"] for event in heard][:2] == ["running", "running"]
    results = [json.loads(Path(trial.run_dir, "result.json").read_text())["value"] for trial in found.trials]
    assert [each["rows"] for each in results] == [256, 256]
    assert os.getpid() not in {each["parent"] for each in results}
    for trial, result in zip(found.trials, results, strict=True):
        assert trial.value == pytest.approx(result["loss"])
        assert (result["slope"] > 1) == (trial.params["learning_rate"] == 0.5)
    assert found.best.value == min(result["loss"] for result in results)


def test_a_pruned_task_ends_with_its_process(spark, tmp_path):
    """The fourth trial would report for minutes."""
    options = StudyOptions(study_dir=str(tmp_path / "study"), metric="score", trials=4, trials_on="spark")
    found = hyperparameter_study(hopeless, {"x": [1, 2]}, options)
    assert [trial.state for trial in found.trials] == ["complete", "complete", "complete", "pruned"]
