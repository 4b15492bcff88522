"""The ends of shards: pure arithmetic, so shards of gigabytes need no memory in tests."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import SchemaError
from smalti.format.writing.builder import ShardCutter


def lengths(*values):
    return np.array(values, np.int64)


def test_shard_ends_before_the_sample_that_would_exceed_the_limit():
    # 100 bytes of header; each sample of 6 costs 10: five fit below 150, and exactly fill it.
    cutter = ShardCutter(100, 150)
    assert cutter.push(lengths(*[6] * 12)) == [5, 10]
    assert cutter.push(lengths(6, 6, 6, 6)) == [3]


def test_sample_larger_than_the_limit_stands_alone_and_no_shard_is_empty():
    cutter = ShardCutter(100, 150)
    assert cutter.push(lengths(1000)) == []
    assert cutter.push(lengths(1000, 6)) == [0, 1]
    assert cutter.push(lengths(1000)) == [0]


def test_without_limit_nothing_is_cut():
    assert ShardCutter(100, None).push(lengths(*[10**6] * 1000)) == []


def test_shard_over_four_gigabytes_is_refused_before_anything_is_written():
    cutter = ShardCutter(100, None)
    assert cutter.push(lengths(2**31, 2**30)) == []
    with pytest.raises(SchemaError, match="size_limit"):
        cutter.push(lengths(2**30))
    with pytest.raises(SchemaError, match="sample 7 of 4294967296 bytes"):
        ShardCutter(100, None).push(lengths(2**32), first_row=7)
    assert cutter.push(lengths(2**29)) == []


def test_sample_over_four_gigabytes_is_refused_with_its_row():
    for limit in (None, 1 << 26):
        with pytest.raises(SchemaError) as caught:
            ShardCutter(100, limit).push(lengths(5, 2**32 - 104, 5))
        assert caught.value.row == 1


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 200), st.data())
def test_cuts_do_not_depend_on_how_samples_arrive(values, limit, data):
    def cuts(pieces):
        cutter, first, found = ShardCutter(50, limit), 0, []
        for piece in pieces:
            found += [first + row for row in cutter.push(lengths(*piece))]
            first += len(piece)
        return found

    split = data.draw(st.integers(0, len(values)))
    one_by_one = cuts([[value] for value in values])
    assert cuts([values[:split], values[split:]]) == one_by_one
    # MosaicML's rule, sample by sample.
    size, count, expected = 50, 0, []
    for row, value in enumerate(values):
        if count and limit < size + value + 4:
            expected.append(row)
            size, count = 50, 0
        size, count = size + value + 4, count + 1
    assert one_by_one == expected
