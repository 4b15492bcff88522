"""Models of rows: trained for a declared task, reported with its figures, checked and promoted by its main one."""

from typing import Any

import dagster as dg
import numpy as np
import pytest

from smalti.catalog import Draft, new_write_id, publish
from smalti.errors import CatalogError
from smalti.format import Schema, ShardBuilder, ShardOptions
from smalti.writer import ShardUploader
from smalti_dagster.checks.metric import require_same_figures, worsening
from smalti_dagster.declaration import Checks, Declaration, Source, Split, Train
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.models.promotion import build_promotion
from smalti_dagster.models.task_model import build_task_model
from smalti_dagster.places import shards_of
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from smalti_dagster.shard_tags import promoted_model
from tests.code_location.documented_keys import documented_keys

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TRAIN = Train(
    task="examples.tabular_regression:TabularRegression",
    task_options={"features": ["a", "b"], "target": "y", "hidden": [8]},
    epochs=6,
    batch_size=8,
    options={"learning_rate": 0.05, "optimizer": "torch.optim:SGD", "optimizer_options": {"momentum": 0.9}},
)
DECLARED = Declaration(
    name="sales",
    source=Source(table="lake.sales"),
    split=Split(validation=0.2),
    train=TRAIN,
    checks=Checks(metric_limit=1.0, max_metric_loss=0.5),
)


class Sales:
    """A shard set of rows, the models that are trained on it, and what is recorded of them."""

    def __init__(self, instance: dg.DagsterInstance, storage: StorageResource, folder: Any) -> None:
        self.instance, self.storage = instance, storage
        self.trainer = TrainerResource(run_root=str(folder / "runs"))

    def publish(self, *, held_out: int, rows: int = 40, training: str | None = "train") -> None:
        store, write_id, written = shards_of(DECLARED, self.storage).store(), new_write_id(), []
        schema = Schema.from_columns({"a": "float64", "b": "float64", "y": "float64"})
        for split, numbers in ((training, range(rows)), ("validation", range(100, 100 + held_out))):
            if not numbers:
                continue
            uploader = ShardUploader(
                store, f"{split or 'all'}/{write_id}/0", ShardBuilder(schema, ShardOptions()), partition=split
            )
            for number in numbers:
                a, b = np.random.default_rng(number).normal(size=2)
                uploader.write({"a": a, "b": b, "y": 3 * a - b})
            written += uploader.finish()
        made = publish(store, Draft(write_id, schema, tuple(written), lineage={"source": "lake"}), mode="overwrite")
        self.instance.report_runless_asset_event(
            dg.AssetMaterialization(["sales", "shards"], metadata={"version": made.version, "digest": made.digest})
        )

    def train(self, declared: Train = TRAIN, **config: Any) -> dict[str, Any]:
        """Train a model; return its metadata, and which of its checks passed."""
        done = dg.materialize(
            [build_task_model(DECLARED, declared)],
            instance=self.instance,
            resources={"smalti_storage": self.storage, "smalti_trainer": self.trainer},
            run_config={"ops": {DECLARED.model_op: {"config": config}}},
        )
        found = latest(self.instance, DECLARED.key("model"))
        assert found is not None
        return {**facts_of(found), "checks": {each.check_name: each for each in done.get_asset_check_evaluations()}}

    def promote(self) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [build_promotion(DECLARED)], instance=self.instance, resources={"smalti_storage": self.storage}
        )


def test_a_declaration_says_when_a_training_ends_and_which_weights_are_kept(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Any
) -> None:
    sales = Sales(instance, storage, tmp_path)
    sales.publish(held_out=10)
    # 40 rows in steps of 8: 12 steps are two epochs and two further steps.
    declared = Train.model_validate(
        {**TRAIN.model_dump(by_alias=True), "max_steps": 12, "eval_every": 4, "keep": "best", "patience": 9}
    )
    facts = sales.train(declared)
    assert (facts["steps"], facts["epochs"]) == (12, 2)
    assert len(facts["curves_by_epoch"]["r2"]) == 3
    held_out = facts["curves_by_epoch"]["held-out loss"]
    assert facts["main_value"] <= min(held_out) + 1e-4  # rounded
    assert 0 <= facts["data_fraction"] <= 1


