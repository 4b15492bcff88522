"""Evaluations and ends of the built-in trainer, and the weights that become the model; all of it resumes exactly."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from smalti.errors import SchemaError, TrainingError
from smalti.ledger import read_sample_order
from smalti.torch.train import train
from smalti.torch.train.trainer.state import RunState
from tests.torch.train.conftest import publish_squares

pytestmark = [pytest.mark.torch, pytest.mark.slow]


class StoppedError(Exception):
    """Raised by a listener, as if the process had been killed at that event."""


def stopping(kind, step):
    """Return a listener that ends the run at the first such event of a step."""

    def hear(event):
        if event["event"] == kind and event.get("step") == step:
            raise StoppedError

    return hear


def events(config, kind):
    lines = Path(config.run_dir, "metrics.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def weights(config):
    return load_file(f"{config.run_dir}/model/model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def figures(result):
    """Return what does not depend on the clock."""
    drop = {"images_per_second", "data_fraction", "eval_seconds"}
    return [{name: value for name, value in epoch.items() if name not in drop} for epoch in result.history]


# Two epochs of seven steps each, as the fixture has it, unless `max_steps` says otherwise.
CHANGES = {
    "max_steps": {"max_steps": 10},
    "eval_every": {"eval_every": 2},
    "patience": {"eval_every": 2, "patience": 3, "keep_best": "max train_loss"},
    "keep": {"eval_every": 3, "keep": "best", "keep_best": "max train_loss"},
    "micro_batches": {"micro_batches": 4},
    "class_weights": {"class_weights": (1, 2, 3)},
    "compile": {"compile": "eager"},
    "mixture": {
        "streams": ({"proportion": 2}, {"split": "validation", "proportion": 1}),
        "batching": "stratified",
        "max_steps": 9,
    },
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_run_that_is_killed_in_the_middle_continues_as_if_it_had_not_been(config, name, tmp_path):
    changes = dict(CHANGES[name])
    if "class_weights" in changes:
        changes = {"task_options": {**config.task_options, **changes}}
    whole = replace(config, run_dir=str(tmp_path / "whole"), **changes)
    broken = replace(config, run_dir=str(tmp_path / "broken"), **changes)
    expected = train(whole)
    with pytest.raises(StoppedError):
        train(broken, on_event=stopping("step", 4))
    found = train(broken)
    assert found.resumed_from is not None
    assert figures(found) == figures(expected)
    assert (found.steps, found.loss, found.evaluation["step"]) == (
        expected.steps,
        expected.loss,
        expected.evaluation["step"],
    )
    assert same(weights(broken), weights(whole))
    assert read_sample_order(f"{broken.run_dir}/samples") == read_sample_order(f"{whole.run_dir}/samples")


def test_max_steps_ends_the_run_in_the_middle_of_an_epoch_with_an_evaluation(config):
    result = train(replace(config, max_steps=10))
    assert (result.steps, result.epochs, result.evaluation["step"]) == (10, 1, 10)
    assert [(epoch["epoch"], epoch["step"]) for epoch in result.history] == [(0, 7), (1, 10)]
    assert result.history[1]["train_samples"] == 24


def test_max_steps_is_the_course_of_the_learning_rate(config):
    config = replace(config, max_steps=10, warmup=0.0, schedule="step", milestones=(0.5,), milestone_factor=0.5)
    train(replace(config, log_every=1))
    assert [event["learning_rate"] for event in events(config, "step")] == [0.02] * 5 + [0.01] * 5


def test_more_max_steps_continue_a_run_that_has_ended(config, tmp_path):
    config = replace(config, warmup=0.0, schedule="constant")
    train(replace(config, max_steps=10))
    longer = replace(config, max_steps=12)
    result = train(longer)
    whole = replace(longer, run_dir=str(tmp_path / "whole"))
    assert figures(result) == figures(train(whole))
    assert same(weights(longer), weights(whole))


def test_evaluations_within_an_epoch_are_reports_and_checkpoints_and_change_nothing_else(config, tmp_path):
    often = replace(config, eval_every=3, checkpoint_every=1000, keep_checkpoints=10)
    result = train(often)
    reports = events(often, "report")
    assert [event["step"] for event in reports] == [3, 6, 9, 12]
    assert set(reports[0]["metrics"]) == {"loss", "accuracy"}
    assert [event["step"] for event in events(often, "checkpoint")] == [3, 6, 7, 9, 12, 14]
    never = replace(config, run_dir=str(tmp_path / "never"))
    assert figures(result) == figures(train(never))
    assert same(weights(often), weights(never))


def test_an_evaluation_that_a_stop_came_before_is_made_up_for(config, tmp_path):
    whole = replace(config, run_dir=str(tmp_path / "whole"), eval_every=3)
    train(whole)
    broken = replace(config, eval_every=3, log_every=3)

    def stop(event):
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingError, match="SIGTERM after step 3"):
        train(broken, on_event=stop)
    assert events(broken, "report") == []
    train(broken)
    assert [event["step"] for event in events(broken, "report")] == [3, 6, 9, 12]
    metrics = [[event["metrics"] for event in events(each, "report")] for each in (broken, whole)]
    assert metrics[0] == metrics[1]


def test_an_epoch_that_a_stop_came_at_the_last_step_of_is_ended_by_the_next_life(config, tmp_path):
    whole = replace(config, run_dir=str(tmp_path / "whole"), max_steps=7, log_every=1)
    broken = replace(whole, run_dir=config.run_dir)

    def stop(event):
        if event["event"] == "step" and event["step"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(TrainingError, match="SIGTERM after step 7"):
        train(broken, on_event=stop)
    expected, found = train(whole), train(broken)
    assert (found.epochs, figures(found)) == (1, figures(expected))
    assert len(events(broken, "report")) == len(events(whole, "report")) == 0


def test_patience_counts_evaluations_without_a_better_figure(config):
    # The training loss falls: the first evaluation stays the best one.
    impatient = replace(config, epochs=9, eval_every=2, patience=3, keep_best="max train_loss")
    assert train(impatient).steps == 7  # evaluated after steps 2, 4, 6 and 7, where the epoch ends
    assert train(impatient).steps == 7


@pytest.mark.parametrize(
    ("figure", "values", "since"),
    [("min loss", [3, 2, 2, 4], 2), ("max loss", [3, 2, 2, 4], 0), ("max loss", [5], 0), ("max loss", [], 0)],
)
def test_an_equal_figure_is_no_better_one(figure, values, since):
    assert RunState(evaluations=[{"figures": {"loss": value}} for value in values]).since_best(figure) == since


def test_the_best_weights_become_the_model_and_its_figures_the_result(config, tmp_path):
    # The training loss falls: the best weights by "max train_loss" are those of the first evaluation.
    kept = replace(config, keep="best", keep_best="max train_loss", learning_rate=0.002)
    result = train(kept)
    assert result.evaluation["step"] == 7
    assert (result.loss, result.accuracy) == (result.history[0]["loss"], result.history[0]["accuracy"])
    first = replace(kept, run_dir=str(tmp_path / "first"), max_steps=7, warmup=0.0, schedule="constant")
    second = replace(first, run_dir=str(tmp_path / "second"), max_steps=14, keep="best")
    train(replace(first, keep="last", keep_best=None))
    assert train(second).evaluation["step"] == 7
    assert same(weights(first), weights(second))


@pytest.mark.parametrize("changes", [{}, {"eval_every": 2}])
@pytest.mark.parametrize("former", ["best", "last"])
def test_the_best_evaluation_has_what_each_evaluation_has(config, changes, former):
    kept = replace(config, keep_best="max train_loss", keep_checkpoints=10, **changes)
    last = train(replace(kept, keep=former))
    best = train(replace(kept, keep="best"))  # finished already
    assert best.evaluation["step"] == changes.get("eval_every", 7)
    assert isinstance(best.evaluation["step"], int)
    assert best.evaluation.keys() == last.history[-1].keys() > {"confusion", "most_wrong", "train_metrics"}
    if former == "best":
        assert last.evaluation == best.evaluation


def test_the_best_model_is_that_of_the_tasks_main_figure_by_default(config):
    result = train(replace(config, keep="best", eval_every=2))
    evaluations = [*(event["metrics"] for event in events(config, "report")), *result.history]
    assert result.accuracy == max(evaluation["accuracy"] for evaluation in evaluations)


def test_another_shard_set_is_evaluated(config, tmp_path):
    publish_squares(tmp_path / "other", train=20)
    other = train(replace(config, eval_data=str(tmp_path / "other"), eval_split="train"))
    assert other.history[-1]["eval_samples"] == 20


@pytest.mark.parametrize("field", ["eval_data", "streams"])
def test_data_with_other_classes_are_refused(config, tmp_path, field):
    for name, classes in (("one", ["red", "green", "blue"]), ("other", ["blue", "green", "red"])):
        publish_squares(tmp_path / name, train=20, metadata={"classes": classes})
    other = str(tmp_path / "other")
    value = other if field == "eval_data" else ({}, {"remote": other})
    with pytest.raises(SchemaError, match=f"of {other} has the 3 classes blue, green, red: .*need the same classes"):
        train(replace(config, data=str(tmp_path / "one"), **{field: value}))


@pytest.mark.parametrize("changes", [{"keep": "best"}, {"patience": 1}, {"eval_every": 5}])
def test_what_needs_an_evaluation_is_refused_without_one(config, changes):
    with pytest.raises(SchemaError, match=f"`{next(iter(changes))}` .*give `eval_split`"):
        replace(config, eval_split=None, **changes)


def test_a_compiled_model_has_the_weights_of_one_that_is_not(config, tmp_path):
    compiled = replace(config, run_dir=str(tmp_path / "compiled"), compile="eager")
    train(compiled)
    train(config)
    assert same(weights(compiled), weights(config))
