"""A coverage is a set of positions, in whatever order and number they are added."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import FormatError
from smalti.ledger.checking import Coverage

BLOCK = 1 << 20


def test_positions_that_were_present_are_returned_once():
    coverage = Coverage()
    assert coverage.add(np.array([4, 2, 4, BLOCK + 1])).tolist() == [4]
    assert coverage.add(np.array([2, 3, BLOCK + 1, BLOCK])).tolist() == [2, BLOCK + 1]
    assert coverage.add(np.array([], dtype=np.int64)).tolist() == []
    assert coverage.count == 5


def test_gaps_are_merged_across_blocks_and_absent_blocks():
    coverage = Coverage()
    coverage.add(np.array([0, 1, 3, 3 * BLOCK - 1]))
    missing, spans = coverage.gaps(0, 3 * BLOCK + 2, 10)
    assert spans == [(2, 3), (4, 3 * BLOCK - 1), (3 * BLOCK, 3 * BLOCK + 2)]
    assert missing == 1 + 3 * BLOCK - 5 + 2


def test_listed_gaps_are_bounded_and_all_are_counted():
    coverage = Coverage()
    coverage.add(np.arange(0, 2 * BLOCK, 2))
    assert coverage.gaps(0, 2 * BLOCK, 3) == (BLOCK, [(1, 2), (3, 4), (5, 6)])
    assert coverage.gaps(5, 8, 3) == (2, [(5, 6), (7, 8)])


def test_scattered_positions_are_refused():
    with pytest.raises(FormatError, match="scattered"):
        Coverage().add(np.arange(300, dtype=np.int64) * BLOCK)


@given(st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=6), st.integers(0, 60), st.integers(0, 70))
def test_it_agrees_with_a_set(batches, begin, end):
    coverage, known = Coverage(), set()
    for batch in batches:
        again = coverage.add(np.array(batch, dtype=np.int64)).tolist()
        assert again == sorted({p for p in batch if p in known or batch.count(p) > 1})
        known |= set(batch)
    missing, spans = coverage.gaps(begin, max(begin, end), 100)
    assert [p for start, stop in spans for p in range(start, stop)] == sorted(set(range(begin, end)) - known)
    assert missing == len(set(range(begin, end)) - known)
    assert coverage.count == len(known)


@given(st.lists(st.integers(0, 60), max_size=20), st.lists(st.integers(0, 60), min_size=4, max_size=4))
def test_spans_are_positions_too(positions, cuts):
    a, b, c, d = sorted(cuts)
    coverage, known = Coverage(), set(positions)
    coverage.add(np.array(positions, dtype=np.int64))
    for begin, end in ((c, d), (a, b)):
        assert coverage.add_span(begin, end) == len(known & set(range(begin, end)))
        known |= set(range(begin, end))
    missing, spans = coverage.gaps(0, 70, 100)
    assert [p for start, stop in spans for p in range(start, stop)] == sorted(set(range(70)) - known)
    assert (missing, coverage.count) == (70 - len(known), len(known))
