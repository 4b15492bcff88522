"""States of training survive a checkpoint as they are, without a pickle."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import CheckpointError
from smalti.torch.train.run.files import pack_state, unpack_state

pytestmark = pytest.mark.torch

KEYS = st.one_of(st.text(max_size=3), st.integers())
STATES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.floats(allow_nan=False), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3).filter(lambda each: len({str(key) for key in each}) == len(each)),
    ),
    max_leaves=8,
)


@given(state=STATES)
def test_plain_values_come_back_with_their_types(state):
    tensors, packed = pack_state(state)
    assert tensors == {}
    assert repr(unpack_state({}, packed)) == repr(state)


def test_the_state_of_an_optimiser_comes_back_and_loads():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tensors, packed = pack_state({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "nan": math.nan})
    back = unpack_state(tensors, packed)
    other = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters(), lr=0.5)
    other.load_state_dict(back["optimizer"])
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    found, expected = other.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(found[number][name], expected[number][name]) for number in expected for name in expected[0])
    assert torch.equal(back["model"]["weight"], model.weight)
    assert math.isnan(back["nan"])


def test_images_in_channels_last_keep_their_memory_layout():
    image = torch.arange(24.0).reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    tensors, packed = pack_state([image])
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}  # as a safetensors file holds it
    (back,) = unpack_state(stored, packed)
    assert torch.equal(back, image)
    assert back.stride() == image.stride()


def test_a_counter_stays_one():
    """The milestones of MultiStepLR, which are counted off with `elements`."""
    _, packed = pack_state({"milestones": Counter([3, 6, 6])})
    back = unpack_state({}, json.loads(json.dumps(packed)))["milestones"]
    assert sorted(back.elements()) == [3, 6, 6]


def test_arrays_come_back_as_arrays():
    tensors, packed = pack_state({"order": np.array([3, 1, 2])})
    assert unpack_state(tensors, packed)["order"].tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": torch.nn.Linear(1, 1)}, r"state\.model is a Linear, .* `state_dict\(\)`"),
        ({"sizes": [1, {2}]}, r"state\.sizes\.1 is a set"),
        ({(1, 2): 3}, "state has a key of type tuple"),
        ({1: "a", "1": "b"}, r"keys with one name, .* \['1', '1'\]"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_named(state, message):
    with pytest.raises(CheckpointError, match=message):
        pack_state(state)


def test_a_state_whose_tensors_are_missing_is_an_error():
    _, packed = pack_state({"weight": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"not complete: KeyError: 'state\.weight'"):
        unpack_state({}, packed)


def test_two_places_whose_dotted_names_are_equal_keep_their_tensors():
    state = {"model": {"ema.w": torch.ones(2)}, "model.ema": {"w": torch.zeros(2)}}
    tensors, packed = pack_state(state)
    assert sorted(tensors) == ["state.model.ema.w", "state.model.ema.w#2"]
    again = unpack_state(tensors, packed)
    assert again["model"]["ema.w"].tolist() == [1, 1]
    assert again["model.ema"]["w"].tolist() == [0, 0]
