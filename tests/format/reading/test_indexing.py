"""Indexing samples by number, slice, list and array."""

import numpy as np
import pytest

from smalti.format.reading.batch import pick


def get(at, size=10):
    return pick(at, size, lambda number: f"#{number}", "the set")


@pytest.mark.parametrize(
    ("at", "wanted"),
    [
        (0, "#0"), (9, "#9"), (-1, "#9"), (-10, "#0"), (np.int64(-2), "#8"), (np.uint8(3), "#3"),
        (slice(2, 5), ["#2", "#3", "#4"]), (slice(None, None, -4), ["#9", "#5", "#1"]), (slice(-2, 99), ["#8", "#9"]),
        (slice(20, 30), []), ([], []), ([1, -1], ["#1", "#9"]), ([[1], [2, [3]]], [["#1"], ["#2", ["#3"]]]),
        (np.array([4, -1]), ["#4", "#9"]), (np.array([[1, 2]]), [["#1", "#2"]]), (np.array([]), []),
        ([slice(0, 2), 5], [["#0", "#1"], "#5"]),
    ],
)  # fmt: skip
def test_result_has_the_form_of_the_index(at, wanted):
    assert get(at) == wanted


@pytest.mark.parametrize("at", [10, -11, [0, 10], np.array([-11]), 10**30])
def test_numbers_out_of_range_are_index_errors(at):
    with pytest.raises(IndexError, match="it has samples 0 to 9"):
        get(at)
    with pytest.raises(IndexError, match="no samples"):
        get(0, size=0)


@pytest.mark.parametrize(
    "at", ["0", 1.0, None, True, (1, 2), np.array([True]), np.array([0.5]), [None], np.array(["a"])]
)
def test_other_types_are_value_errors_as_with_mosaicml(at):
    with pytest.raises(ValueError, match="the set takes an integer, a slice"):
        get(at)
