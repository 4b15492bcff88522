"""Fields of `TrainConfig` that change when a run resumes take effect, are refused by name, or are said to have none.

A checkpoint overrides the configuration in three places only: the settings of the optimiser's groups, the state of a
scheduler, and the cursor. The trainer reads everything else from the configuration of each life.
"""

import dataclasses
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from smalti.dataset import OrderOptions
from smalti.errors import CursorError
from smalti.stream import Stream
from smalti.torch import StreamingDataset
from smalti.torch.train import TrainConfig
from smalti.torch.train.config import IMAGES, TASKS
from smalti.torch.train.trainer.state import (
    changed_settings,
    check_same_rate,
    check_same_run,
    restore_state,
    split_state,
)
from smalti.torch.train.trainer.step import make_optimizer
from smalti.torch.tuning.space import with_params
from tests.torch.train.conftest import publish_squares

pytestmark = pytest.mark.torch

OPTIONS = {"num_classes": 2, "class_names": ["a", "b"]}
BASE = {"data": "set", "run_dir": "run", "task_options": OPTIONS, "optimizer": "torch.optim:SGD"}
REFUSED = {
    "task": "mine:Task", "freeze": ("head",), "train_split": "other", "model": "resnet", "optimizer": "adamw",
    "seed": 18, "digest": "0" * 64, "task_options.image_column": "photo", "task_options.label_column": "kind",
    "task_options.num_classes": 3, "task_options.class_names": ["b", "a"], "task_options.image_size": 32,
    "task_options.width": 1.0,
}  # fmt: skip
BY_CURSOR = {"data", "version", "affinity", "streams", "batching"}
"""The cursor refuses other content; the same content at another address, or by another number, is the same."""
OF_GROUPS = {"weight_decay", "optimizer_options"}
BY_STEP = {
    "learning_rate", "schedule", "warmup", "milestones", "milestone_factor", "clip_norm", "micro_batches", "precision",
    "task_options.label_smoothing", "task_options.augment", "task_options.class_weights", "epochs", "max_steps",
    "batch_size", "eval_split", "eval_data", "eval_every", "patience", "keep",
}  # fmt: skip
"""Read from the configuration at each step or epoch. A task's own scheduler refuses another `learning_rate`."""
OF_THE_LIFE = {
    "run_dir", "keep_checkpoints", "keep_best", "log_samples", "launcher", "num_processes", "device", "timeout_seconds",
    "grace_seconds", "max_restarts", "min_processes", "progress", "tensorboard", "mlflow", "mlflow_experiment",
    "cache_dir", "cache_limit", "storage_options", "run_storage_options", "preflight", "num_workers",
    "checkpoint_every", "log_every", "channels_last", "compile",
}  # fmt: skip
"""About the processes of a life, not about what the model learns."""
WITHOUT_EFFECT = {"weights"}
"""docs/training.md says so: a resumed run has the weights of its checkpoint."""


def test_each_field_is_of_one_kind():
    kinds = [set(REFUSED), BY_CURSOR, OF_GROUPS, BY_STEP, OF_THE_LIFE, WITHOUT_EFFECT]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    fields = {field.name for field in dataclasses.fields(TrainConfig)} - {"task_options"}
    assert set.union(*kinds) == fields | {f"task_options.{name}" for name in TASKS[IMAGES].option_defaults()}


@pytest.mark.parametrize("name", REFUSED)
def test_another_value_is_refused_by_the_name_of_the_field(name):
    then = replace(TrainConfig(**BASE), digest=None)
    extra = {"task_options.class_names": ["a", "b", "c"]} if name == "task_options.num_classes" else {}
    now = with_params(then, {name: REFUSED[name], **extra})
    with pytest.raises(CursorError, match=f"`{name}`" if name != "digest" else "digest"):
        check_same_run(now, {"config": json.loads(json.dumps(then.public_json())), "digest": "1" * 64})


@pytest.mark.parametrize("name", ["num_classes", "class_names"])
def test_classes_may_be_left_out(name):
    then = TrainConfig(**BASE)
    empty = {**OPTIONS, name: type(OPTIONS[name])()}
    check_same_run(replace(then, task_options=empty), {"config": then.public_json(), "digest": "1" * 64})


@pytest.mark.parametrize("changed", [{"label_smoothing": 0.3}, {"augment": False}, {"class_weights": [1, 2]}])
def test_options_that_are_read_at_each_step_may_change(changed):
    then = TrainConfig(**BASE)
    now = replace(then, task_options={**OPTIONS, **changed})
    check_same_run(now, {"config": then.public_json(), "digest": "1" * 64}, TASKS[IMAGES].free_options)


