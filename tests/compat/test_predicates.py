"""Predicates on DataFrames; the split by hash takes the same values as Petastorm's."""

import pandas as pd
import pytest

from smalti.compat.petastorm import in_intersection, in_lambda, in_negate, in_pseudorandom_split, in_reduce, in_set

FRAME = pd.DataFrame({"n": [1, 2, 3, 4], "s": ["a", "b", "c", "d"], "l": [[1], [1, 2], [], [3]]}, index=[5, 6, 7, 8])


def said(predicate):
    return list(predicate.do_include(FRAME[sorted(predicate.get_fields())]))


def test_each_predicate_says_yes_or_no_for_each_row():
    assert said(in_set([2, 4], "n")) == [False, True, False, True]
    assert said(in_intersection([2, 3], "l")) == [False, True, False, True]
    assert said(in_lambda(["n"], lambda n: n > 2)) == [False, False, True, True]
    assert said(in_lambda(["n", "s"], lambda n, s, least: (n > least) & (s != "d"), 2)) == [False, False, True, False]
    assert said(in_negate(in_set(["a"], "s"))) == [False, True, True, True]
    assert said(in_reduce([in_set([1, 2], "n"), in_set(["b", "c"], "s")], all)) == [False, True, False, False]
    assert said(in_reduce([in_set([1, 2], "n"), in_set(["b", "c"], "s")], any)) == [True, True, True, False]


def test_a_split_by_hash_puts_each_value_into_one_part():
    parts = [said(in_pseudorandom_split([0.5, 0.25, 0.25], part, "s")) for part in range(3)]
    assert [sum(row) for row in zip(*parts, strict=True)] == [1, 1, 1, 1]


def test_a_split_by_hash_is_petastorms():
    """The md5 of "a", "b", "c", "d" lies at 0.59, 0.76, 0.33, 0.45 of the range, as Petastorm 0.13.1 has it."""
    first, second = (said(in_pseudorandom_split([0.5, 0.5], part, "s")) for part in range(2))
    assert first == [False, False, True, True]
    assert second == [True, True, False, False]


def test_predicates_refuse_what_they_cannot_use():
    with pytest.raises(TypeError, match="list of columns"):
        in_lambda("n", lambda n: n)
    with pytest.raises(ValueError, match="expected one of 2 parts"):
        in_pseudorandom_split([0.5, 0.5], 2, "n")
