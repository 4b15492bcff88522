"""TrainConfig and TrainResult survive JSON, refuse invalid values, and show no secrets."""

import dataclasses
import json
import math
import pickle

import numpy as np
import pytest

from smalti.errors import SchemaError, SmaltiError, WorldMismatch
from smalti.torch.train import TrainConfig, TrainResult
from smalti.torch.train.config import IMAGES, TASKS

pytestmark = pytest.mark.torch

FULL = TrainConfig(
    data="s3://b/set",
    run_dir="/runs/1",
    version=3,
    digest="ab" * 32,
    task_options={"num_classes": 2, "class_names": ["daisy", "rose"]},
    epochs=4,
    batch_size=24,
    launcher="processes",
    num_processes=2,
    log_samples=True,
    storage_options={"key": "AKIA", "secret": "canary-7531"},
)


def test_a_configuration_survives_json():
    assert TrainConfig.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL


def test_a_configuration_survives_pickle():
    assert pickle.loads(pickle.dumps(FULL)) == FULL


def test_secrets_are_neither_in_the_public_form_nor_in_the_repr():
    assert "canary-7531" not in json.dumps(FULL.public_json())
    assert "canary-7531" not in repr(FULL)
    assert "'key', 'secret'" in repr(FULL)


def test_unknown_and_missing_fields_are_named():
    with pytest.raises(SchemaError, match=r"unknown fields \['colour'\], missing fields \['run_dir'\]"):
        TrainConfig.from_json({"data": "x", "colour": 1})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("epochs", 0, "at least 1"),
        ("batch_size", -1, "at least 1"),
        ("learning_rate", 0.0, "above 0"),
        ("learning_rate", float("nan"), "a number, not nan"),
        ("warmup", 1.0, "below 1, not 1.0"),
        ("weight_decay", -0.1, "0 or more"),
        ("num_workers", -1, "0 or more"),
        ("launcher", "slurm", "one of inline, processes"),
        ("device", "tpu", "one of auto"),
        ("affinity", 1.5, "at most 1, not 1.5"),
        ("affinity", "0.5", "a number or None, not '0.5'"),
        ("affinity", True, "a number or None, not True"),
        ("epochs", "5", "a whole number, not '5'"),
        ("epochs", 2.5, "a whole number, not 2.5"),
        ("learning_rate", None, "a number, not None"),
        ("data", None, "text, not None"),
        ("cache_limit", 0.5, "a whole number or text or None, not 0.5"),
        ("affinity", float("nan"), "a number or None, not nan"),
        ("num_processes", 2, "1 with launcher='inline'"),
    ],
)
def test_an_invalid_value_is_refused_by_name(field, value, words):
    with pytest.raises(SchemaError, match=f"`{field}` must be {words}"):
        TrainConfig(**{"data": "x", "run_dir": "y", field: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_classes": 3, "class_names": ["a", "b"]}, "`class_names` must be 3 names"),
        ({"augment": 1}, "`augment` must be True or False, not 1"),
        ({"image_size": 0}, "`image_size` must be at least 1, not 0"),
        ({"vocabulary": 7}, r"unknown fields \['vocabulary'\]"),
    ],
)
def test_an_option_of_a_shipped_task_is_checked_before_anything_starts(options, words):
    with pytest.raises(SchemaError, match=f"`task_options` of the task 'image-classification': .*{words}"):
        TrainConfig(data="x", run_dir="y", task_options=options)


@pytest.mark.parametrize("name", TASKS[IMAGES].option_defaults())
def test_a_former_field_that_became_an_option_of_a_task_is_an_error_that_names_the_new_place(name):
    place = rf"`{name}` is an option of the task 'image-classification': it belongs in `task_options`"
    with pytest.raises(SchemaError, match=rf"unknown fields \['{name}'\].*{place}"):
        TrainConfig(**{"data": "x", "run_dir": "y", name: 1})
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'.*{place}"):
        getattr(FULL, name)


FLAT = {
    "image_column": "photo", "label_column": "kind", "num_classes": 2, "class_names": ["a", "b"], "image_size": 32,
    "width": 1.0, "label_smoothing": 0.0, "augment": False,
}  # fmt: skip
"""The options of image classification as earlier versions stored them: fields of every configuration."""