def test_options_of_a_users_task_are_compared_also_those_that_are_left_out_unless_it_says_that_they_may_change():
    then = TrainConfig(**{**BASE, "task": "mine:Task", "task_options": {"augment": 1, "depth": 2}})
    state = {"config": then.public_json(), "digest": "1" * 64}
    check_same_run(then, state)
    for options in ({"depth": 2}, {"augment": 1, "depth": 2, "more": 3}):
        with pytest.raises(CursorError, match="`task_options"):
            check_same_run(replace(then, task_options=options), state)
    check_same_run(replace(then, task_options={"depth": 2}), state, ("augment",))


@pytest.mark.parametrize("name", ["affinity", "data", "version"])
def test_other_content_or_another_affinity_is_refused(name, squares, tmp_path):
    state = StreamingDataset(remote=str(squares), split="train", batch_size=8, shuffle=True).state_dict(8)
    other = str(tmp_path / "other")
    if name != "affinity":
        publish_squares(other, train=3)
    changed = {"affinity": {"remote": str(squares), "order": OrderOptions(affinity=0.5)}}.get(name, {"remote": other})
    with pytest.raises(CursorError, match="affinity" if name == "affinity" else "digest|data set|version"):
        StreamingDataset(split="train", batch_size=8, shuffle=True, **changed).load_state_dict(state)


@pytest.mark.parametrize("changed", [{"batching_method": "stratified"}, {"weights": (1, 3)}])
def test_another_mixture_is_refused(changed, squares):
    def mixture(weights=(1, 1), **order):
        streams = [Stream(remote=str(squares), split="train", proportion=weight) for weight in weights]
        return StreamingDataset(streams=streams, batch_size=8, shuffle=True, order=OrderOptions(**order))

    with pytest.raises(CursorError, match=r"batching|weights"):
        mixture(**changed).load_state_dict(mixture().state_dict(8))


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ({"weight_decay": 0.1}, {"weight_decay": 0.3}, {"weight_decay": [0.3, 0.0], "momentum": [0.7, 0.7]}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.0}, {"weight_decay": [0.0, 0.0]}),
        ({}, {"optimizer_options": {"momentum": 0.5}}, {"momentum": [0.5, 0.5]}),
        ({}, {"optimizer_options": {}}, {"momentum": [0, 0]}),
        ({}, {"optimizer_options": {"momentum": 0.7, "dampening": 0.2}}, {"dampening": [0.2, 0.2]}),
        ({}, {}, {"weight_decay": [0.05, 0.0], "momentum": [0.7, 0.7]}),
    ],
)
def test_settings_of_the_optimiser_take_effect(then, now, found):
    before = replace(TrainConfig(**BASE), **{"optimizer_options": {"momentum": 0.7}, **then})
    after = replace(before, **now)
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, before)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    tensors, rest = split_state(optimizer)
    rest, config = json.loads(json.dumps([rest, before.public_json()]))
    fresh = make_optimizer(model, after)
    restore_state(fresh, tensors, rest, changed_settings(after, config))
    assert {name: [group[name] for group in fresh.param_groups] for name in found} == found
    assert torch.equal(fresh.state[model.weight]["momentum_buffer"], momentum)


def test_settings_that_the_program_changes_while_it_trains_are_those_of_the_checkpoint():
    config = replace(TrainConfig(**BASE), optimizer_options={"momentum": 0.7})
    model = nn.Linear(3, 2)
    optimizer, fresh = make_optimizer(model, config), make_optimizer(model, config)
    optimizer.param_groups[0]["momentum"] = 0.9
    tensors, rest = split_state(optimizer)
    restore_state(fresh, tensors, rest, changed_settings(config, config.public_json()))
    assert [group["momentum"] for group in fresh.param_groups] == [0.9, 0.7]


def test_lists_of_settings_are_restored():
    config = TrainConfig(**{**BASE, "optimizer": "adamw", "optimizer_options": {"betas": [0.8, 0.9]}})
    model = nn.Linear(3, 2)
    tensors, rest = split_state(make_optimizer(model, config))
    fresh = make_optimizer(model, config)
    restore_state(fresh, tensors, json.loads(json.dumps(rest)))
    assert [tuple(group["betas"]) for group in fresh.param_groups] == [(0.8, 0.9)] * 2


def test_a_tasks_own_scheduler_refuses_another_learning_rate():
    config = TrainConfig(**BASE)
    check_same_rate(config, config.public_json())
    with pytest.raises(CursorError, match=r"`learning_rate` was 0\.004 and is 0\.1"):
        check_same_rate(replace(config, learning_rate=0.1), config.public_json())
