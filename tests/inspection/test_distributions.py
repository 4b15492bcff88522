"""Accumulated statistics equal those of all values at once."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from smalti.inspection.distributions import DistinctOf, DistributionOf, hash_numbers

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200)


@given(NUMBERS, st.integers(1, 50))
def test_range_mean_and_quantiles_equal_those_of_arrow(values, step):
    accumulated = DistributionOf()
    for begin in range(0, len(values), step):
        accumulated.add(np.array(values[begin : begin + step]))
    found, column = accumulated.result(), pa.array(values)
    assert (found.min, found.max, found.count) == (pc.min(column).as_py(), pc.max(column).as_py(), len(values))
    assert math.isclose(found.mean, pc.mean(column).as_py(), rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(found.std, pc.stddev(column).as_py(), rel_tol=1e-6, abs_tol=1e-3)
    nearest = {pc.quantile(column, 0.5, interpolation=how)[0].as_py() for how in ("lower", "higher", "nearest")}
    assert found.quantiles["0.5"] in nearest
    assert sum(found.histogram.counts) == len(values)


@given(st.lists(st.integers(0, 50), max_size=300), st.integers(1, 60))
def test_distinct_values_and_repeats_are_counted(values, step):
    accumulated = DistinctOf(examples=3)
    rows = np.arange(len(values))
    for begin in range(0, len(values), step):
        own = np.array(values[begin : begin + step], np.int64)
        accumulated.add(hash_numbers(own), rows[begin : begin + step])
    assert accumulated.is_exact
    assert accumulated.distinct == len(set(values))
    assert accumulated.repeats == len(values) - len(set(values))
    assert all(first < row and values[first] == values[row] for first, row in accumulated.examples)


def test_estimates_of_many_distinct_values_are_near_and_their_memory_is_bounded():
    accumulated = DistinctOf(keep=4096)
    values = np.arange(200_000).repeat(2)
    np.random.default_rng(0).shuffle(values)
    for begin in range(0, len(values), 10_000):
        accumulated.add(hash_numbers(values[begin : begin + 10_000]), np.arange(begin, begin + 10_000))
    assert not accumulated.is_exact
    assert len(accumulated._hashes) <= 4096
    assert abs(accumulated.distinct - 200_000) < 12_000
    assert abs(accumulated.repeats - 200_000) < 12_000


def test_quantiles_beyond_the_kept_values_are_of_a_uniform_sample():
    accumulated = DistributionOf(keep=2000)
    for begin in range(0, 100_000, 5000):
        accumulated.add(np.arange(begin, begin + 5000))
    found = accumulated.result()
    assert (found.min, found.max, found.mean, found.sampled) == (0, 99_999, 49_999.5, 2000)
    assert abs(found.quantiles["0.5"] - 50_000) < 5000
    assert abs(found.quantiles["0.95"] - 95_000) < 2500


def test_large_whole_numbers_and_times_keep_their_exact_range():
    accumulated = DistributionOf()
    accumulated.add(np.array([2**63 + 5, 7], np.uint64))
    assert (accumulated.result().min, accumulated.result().max) == (7, 2**63 + 5)
    times = DistributionOf()
    times.add(np.array(["2024-01-01", "2024-01-03", "NaT"], "M8[D]"))
    found = times.result()
    assert (found.min, found.max, found.mean, found.count) == ("2024-01-01", "2024-01-03", "2024-01-02", 2)


def test_numbers_that_are_not_finite_are_counted_apart():
    accumulated = DistributionOf()
    accumulated.add(np.array([1.0, np.nan, np.inf, 3.0], np.float32))
    found = accumulated.result()
    assert (found.count, found.not_finite, found.min, found.max, found.mean) == (2, 2, 1.0, 3.0, 2.0)