def test_a_configuration_that_an_earlier_version_stored_is_read():
    stored = {"data": "x", "run_dir": "y", "task_options": {}, **FLAT}
    assert dict(TrainConfig.from_json(stored).task_options) == FLAT
    own = TrainConfig.from_json({**stored, "task": "mine:Task", "task_options": {"depth": 2}})
    assert dict(own.task_options) == {"depth": 2}


def test_the_batch_is_divided_over_the_ranks():
    config = TrainConfig(data="x", run_dir="y", batch_size=12)
    assert [config.batch_per_rank(ranks) for ranks in (1, 2, 3, 4, 6, 12)] == [12, 6, 4, 3, 2, 1]


def test_a_batch_that_does_not_divide_names_the_numbers_of_ranks_that_work():
    config = TrainConfig(data="x", run_dir="y", batch_size=12)
    with pytest.raises(WorldMismatch, match="12 cannot be divided over 5 ranks: it works with 1, 2, 3, 4, 6 or 12"):
        config.batch_per_rank(5)


def test_micro_batches_must_fit_too():
    config = TrainConfig(data="x", run_dir="y", batch_size=12, micro_batches=3)
    assert config.batch_per_rank(2) == 6
    with pytest.raises(WorldMismatch, match="with 3 micro-batches each: it works with 1, 2 or 4 ranks"):
        config.batch_per_rank(3)


def test_a_result_survives_json():
    result = TrainResult(
        accuracy=0.5,
        loss=1.0,
        epochs=1,
        steps=7,
        history=({"epoch": 0, "loss": 1.0},),
        model_dir="/m",
        checkpoint="/c",
        images_per_second=10.0,
        seconds=2.0,
        resumed_from=None,
    )
    assert TrainResult.from_json(json.loads(json.dumps(result.to_json()))) == result


class Unprintable:
    def __repr__(self):
        raise ValueError("no text")


HOSTILE = [
    10**30, -(10**30), -1, math.nan, math.inf, -math.inf, 10**400, "", "a\0b", "\ud800", "x" * 20_000, "http://[", b"x",
    None, True, [1], ["\ud800"], [None], (math.nan,), {1: 2}, {"a": Unprintable()}, {"a": math.nan}, {"a": [set()]},
    Unprintable(), 1j, {"s": "hunter2"}, ["hunter2"],
]  # fmt: skip


def made(name, value):
    """Return a configuration, or the error of making it."""
    try:
        config = TrainConfig(**{"data": "x", "run_dir": "y", "launcher": "processes", name: value})
        config.check_ranks(1)
    except SmaltiError as error:
        return str(error)
    return config


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrainConfig)])
def test_a_hostile_value_of_any_field_is_refused_by_name_or_can_be_used(name):
    """A configuration that is accepted can be sent to other processes, and shown."""
    outcomes = [made(name, value) for value in HOSTILE]
    errors = [each for each in outcomes if isinstance(each, str)]
    assert [each for each in errors if f"`{name}`" not in each or len(each) > 1_000] == []
    assert "storage" not in name or not any("hunter2" in each for each in errors)
    for config in outcomes:
        if isinstance(config, TrainConfig):
            sent = json.loads(json.dumps(config.to_json(), allow_nan=False).encode())
            assert TrainConfig.from_json(sent) == config
            assert name in repr(config)


def test_numbers_of_numpy_are_taken_as_those_of_python():
    config = TrainConfig(
        data="x", run_dir="y", epochs=np.int64(3), warmup=np.float32(0.5), milestones=[np.float64(0.5)]
    )
    assert [type(each) for each in (config.epochs, config.warmup, config.milestones[0])] == [int, float, float]


def test_the_ranks_that_a_large_batch_fits_are_found_at_once():
    config = TrainConfig(data="x", run_dir="y", batch_size=16_777_213)  # a prime
    with pytest.raises(WorldMismatch, match="it works with 1 or 16777213 ranks"):
        config.check_ranks(2)
