"""The fewest bytes that an order of shards can cost."""

from functools import cache
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.cache import least_bytes

ONES = [1] * 8


@pytest.mark.parametrize(
    ("needed", "limit", "fetched"),
    [
        ([0, 1, 2, 0, 1, 2], 3, 3),
        ([0, 1, 2, 0, 1, 2], 2, 4),  # 0, 1, 2 for 1, 0 is here, 1 for 0, 2 is here
        ([0, 1, 2, 0, 1, 2], 1, 6),
        ([0, 0, 0, 1, 0], 1, 3),
        ([], 4, 0),
    ],
)
def test_least_bytes_of_small_orders_worked_out_by_hand(needed, limit, fetched):
    assert least_bytes(needed, ONES, ONES, limit) == fetched


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(1, 4))
def test_no_choice_of_evictions_costs_less(needed, limit):
    @cache
    def best(place: int, held: frozenset) -> int:
        if place == len(needed):
            return 0
        shard = needed[place]
        if shard in held:
            return best(place + 1, held)
        kept = min(len(held), limit - 1)
        return 1 + min(best(place + 1, frozenset(some) | {shard}) for some in combinations(sorted(held), kept))

    assert least_bytes(needed, ONES, ONES, limit) == best(0, frozenset())


def test_bytes_kept_and_bytes_fetched_may_differ():
    assert least_bytes([0, 1, 0], [100, 60], [7, 5], 160) == 12
    assert least_bytes([0, 1, 0], [100, 60], [7, 5], 159) == 19


def test_without_a_limit_each_shard_is_fetched_once():
    assert least_bytes([3, 1, 3, 1, 2], ONES, [10, 20, 30, 40], None) == 90
