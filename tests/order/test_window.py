"""The global order of one epoch."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smalti.order import default_block_size, default_canonical_nodes, plan_epoch
from tests.order.reference import reference_order

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(lambda s: sum(s) > 0)


def test_golden_vector_of_version_2():
    """The vector written when version 2 was fixed; another order needs another version number."""
    plan = plan_epoch([5, 7, 4, 6], seed=9176, epoch=0, canonical_nodes=2, shuffle_block_size=8)
    assert plan.sample_ids(0, 22).tolist() == [
        4, 21, 1, 18, 12, 7, 5, 16, 0, 19, 3, 20, 2, 17, 6, 8, 15, 11, 13, 9, 14, 10,
    ]  # fmt: skip


def test_golden_vector_of_the_next_epoch():
    plan = plan_epoch([5, 7, 4, 6], seed=9176, epoch=1, canonical_nodes=2, shuffle_block_size=8)
    assert plan.sample_ids(0, 22).tolist() == [
        14, 8, 1, 17, 13, 7, 0, 21, 4, 16, 3, 20, 2, 18, 12, 19, 5, 9, 15, 10, 6, 11,
    ]  # fmt: skip


def test_blocks_of_one_sample_keep_the_rows_of_a_shard_together_and_in_order():
    """Vectors of version 2 from before such blocks were looked up without a permutation."""
    one = plan_epoch([2, 3, 4], seed=7, epoch=1, canonical_nodes=1, shuffle_block_size=1)
    assert one.sample_ids(0, 9).tolist() == [5, 6, 7, 8, 0, 1, 2, 3, 4]
    two = plan_epoch([2, 3, 4], seed=7, epoch=1, canonical_nodes=2, shuffle_block_size=1)
    assert two.sample_ids(0, 9).tolist() == [0, 5, 1, 6, 2, 7, 3, 8, 4]


@given(sizes, st.integers(0, 2**40), st.integers(0, 5), st.integers(1, 12), st.integers(1, 40))
def test_the_order_equals_the_reference_implementation(shard_sizes, seed, epoch, nodes, block):
    plan = plan_epoch(shard_sizes, seed=seed, epoch=epoch, canonical_nodes=nodes, shuffle_block_size=block)
    assert plan.sample_ids(0, len(plan)).tolist() == reference_order(shard_sizes, seed, epoch, nodes, block)


@given(sizes, st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 40))
def test_i1_an_epoch_is_a_permutation(shard_sizes, seed, nodes, block):
    plan = plan_epoch(shard_sizes, seed=seed, epoch=0, canonical_nodes=nodes, shuffle_block_size=block)
    assert sorted(plan.sample_ids(0, len(plan)).tolist()) == list(range(sum(shard_sizes)))


@given(sizes, st.integers(1, 12), st.integers(1, 40), st.data())
def test_any_span_equals_that_part_of_the_whole_order(shard_sizes, nodes, block, data):
    plan = plan_epoch(shard_sizes, seed=7, epoch=2, canonical_nodes=nodes, shuffle_block_size=block)
    begin = data.draw(st.integers(0, len(plan)))
    end = data.draw(st.integers(begin, len(plan)))
    fresh = plan_epoch(shard_sizes, seed=7, epoch=2, canonical_nodes=nodes, shuffle_block_size=block)
    assert fresh.sample_ids(begin, end).tolist() == plan.sample_ids(0, len(plan))[begin:end].tolist()


def test_the_first_lookup_of_a_few_positions_computes_no_whole_window_and_gives_the_same_samples():
    """A run that resumes waits for its first batch alone."""
    plan = plan_epoch([900] * 20, seed=3, epoch=1, canonical_nodes=2, shuffle_block_size=4096)
    first = plan.sample_ids(8000, 8400)  # the end of each run's first window, and the begin of its second
    assert len(plan._windows) == 0
    assert plan.sample_ids(8000, 8400).tolist() == first.tolist()
    assert len(plan._windows) == 4


def test_without_shuffle_the_order_is_the_stored_one():
    plan = plan_epoch([3, 0, 2], seed=1, epoch=4, canonical_nodes=8, shuffle=False)
    assert plan.sample_ids(0, 5).tolist() == [0, 1, 2, 3, 4]


def test_a_run_keeps_its_shards_in_every_epoch():
    """64 shards of 10 in 8 runs: every eighth position reads the same 8 shards, whatever the epoch."""
    first = plan_epoch([10] * 64, seed=3, epoch=0, canonical_nodes=8).sample_ids(0, 640)
    later = plan_epoch([10] * 64, seed=3, epoch=9, canonical_nodes=8).sample_ids(0, 640)
    for place in range(8):
        assert len(set(first[place::8] // 10)) == 8
        assert set(first[place::8] // 10) == set(later[place::8] // 10)
    assert first.tolist() != later.tolist()


def test_a_sorted_set_is_mixed_as_well_as_by_a_full_permutation():
    """5 classes of 100, stored one after the other in one shard, 64 runs. In a full permutation a class's
    runs are 1.25 long on average; with run c at place c, as in version 1, 12.5, and a batch of 20 held 2.5 classes."""
    ids = plan_epoch([500], seed=9176, epoch=0, canonical_nodes=64).sample_ids(0, 500)
    classes_per_batch = [len(set(batch // 100)) for batch in ids.reshape(25, 20)]
    assert min(classes_per_batch) >= 4
    label_runs = 1 + np.count_nonzero(np.diff(ids // 100))
    assert 500 / label_runs < 1.4


def test_a_set_below_8192_samples_is_one_run():
    assert default_canonical_nodes(8191) == 1


def test_a_set_of_a_quarter_million_has_64_runs():
    assert default_canonical_nodes(64 * 4096) == 64
    assert default_canonical_nodes(64 * 4096 - 1) == 32


def test_the_default_windows_hold_2_to_the_20_samples_together():
    assert default_block_size(64) == 16384
    assert default_block_size(1) == 1048576
    assert default_block_size(1024) == 4096


def test_ten_billion_samples_are_planned_without_touching_them():
    """10^6 shards of 10^4; the ids at 90 % of the epoch are valid and distinct."""
    plan = plan_epoch(np.full(10**6, 10**4), seed=1, epoch=0, canonical_nodes=64)
    assert len(plan) == 10**10
    ids = plan.sample_ids(9 * 10**9, 9 * 10**9 + 10**4)
    assert len(set(ids.tolist())) == 10**4
    assert 0 <= ids.min() <= ids.max() < 10**10


@pytest.mark.parametrize(
    ("argument", "value"), [("seed", -1), ("epoch", -1), ("canonical_nodes", 0), ("shuffle_block_size", 0)]
)
def test_an_argument_out_of_range_is_named(argument, value):
    arguments = {"seed": 0, "epoch": 0, "canonical_nodes": 1, "shuffle_block_size": 4} | {argument: value}
    with pytest.raises(ValueError, match=f"`{argument}` must lie in"):
        plan_epoch([4], **arguments)


def test_zero_canonical_nodes_are_refused_without_a_block_size_too():
    with pytest.raises(ValueError, match="`canonical_nodes` must lie in"):
        plan_epoch([4], seed=0, epoch=0, canonical_nodes=0)


def test_a_negative_shard_size_is_named():
    with pytest.raises(ValueError, match="found -2 for shard 1"):
        plan_epoch([4, -2], seed=0, epoch=0, canonical_nodes=1)


def test_a_span_outside_the_epoch_is_refused():
    with pytest.raises(IndexError, match=r"span \[0, 5\) is not inside"):
        plan_epoch([4], seed=0, epoch=0, canonical_nodes=1).sample_ids(0, 5)


@settings(max_examples=20)
@given(st.integers(0, 2**62))
def test_every_seed_gives_its_own_order(seed):
    orders = {
        tuple(plan_epoch([40, 60], seed=s, epoch=0, canonical_nodes=4).sample_ids(0, 100)) for s in (seed, seed + 1)
    }
    assert len(orders) == 2


class DroppedAtOnce(OrderedDict):
    """Windows that another thread drops after each one that was found, and when there are too many."""

    def get(self, key, default=None):
        found = super().get(key, default)
        self.pop(key, None)
        return found

    def __len__(self):
        count = super().__len__()
        if count > 2:
            self.clear()
        return count


def test_windows_that_another_thread_drops_meanwhile_are_computed_again():
    """A pass reads a plan while the cache looks ahead in it."""
    plan = plan_epoch([8] * 64, seed=1, epoch=0, canonical_nodes=1, shuffle_block_size=64)
    expected = [plan.ids_at(np.array([position]))[0] for position in range(512)]
    plan._windows = DroppedAtOnce(plan._windows)
    assert [plan.ids_at(np.array([position]))[0] for position in range(512)] == expected
