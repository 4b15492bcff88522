"""An optimiser restored from a checkpoint continues like an uninterrupted one."""

import copy
import json

import pytest
import torch
from torch import nn

from smalti.errors import CheckpointError
from smalti.torch.train.trainer.state import restore_state, split_state

pytestmark = pytest.mark.torch


def made(seed: int):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def steps(model, optimizer, count: int) -> None:
    for number in range(count):
        optimizer.zero_grad()
        model(torch.arange(20.0).reshape(5, 4).sin() + number).square().sum().backward()
        optimizer.step()


def test_a_restored_optimiser_takes_the_same_steps():
    model, optimizer = made(1)
    steps(model, optimizer, 3)
    tensors, rest = split_state(optimizer)
    weights, tensors, rest = copy.deepcopy((model.state_dict(), tensors, json.loads(json.dumps(rest))))
    steps(model, optimizer, 2)

    other, fresh = made(2)
    other.load_state_dict(weights)
    restore_state(fresh, tensors, rest)
    steps(other, fresh, 2)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_state_keeps_the_memory_layout_of_its_weights():
    """Fused AdamW treats weights and momenta as flat memory; different layouts would mix them up."""

    def conv():
        torch.manual_seed(3)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.arange(75.0).reshape(1, 3, 5, 5).sin()).square().sum().backward()
        optimizer.step()

    model, optimizer = conv()
    step(model, optimizer)
    tensors, rest = split_state(optimizer)
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    other, fresh = conv()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    restore_state(fresh, tensors, json.loads(json.dumps(rest)))
    step(model, optimizer)
    step(other, fresh)
    assert torch.equal(model.weight, other.weight)


def test_the_state_of_another_model_is_refused():
    model, optimizer = made(1)
    steps(model, optimizer, 1)
    tensors, rest = split_state(optimizer)
    other = torch.optim.AdamW(nn.Linear(4, 5).parameters())
    with pytest.raises(CheckpointError, match="does not fit"):
        restore_state(other, tensors, rest)


def test_states_of_fewer_dimensions_than_their_weights_are_restored():
    """Those of a weight of 3 rows and 4 columns, and flattened: transformers' Adafactor has the former."""
    weight = nn.Parameter(torch.zeros(3, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    tensors = {"0.rows": torch.tensor([1.0, 2.0, 3.0]), "0.columns": torch.ones(4), "0.flat": torch.arange(12.0)}
    _, rest = split_state(optimizer)
    restore_state(optimizer, tensors, rest)
    state = optimizer.state[weight]
    assert {name: tuple(value.shape) for name, value in state.items()} == {"rows": (3,), "columns": (4,), "flat": (12,)}
    assert state["rows"].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(CheckpointError, match=r"0\.wide has shape \(4, 3\), its parameter \(3, 4\)"):
        restore_state(optimizer, {"0.wide": torch.ones(4, 3)}, rest)


def test_adafactor_of_transformers_takes_the_same_steps_after_it_was_restored():
    from transformers.optimization import Adafactor

    def factored(model):
        return Adafactor(model.parameters(), lr=0.1, relative_step=False, scale_parameter=False)

    model, _ = made(1)
    optimizer = factored(model)
    steps(model, optimizer, 3)
    tensors, rest = copy.deepcopy(split_state(optimizer))
    other, _ = made(2)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    fresh = factored(other)
    restore_state(fresh, tensors, json.loads(json.dumps(rest)))
    for each in ((model, optimizer), (other, fresh)):
        steps(*each, 2)
    assert tensors["0.exp_avg_sq_row"].shape == (3,)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("rest", [{}, {"numbers": {}, "groups": 3}, {"numbers": [], "groups": []}])
def test_a_malformed_state_is_refused(rest):
    with pytest.raises(CheckpointError):
        restore_state(made(1)[1], {}, rest)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weight_decay", None),
        ("weight_decay", True),
        ("betas", [0.9]),
        ("betas", [0.9, "0.999"]),
        ("eps", "x"),
        ("amsgrad", True),
        ("differentiable", [[1]]),
        ("fused", False),
    ],
)
def test_settings_that_do_not_fit_the_optimiser_are_named(name, value):
    """Otherwise the first step would fail with an error of torch."""
    model, optimizer = made(1)
    steps(model, optimizer, 1)
    tensors, rest = split_state(optimizer)
    rest = json.loads(json.dumps(rest))
    if value is None:
        del rest["groups"][0][name]
    else:
        rest["groups"][0][name] = value
    with pytest.raises(CheckpointError, match=f"does not fit.*{name}"):
        restore_state(made(2)[1], tensors, rest)


def test_a_switch_that_a_later_torch_has_may_be_missing():
    model, optimizer = made(1)
    steps(model, optimizer, 1)
    tensors, rest = split_state(optimizer)
    del rest["groups"][0]["decoupled_weight_decay"]
    other, fresh = made(2)
    restore_state(fresh, tensors, rest)
    steps(other, fresh, 1)
