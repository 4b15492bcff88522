"""The log lines and metadata that the events of a training run become."""

import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest

from smalti.dataset import StreamingDataset
from smalti.storage import LocalStore
from smalti_dagster.models.model import ModelConfig, chance_level
from smalti_dagster.models.training import Launcher
from smalti_dagster.reports.evaluation import by_class, confused_pairs, kept_curves, show_curves, show_most_wrong
from smalti_dagster.reports.pictures import INLINE_LIMIT
from smalti_dagster.reports.training import TrainingReport
from smalti_dagster.resources.training import TrainerResource
from tests.code_location.shard_sets import publish_rows, rows_of

START = {
    "event": "start", "step": 0, "epoch": 0, "num_ranks": 2, "device": "cpu", "version": 4, "train_samples": 100,
    "steps_per_epoch": 10,
    "total_steps": 50,
}  # fmt: skip
EPOCH = {
    "event": "epoch", "epoch": 0, "train_loss": 1.5, "loss": 1.25, "accuracy": 0.5, "images_per_second": 80.0,
    "train_accuracy": 0.4, "step": 10, "life": 0,
}  # fmt: skip


class Listener:
    """Keeps what a report says; its clock is set by hand."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.points: list[dict[str, Any]] = []
        self.now = 0.0
        self.report = TrainingReport(
            self.lines.append, self.points.append, epochs=5, run_id="abc", clock=lambda: self.now
        )

    def step(self, number: int, now: float) -> None:
        self.now = now
        figures = {"loss": 2.0, "images_per_second": 75.4, "data_fraction": 0.031, "learning_rate": 4e-3}
        self.report({"event": "step", "step": number, "epoch": 0, "peak_memory_mb": 812.3, **figures})


def test_an_epoch_is_an_observation_of_its_own_run_without_numbers_that_would_be_one_line_over_all_runs() -> None:
    listener = Listener()
    listener.report(EPOCH)
    [point] = listener.points
    assert not any(isinstance(value, int | float) for value in point.values())
    assert (point["progress"], point["run"].value) == ("epoch 1 of 5", "abc")
    assert [row.data for row in point["epochs"].records] == [
        {"epoch": 1, "training loss": 1.5, "held-out loss": 1.25, "accuracy": 0.5, "images/s": 80.0}
    ]
    assert len(point["curves"].value) < INLINE_LIMIT
    assert listener.lines == ["epoch 1 of 5: held-out accuracy 0.500, loss 1.250, 80 images/s"]


def test_the_metadata_of_a_diverged_training_is_valid_json_and_says_diverged() -> None:
    listener = Listener()
    history = [EPOCH, {**EPOCH, "epoch": 1, "train_loss": math.inf, "loss": math.nan}]
    for epoch in history:
        listener.report(epoch)
    shown = show_curves(history)
    for metadata in (*listener.points, shown):
        event = dg.AssetObservation("model", metadata=metadata)
        json.loads(dg.serialize_value(event), parse_constant=pytest.fail)  # called with NaN and Infinity
    assert listener.points[1]["epochs"].records[0].data == {
        "epoch": 2, "training loss": "diverged", "held-out loss": "diverged", "accuracy": 0.5, "images/s": 80.0,
    }  # fmt: skip
    kept = shown["curves_by_epoch"].value
    assert kept == {"training loss": [1.5, None], "held-out loss": [1.25, None], "accuracy": [0.5, 0.5]}
    drawn = show_curves([EPOCH, EPOCH], {"the run before": kept_curves(kept)})
    assert "the run before" in unquote(str(drawn["curves_picture"].value))
    assert "held-out loss: diverged" in unquote(str(shown["curves_picture"].value))


def test_steps_are_told_every_few_seconds_only_with_their_share_of_the_run() -> None:
    listener = Listener()
    listener.report(START)
    for number in range(1, 11):
        listener.step(number, now=number * 0.5)
    assert listener.lines == [
        "training on 100 images of version 4 on cpu, 2 processes",
        "12% epoch 1 of 5, loss 2.000, images/s 75, waiting for data 3%, learning rate 0.004, memory, MB 812",
    ]


def test_figures_of_steps_are_observed_twice_a_minute_with_links_to_other_records() -> None:
    listener = Listener()
    listener.report(START)
    listener.report({"event": "tracking", "name": "mlflow", "link": "http://mlflow/#/experiments/1/runs/2"})
    listener.report({"event": "tracking", "name": "tensorboard", "link": "/runs/1/tensorboard"})
    for number in range(1, 41):
        listener.step(number, now=number * 1.5)
    assert [point["progress"] for point in listener.points] == ["40% epoch 1 of 5", "80% epoch 1 of 5"]
    assert listener.points[0]["step"].records[0].data == {
        "loss": "2.000", "images/s": "75", "waiting for data": "3%", "learning rate": "0.004", "memory, MB": "812",
    }  # fmt: skip
    assert listener.points[0]["mlflow"] == dg.MetadataValue.url("http://mlflow/#/experiments/1/runs/2")
    assert listener.report.links()["tensorboard"] == dg.MetadataValue.path("/runs/1/tensorboard")


def test_reports_of_a_function_are_shown_with_what_was_measured() -> None:
    listener = Listener()
    listener.report({"event": "start", "step": 0, "device": "cpu", "num_ranks": 1})
    listener.now = 5.0
    listener.report({"event": "report", "step": 7, "metrics": {"loss": 0.25}, "measures": {"samples_per_second": 9.6}})
    assert listener.lines == ["training on cpu, 1 process", "step 7, loss 0.250, samples/s 10"]


def test_a_run_that_goes_on_says_from_where() -> None:
    listener = Listener()
    listener.report({**START, "step": 7, "num_ranks": 1})
    assert listener.lines == ["training on 100 images of version 4 on cpu, 1 process, going on after step 7"]


def test_output_of_child_processes_is_passed_on_and_unknown_events_are_not_an_error() -> None:
    listener = Listener()
    listener.report({"event": "output", "rank": 1, "line": "hello"})
    listener.report({"event": "something new"})
    assert listener.lines == ["rank 1: hello"]


def test_the_deployment_decides_the_launcher_unless_the_asset_is_told() -> None:
    trainer = TrainerResource(run_root="/runs", launcher="processes", num_processes=2)
    default = ModelConfig().fields(trainer, stored_size=96)
    assert (default["launcher"], default["num_processes"]) == ("processes", 2)
    assert (default["weights"], default["task_options"]["image_size"]) == (None, 96)
    told = ModelConfig(launcher=Launcher.spark_local, num_processes=3).fields(trainer, stored_size=96)
    assert (told["launcher"], told["num_processes"]) == ("spark-local", 3)


@pytest.mark.slow
def test_every_choice_of_the_asset_is_one_that_the_library_takes() -> None:
    from dataclasses import fields

    from smalti.torch.train.config import TrainConfig

    known = {field.name for field in fields(TrainConfig)}
    assert set(ModelConfig().fields(TrainerResource(run_root="/runs"), stored_size=96)) <= known


def test_chance_is_the_share_of_the_largest_class() -> None:
    assert chance_level({"daisy": 30, "roses": 50, "tulips": 20}) == 0.5


def test_classes_are_shown_with_what_they_are_mistaken_for() -> None:
    rows = by_class([[8, 2, 0], [1, 5, 4], [0, 0, 0]], ["daisy", "roses", "tulips"])
    assert rows == [
        {"class": "daisy", "images": 10, "accuracy": 0.8, "taken for": "roses"},
        {"class": "roses", "images": 10, "accuracy": 0.5, "taken for": "tulips"},
        {"class": "tulips", "images": 0, "accuracy": 0.0, "taken for": ""},
    ]


def test_confused_pairs_come_in_the_order_of_their_number() -> None:
    pairs = confused_pairs([[8, 2, 0], [1, 5, 4], [0, 0, 0]], ["daisy", "roses", "tulips"])
    assert [(each["true"], each["predicted"], each["images"]) for each in pairs] == [
        ("roses", "tulips", 4), ("daisy", "roses", 2), ("roses", "daisy", 1),
    ]  # fmt: skip


def test_the_images_that_a_model_is_most_wrong_about_are_shown_with_both_classes_and_their_paths(
    tmp_path: Path,
) -> None:
    publish_rows(LocalStore(tmp_path / "set"), {"train": rows_of(1, 1), "validation": rows_of(2, 3)})
    data = StreamingDataset(remote=str(tmp_path / "set"), split="validation", version=1)
    wrong = [
        {"sample_id": 3, "label": 1, "predicted": 0, "confidence": 0.91, "loss": 2.5},
        {"sample_id": 0, "label": 0, "predicted": 1, "confidence": 0.6, "loss": 1.0},
    ]
    shown = show_most_wrong(wrong, ["daisy", "roses"], data)
    assert isinstance(shown["most_wrong"], dg.TableMetadataValue)
    assert [tuple(row.data.values()) for row in shown["most_wrong"].records] == [
        ("1/1.jpg", "roses", "daisy", "91%"), ("0/0.jpg", "daisy", "roses", "60%"),
    ]  # fmt: skip
    assert show_most_wrong([], ["daisy", "roses"], data) == {}
