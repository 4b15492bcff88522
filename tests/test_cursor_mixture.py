"""Mixtures in a cursor: their state, and the mixtures that may follow them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.cursor import Cursor, MixedStream, Mixture, Weights
from smalti.errors import CursorError
from tests.test_cursor import cursor, json_values

TWO = Mixture(
    streams=(MixedStream("aa", None, 40), MixedStream("bb", "train", 25)),
    sampling_method="balanced",
    sampling_granularity=4,
    batching_method="stratified",
    global_batch=16,
    local_batch=8,
    history=(
        Weights(0, 0, (("repeat", 1.5), None), None),
        Weights(1, 0, (("proportion", 0.7), ("proportion", 0.3)), 100),
        Weights(2, 30, (("proportion", 1), ("proportion", 0)), 100),
    ),
)
MIXED = cursor(mixture=TWO, split=None)


def test_a_cursor_with_a_mixture_survives_json():
    assert Cursor.from_state(json.loads(json.dumps(MIXED.to_state()))) == MIXED


def test_a_state_with_a_mixture_is_version_2_and_one_without_is_still_1():
    assert MIXED.to_state()["smalti"]["cursor_version"] == 2
    assert cursor().to_state()["smalti"]["cursor_version"] == 1
    assert "mixture" not in cursor().to_state()["smalti"]


def test_a_state_lists_each_stream_and_each_change():
    told = MIXED.to_state()["smalti"]["mixture"]
    assert told["streams"] == [
        {"digest": "aa", "split": None, "samples": 40},
        {"digest": "bb", "split": "train", "samples": 25},
    ]
    assert told["history"] == [
        {"epoch": 0, "samples": 0, "weights": [{"repeat": 1.5}, None], "epoch_size": None},
        {"epoch": 1, "samples": 0, "weights": [{"proportion": 0.7}, {"proportion": 0.3}], "epoch_size": 100},
        {"epoch": 2, "samples": 30, "weights": [{"proportion": 1}, {"proportion": 0}], "epoch_size": 100},
    ]
    assert TWO.weights.samples == 30


def weights_at(epoch, samples, *values):
    return Weights(epoch, samples, tuple(("proportion", value) for value in values or (1, 1)), 100)


@pytest.mark.parametrize(
    ("place", "places"),
    [
        ((2, 31), [(0, 0), (1, 0), (2, 30), (2, 31)]),
        ((2, 30), [(0, 0), (1, 0), (2, 30)]),
        ((1, 99), [(0, 0), (1, 0), (1, 99)]),
        ((1, 0), [(0, 0), (1, 0)]),
        ((0, 0), [(0, 0)]),
    ],
)
def test_a_change_is_recorded_and_later_changes_are_dropped(place, places):
    changed = TWO.changed(weights_at(*place, 3, 4))
    assert [(each.epoch, each.samples) for each in changed.history] == places
    assert changed.weights.values == (("proportion", 3), ("proportion", 4))
    assert changed.streams == TWO.streams


def test_a_mixture_may_be_followed_by_itself_or_by_a_change_of_weights_at_that_place():
    assert TWO.is_followed_by(TWO, 2, 40)
    assert TWO.is_followed_by(TWO.changed(weights_at(2, 40)), 2, 40)
    assert TWO.is_followed_by(TWO.changed(weights_at(2, 30)), 2, 30)


@pytest.mark.parametrize(
    "other",
    [
        TWO.changed(weights_at(2, 39)),
        TWO.changed(weights_at(1, 5)),
        replace(TWO, sampling_method="fixed"),
        replace(TWO, global_batch=32),
        replace(TWO, streams=TWO.streams[::-1]),
        replace(TWO, version=2),
        replace(TWO, history=TWO.history[1:]),
    ],
    ids=["changed before", "changed long before", "sampling", "batch", "streams", "version", "a history cut short"],
)
def test_a_mixture_may_not_be_followed_by_another(other):
    assert not TWO.is_followed_by(other, 2, 40)


def damaged(**changes):
    state = json.loads(json.dumps(MIXED.to_state()))
    state["smalti"]["mixture"] |= changes
    return state


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"streams": []}, "streams"),
        ({"streams": "ab"}, "streams"),
        ({"streams": [{"digest": "aa", "split": 1, "samples": 40}] * 2}, "split"),
        ({"streams": [{"digest": "aa", "split": None}] * 2}, "samples"),
        ({"streams": [{"digest": "aa", "split": None, "samples": 4.0}] * 2}, "samples"),
        ({"sampling_method": 1}, "sampling_method"),
        ({"sampling_granularity": True}, "sampling_granularity"),
        ({"batching_method": None}, "batching_method"),
        ({"global_batch": None}, "global_batch"),
        ({"global_batch": -1}, "global_batch"),
        ({"local_batch": "8"}, "local_batch"),
        ({"version": 0}, "version"),
        ({"history": None}, "history"),
        ({"history": {}}, "history"),
        ({"history": [3]}, "history"),
    ],
    ids=str,
)
def test_an_invalid_field_of_a_mixture_is_named(changes, key):
    with pytest.raises(CursorError, match=f"'{key}'"):
        Cursor.from_state(damaged(**changes))


@pytest.mark.parametrize(
    "weight",
    [
        {},
        7,
        "repeat",
        [],
        {"repeat": -1},
        {"repeat": float("nan")},
        {"repeat": float("inf")},
        {"repeat": 1e19},
        {"repeat": True},
        {"repeat": "1"},
        {"repeat": None},
        {"choose": 1.0},
        {"choose": -3},
        {"choose": 10**19},
        {"unknown": 1},
        {"repeat": 1, "choose": 1},
        {3: 1},
    ],
    ids=str,
)
def test_an_invalid_weight_is_shown(weight):
    history = [{"epoch": 0, "samples": 0, "weights": [weight, None], "epoch_size": None}]
    with pytest.raises(CursorError, match="a weight in 'history' is"):
        Cursor.from_state(damaged(history=history))


PLACES = [[(0, 1)], [(1, 0)], [(0, 0), (0, 0)], [(0, 0), (2, 5), (2, 4)], [(0, 0), (2, 5), (1, 9)]]


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_changes_that_are_out_of_order_are_refused(places):
    history = [weights_at(*place).to_state() for place in places]
    with pytest.raises(CursorError, match="not in order from epoch 0, sample 0 on"):
        Cursor.from_state(damaged(history=history))


def test_a_history_of_a_million_changes_is_refused_by_its_length_without_being_read():
    class Endless(list):
        """A list that claims to be long, and must be refused without being iterated over."""

        def __len__(self):
            return 10**6

        def __iter__(self):
            raise AssertionError("it was read")

    with pytest.raises(CursorError, match=r"'history' is .*, expected a list of 1 to 65536 entries"):
        Cursor.from_state(damaged(history=Endless()))


@pytest.mark.slow
def test_the_largest_allowed_history_is_read():
    history = [weights_at(epoch, 0).to_state() for epoch in range(1 << 16)]
    state = damaged(history=history) | {"epoch": 1 << 17}
    assert len(Cursor.from_state(state).mixture.history) == 1 << 16


@given(st.data())
def test_a_hostile_mixture_is_a_cursor_or_a_cursor_error(data):
    state = damaged()
    mixture = state["smalti"]["mixture"]
    where = data.draw(
        st.sampled_from([mixture, mixture["streams"][0], mixture["history"][1], mixture["history"][1]["weights"][0]])
    )
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(json_values)
    try:
        found = Cursor.from_state(state)
    except CursorError:
        return
    assert Cursor.from_state(json.loads(json.dumps(found.to_state()))) == found


def test_more_changes_than_a_state_can_hold_are_refused():
    weights = [Weights(0, place, (("proportion", 1.0), ("proportion", 2.0)), 1 << 20) for place in range((1 << 16) + 1)]
    full = replace(TWO, history=tuple(weights[:-1]))
    assert full.changed(weights[-2]) == full
    with pytest.raises(CursorError, match="weights may hold from 65536 places of a run"):
        full.changed(weights[-1])
