"""Saved cursors."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.cursor import Cursor
from smalti.errors import CursorError


def cursor(**changes):
    values = {
        "epoch": 2,
        "samples": 30,
        "seed": 9,
        "canonical_nodes": 64,
        "initial_hosts": 1,
        "digest": "abc",
        "split": "train",
        "epoch_size": 100,
        "shuffle": True,
        "block_size": 4096,
    }
    return Cursor(**(values | changes))


def test_a_cursor_survives_json():
    assert Cursor.from_state(json.loads(json.dumps(cursor().to_state()))) == cursor()


def test_the_state_holds_mosaicmls_keys():
    state = cursor().to_state()
    assert {key: state[key] for key in state if key != "smalti"} == {
        "epoch": 2,
        "sample_in_epoch": 30,
        "num_canonical_nodes": 64,
        "shuffle_seed": 9,
        "initial_physical_nodes": 1,
    }


def test_an_affinity_is_saved_so_that_older_releases_refuse_the_state():
    """Version 3: releases that do not know the field would read in another order."""
    state = json.loads(json.dumps(cursor(affinity=0.8).to_state()))
    assert (state["smalti"]["cursor_version"], state["smalti"]["affinity"]) == (3, 0.8)
    assert Cursor.from_state(state) == cursor(affinity=0.8)


def test_a_state_without_an_affinity_keeps_all_shards_in_their_runs():
    state = cursor().to_state()
    assert "affinity" not in state["smalti"]
    assert Cursor.from_state(state).affinity == 1.0


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.8", True, float("nan")])
def test_an_invalid_affinity_in_a_state_is_named(value):
    state = cursor().to_state()
    state["smalti"]["affinity"] = value
    with pytest.raises(CursorError, match=r"'affinity' is .* expected a number from 0 to 1"):
        Cursor.from_state(state)


def test_at_an_epochs_end_the_cursor_is_the_next_epochs_start():
    assert cursor().advanced(70) == cursor(epoch=3, samples=0)


def test_a_state_saved_exactly_at_the_end_resumes_into_the_next_epoch():
    state = cursor().to_state() | {"sample_in_epoch": 100}
    assert Cursor.from_state(state) == cursor(epoch=3, samples=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("epoch", None),
        ("epoch", True),
        ("sample_in_epoch", -5),
        ("sample_in_epoch", 101),
        ("sample_in_epoch", 1.5),
        ("sample_in_epoch", "7"),
        ("num_canonical_nodes", 0),
        ("num_canonical_nodes", 1 << 40),
        ("shuffle_seed", 1 << 64),
    ],
)
def test_an_invalid_field_is_named(key, value):
    with pytest.raises(CursorError, match=key):
        Cursor.from_state(cursor().to_state() | {key: value})


def test_a_missing_field_is_named():
    state = cursor().to_state()
    del state["smalti"]["digest"]
    with pytest.raises(CursorError, match="'digest' is None, expected a text"):
        Cursor.from_state(state)


@pytest.mark.parametrize("state", [None, [1], "state"])
def test_a_state_that_is_no_mapping_is_refused(state):
    with pytest.raises(CursorError, match="expected a mapping"):
        Cursor.from_state(state)


def test_a_newer_cursor_version_asks_for_an_upgrade():
    state = cursor().to_state()
    state["smalti"]["cursor_version"] = 4
    with pytest.raises(CursorError, match="upgrade Smalti"):
        Cursor.from_state(state)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_a_hostile_state_is_a_cursor_or_a_cursor_error(data):
    state = cursor().to_state()
    where = data.draw(st.sampled_from([state, state["smalti"]]))
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(json_values)
    try:
        found = Cursor.from_state(state)
    except CursorError:
        return
    assert 0 <= found.samples < found.epoch_size
