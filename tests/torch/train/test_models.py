"""Models are built for the requested classes, with unsuitable defaults of their libraries corrected."""

import sys

import pytest
import torch
from torch import nn

from smalti.errors import SchemaError, TrainingError
from smalti.torch.train.config import IMAGES, TASKS, TrainConfig
from smalti.torch.train.tasks.images import build_model, logits_of
from smalti.torch.train.trainer.task import save_model

pytestmark = pytest.mark.torch


def config(**changed) -> TrainConfig:
    own = {name: changed.pop(name) for name in TASKS[IMAGES].option_defaults() if name in changed}
    options = {"num_classes": 3, "image_size": 32, **own}
    return TrainConfig(**{"data": "x", "run_dir": "y", "task_options": options, **changed})


def tiny(config: TrainConfig) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(config.task_options["num_classes"]))


def not_a_module(config: TrainConfig) -> int:
    return 5


@pytest.fixture
def here(monkeypatch):
    """This file under a name that `module:function` can import."""
    monkeypatch.setitem(sys.modules, "models_of_mine", sys.modules[__name__])
    return "models_of_mine"


def test_mobilenet_classifies_into_the_requested_classes():
    model = build_model(config(class_names=("a", "b", "c"))).eval()
    assert logits_of(model(torch.rand(2, 3, 32, 32))).shape == (2, 3)
    assert model.config.id2label == {0: "a", 1: "b", 2: "c"}


def test_the_width_decides_the_size():
    count = {width: sum(p.numel() for p in build_model(config(width=width)).parameters()) for width in (0.35, 1.0)}
    # 0.35 is about 0.4 million parameters without a large head, 1.0 about 2.2 million.
    assert 380_000 < count[0.35] < 420_000
    assert 2_200_000 < count[1.0] < 2_300_000


def test_batch_normalisation_averages_over_batches():
    norms = [m for m in build_model(config()).modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 52
    assert {norm.momentum for norm in norms} == {0.1}


def test_dropout_keeps_most_features():
    assert [m.p for m in build_model(config()).modules() if isinstance(m, nn.Dropout)] == [0.2]


def test_a_function_of_a_module_makes_the_model(here):
    assert build_model(config(model=f"{here}:tiny"))(torch.rand(2, 3, 4, 4)).shape == (2, 3)


@pytest.mark.parametrize(
    "name", ["resnet5000", "no_such_module:f", "smalti:no_such_function", "models_of_mine:not_a_module"]
)
def test_a_name_that_leads_to_no_model_is_refused(name, here):
    with pytest.raises(SchemaError, match=name.split(":", maxsplit=1)[0]):
        build_model(config(model=name))


def test_saved_weights_start_another_run_with_other_classes(tmp_path):
    first = build_model(config())
    save_model(first, config(), tmp_path / "model")
    second = build_model(config(num_classes=7, weights=str(tmp_path / "model")))
    stem = "mobilenet_v2.conv_stem.first_conv.convolution.weight"
    assert torch.equal(first.state_dict()[stem], second.state_dict()[stem])
    assert second.classifier.out_features == 7


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(TrainingError, match="cannot be loaded"):
        build_model(config(weights=str(tmp_path / "nothing")))


def test_a_plain_module_is_saved_without_pickle(tmp_path, here):
    model = build_model(config(model=f"{here}:tiny"))
    model(torch.rand(2, 3, 4, 4))
    save_model(model, config(model=f"{here}:tiny", class_names=("a", "b", "c")), tmp_path / "model")
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors", "smalti.json"]


def test_an_output_without_scores_is_refused():
    with pytest.raises(TrainingError, match="returned dict"):
        logits_of({"scores": 1})
