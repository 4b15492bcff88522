"""A declared study of hyperparameters: an asset with its trials and pictures, and a job that trains the best of it."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest

from smalti_dagster.declaration import Train, Tuning
from smalti_dagster.lineage import facts_of, latest
from smalti_dagster.models.model import study_key
from smalti_dagster.reports.tuning import (
    StudyReport,
    coordinates_picture,
    history_picture,
    importances_picture,
    show_study,
)
from smalti_dagster.resources.storage import StorageResource
from smalti_dagster.resources.training import TrainerResource
from tests.code_location.declared import declare, define
from tests.code_location.shard_sets import make_version, rows_of

TUNING = Tuning(space={"learning_rate": {"low": 0.001, "high": 0.1, "log": True}, "epochs": [1, 2]}, trials=2)
TRIALS = [
    {"number": 0, "state": "complete", "params": {"rate": 0.001, "kind": "a"}, "value": 0.5, "seconds": 2.0,
     "run_dir": "/s/0", "failure": ""},
    {"number": 1, "state": "pruned", "params": {"rate": 0.1, "kind": "b"}, "value": 0.25, "seconds": 1.0,
     "run_dir": "/s/1", "failure": ""},
    {"number": 2, "state": "failed", "params": {"rate": 1.0, "kind": "b"}, "value": None, "seconds": 1.0,
     "run_dir": "/s/2", "failure": "trace\nValueError: <x> & y"},
    {"number": 3, "state": "complete", "params": {"rate": 0.01, "kind": "b"}, "value": 0.75, "seconds": 2.0,
     "run_dir": "/s/3", "failure": ""},
]  # fmt: skip
FOUND: dict[str, Any] = {
    "metric": "accuracy", "direction": "maximize", "trials": TRIALS, "best": TRIALS[3],
    "importances": {"rate": 0.75, "kind": 0.25},
}  # fmt: skip


def svg_of(markdown: str) -> ET.Element:
    text = markdown.partition("data:image/svg+xml")[2][:-1]
    if text.startswith(";base64,"):
        import base64

        return ET.fromstring(base64.b64decode(text.removeprefix(";base64,")))
    return ET.fromstring(unquote(text.removeprefix(",")))


def texts(markdown: str) -> list[str]:
    return [each.text or "" for each in svg_of(markdown).iter() if each.tag.endswith("text")]


def points(markdown: str) -> list[list[tuple[int, int]]]:
    lines = [each for each in svg_of(markdown).iter() if each.tag.endswith("polyline")]
    return [[(int(x), int(y)) for x, y in (p.split(",") for p in line.get("points", "").split())] for line in lines]


def test_the_best_trials_come_first_in_the_table_and_failures_last_with_their_reason() -> None:
    shown: dict[str, Any] = dict(show_study(FOUND))
    rows = [row.data for row in shown["trials_table"].records]
    assert [(row["trial"], row["state"], row["accuracy"]) for row in rows] == [
        (3, "complete", "0.75"), (0, "complete", "0.5"), (1, "pruned", "0.25"), (2, "failed", ""),
    ]  # fmt: skip
    assert rows[3]["failure"] == "ValueError: <x> & y"
    assert rows[0]["hyperparameters"] == "rate 0.01, kind b"
    assert (shown["trials"], shown["complete_trials"], shown["pruned_trials"], shown["failed_trials"]) == (4, 2, 1, 1)
    assert (shown["best_accuracy"], shown["best_trial"]) == (0.75, 3)
    assert shown["best_configuration"].value == {"rate": 0.01, "kind": "b"}
    nothing = show_study({**FOUND, "trials": [TRIALS[2]], "best": None, "importances": {}})
    assert "best_configuration" not in nothing


def test_the_history_has_a_dot_for_each_trial_and_a_line_of_the_best_so_far() -> None:
    picture = history_picture(TRIALS, "accuracy", "maximize")
    dots = [each for each in svg_of(picture).iter() if each.tag.endswith("circle")]
    assert len(dots) == 3  # the failed one has no figure
    [line] = points(picture)
    assert len(line) == 2
    assert line[1][1] < line[0][1]  # upwards on the screen: better
    assert {"0.75", "0.25"} <= set(texts(picture))


def test_importances_are_bars_with_their_shares_and_coordinates_have_logarithmic_axes() -> None:
    assert texts(importances_picture(FOUND["importances"]))[1:] == ["rate", "75%", "kind", "25%"]
    wide = [{**TRIALS[0]}, {**TRIALS[3]}, {**TRIALS[0], "params": {"rate": 0.1, "kind": "a"}, "value": 1.0}]
    lines = points(coordinates_picture(wide, "accuracy"))
    kinds, rates = 0, 1  # axes in order of their names
    heights = sorted(line[rates][1] for line in lines)
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=1)  # 0.001, 0.01, 0.1
    assert {line[kinds][1] for line in lines} == {44, 196}


def test_each_trial_is_said_and_the_trials_so_far_are_observed_twice_a_minute() -> None:
    lines: list[str] = []
    seen: list[dict[str, Any]] = []
    now = [0.0]
    report = StudyReport(lines.append, seen.append, metric="accuracy", direction="maximize", clock=lambda: now[0])
    report({"event": "trial", "number": 0, "state": "running", "params": {"rate": 0.001}, "run_dir": "/s/0"})
    report({"event": "trial", **TRIALS[0]})
    now[0] = 31.0
    report({"event": "trial", **TRIALS[2]})
    assert lines == [
        "trial 0 begins: rate 0.001",
        "trial 0 is complete, accuracy 0.5",
        "trial 2 is failed: trace\nValueError: <x> & y",
    ]
    [point] = seen
    assert [row.data["trial"] for row in point["trials_table"].records] == [0, 2]


def test_a_study_that_cannot_be_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ValueError, match="`rate` must have a `low` up to its `high`"):
        Tuning(space={"rate": {"low": 2, "high": 1}})
    with pytest.raises(ValueError, match="`tuning` needs `train`"):
        declare(tuning=TUNING, train=None)


@pytest.mark.slow
@pytest.mark.torch
def test_a_study_is_materialised_and_a_job_without_any_entry_trains_its_best(
    instance: dg.DagsterInstance, storage: StorageResource, tmp_path: Path
) -> None:
    train = Train(architecture="tests.torch.train.tiny_models:convolution", batch_size=4, epochs=5)
    declared = declare(train=train, tuning=TUNING)
    trainer = TrainerResource(run_root=str(tmp_path / "runs"))
    loaded = define(declared, storage=storage, trainer=trainer)
    make_version(instance, storage, {"train": rows_of(6, 6), "validation": rows_of(3, 3)})
    best_job = loaded.resolve_job_def("flowers_train_best_job")
    early = best_job.execute_in_process(instance=instance, raise_on_error=False)
    assert not early.success
    entered = {"ops": {"flowers__study": {"config": {"trials_on": "inline"}}}}
    done = loaded.resolve_job_def("flowers_study_job").execute_in_process(run_config=entered, instance=instance)
    assert done.success
    event = latest(instance, study_key(declared))
    assert event is not None
    study = facts_of(event)
    assert study["complete_trials"] == 2
    best = study["best_configuration"]
    assert set(best) == {"learning_rate", "epochs"}
    assert Path(study["best_run"], "result.json").exists()
    assert best_job.execute_in_process(instance=instance).success
    event = latest(instance, declared.key("model"))
    assert event is not None
    model = facts_of(event)
    assert (model["tuned"], model["epochs"]) == (best, best["epochs"])