def test_a_model_of_rows_is_trained_reported_compared_and_promoted(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Any
) -> None:
    sales = Sales(instance, storage, tmp_path)
    sales.publish(held_out=10)
    first = sales.train()
    assert (first["main_metric"], first["higher_is_better"], first["held_out_rows"]) == (
        "mean_squared_error",
        False,
        10,
    )
    assert first["main_value"] == first["mean_squared_error"] < 1.0
    names = [row.data["figure"] for row in first["metrics"].records]
    assert names == ["loss", "mean_squared_error", "mean_absolute_error", "r2"]
    assert "confusion_picture" not in first
    assert set(first["curves_by_epoch"]) >= {"training loss", "held-out loss", "r2"}
    assert first.keys() - set(names) - {"checks"} <= documented_keys("model")
    assert {name: each.passed for name, each in first["checks"].items()} == {
        "metric_is_good_enough": True,
        "metric_has_not_worsened": True,
    }
    sales.promote()
    promoted = promoted_model(shards_of(DECLARED, storage).store())
    assert promoted is not None
    assert promoted.metadata["main_value"] == first["main_value"]

    # Worse on the same rows: by the figure that was recorded.
    worse = sales.train(epochs=1, learning_rate=1e-5)
    check = worse["checks"]["metric_has_not_worsened"]
    assert not check.passed
    assert check.metadata["that_of_the_promoted_model"].value == first["main_value"]
    assert not worse["checks"]["metric_is_good_enough"].passed

    # On other rows: the promoted model is evaluated on them.
    sales.publish(held_out=20)
    check = sales.train()["checks"]["metric_has_not_worsened"]
    assert "was evaluated on them" in check.metadata["validation_rows"].value
    assert 0 < check.metadata["that_of_the_promoted_model"].value != first["main_value"]

    # Of another column the figure is another one.
    other = sales.train(epochs=1, task_options={"features": ["b"], "target": "a"})
    check = other["checks"]["metric_has_not_worsened"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "its task option `target` is 'y', and not 'a'" in check.description


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"task": "m:Language"}, {"task": "m:Tabular"}, "its task is m:Language"),
        (
            {"task": "m:Language", "task_options": {"column": "tokens", "ignore": 0}},
            {"task": "m:Language", "task_options": {"column": "tokens"}},
            "`ignore` is 0, and not None",
        ),
        ({"task": "m:Mine", "task_options": {"depth": 1}}, {"task": "m:Mine", "task_options": {}}, "`depth` is 1"),
        ({"task": TRAIN.task, "task_options": TRAIN.task_options}, None, None),
        ({"task": TRAIN.task, "task_options": {**TRAIN.task_options, "hidden": [4, 4]}}, None, None),
        ({"task": TRAIN.task, "task_options": {**TRAIN.task_options, "target": "a"}}, None, "`target` is 'a', and"),
        ({}, {"task": TRAIN.task}, None),  # promoted before models said their task
    ],
)
def test_figures_of_another_task_or_of_other_data_are_not_compared(
    before: dict[str, Any], now: dict[str, Any] | None, words: str | None
) -> None:
    now = now or {"task": TRAIN.task, "task_options": TRAIN.task_options}
    if words is None:
        require_same_figures(before, now)
    else:
        with pytest.raises(ValueError, match=words):
            require_same_figures(before, now)


def test_a_version_is_trained_on_as_a_whole_only_if_it_has_no_splits(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Any
) -> None:
    sales = Sales(instance, storage, tmp_path)
    sales.publish(held_out=10, training="training")
    with pytest.raises(CatalogError, match="has the splits training, validation, expected one named 'train'"):
        sales.train()
    sales.publish(held_out=0, training=None)
    assert sales.train(epochs=1)["held_out_rows"] == 0


@pytest.mark.parametrize(
    ("before", "now", "higher_is_better", "share"),
    [
        (2.0, 2.2, False, 0.1),
        (2.0, 1.0, False, -0.5),
        (0.8, 0.6, True, 0.25),
        (-4.0, -5.0, True, 0.25),
        (0, 0, True, 0),
    ],
)
def test_a_figure_is_worse_by_a_share_in_the_declared_direction(
    before: float, now: float, higher_is_better: bool, share: float
) -> None:
    assert worsening(before, now, higher_is_better=higher_is_better) == pytest.approx(share)


@pytest.mark.parametrize(
    ("source", "train", "words"),
    [
        (Source(table="t"), {}, "image-classification needs a source of images; for rows, give module:Class"),
        (
            Source(table="t"),
            {"task": "language-model"},
            "copy language_model.py .* `task: language_model:LanguageModel`",
        ),
    ],
)
def test_a_task_that_does_not_fit_the_source_is_refused(source: Source, train: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Declaration(name="sales", source=source, train=Train(**train))
