"""Orders in which a run keeps only a part of its shards from epoch to epoch."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.order import plan_epoch
from smalti.order.mixture.planning import StreamWeight
from smalti.order.window import arranged, num_cohorts
from tests.order.mixtures import constant
from tests.order.reference import layout, reference_order

AFFINITIES = ("0", "0.3", "0.5", "0.8", "0.999999", "1")
sizes = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(lambda s: sum(s) > 0)


def runs_of(shard_sizes, epoch, *, runs, affinity, seed=3):
    """Return the shards of each run in one epoch."""
    plan = plan_epoch(shard_sizes, seed=seed, epoch=epoch, canonical_nodes=runs, affinity=affinity)
    ends = np.cumsum(shard_sizes)
    return [set(np.searchsorted(ends, plan.pieces(run)[0], side="right").tolist()) for run in range(runs)]


def kept_parts(shard_sizes, epochs, *, runs, affinity):
    """Return for each epoch after the first the part of the samples that were in the same run the epoch before."""
    found, before = [], runs_of(shard_sizes, 0, runs=runs, affinity=affinity)
    for epoch in range(1, epochs):
        now = runs_of(shard_sizes, epoch, runs=runs, affinity=affinity)
        kept = sum(sum(shard_sizes[shard] for shard in old & new) for old, new in zip(before, now, strict=True))
        found.append(kept / sum(sum(shard_sizes[shard] for shard in new) for new in now))
        before = now
    return found


@given(sizes, st.integers(0, 2**40), st.integers(0, 40), st.integers(1, 6), st.sampled_from(AFFINITIES))
def test_the_order_equals_the_reference_implementation(shard_sizes, seed, epoch, nodes, affinity):
    plan = plan_epoch(
        shard_sizes, seed=seed, epoch=epoch, canonical_nodes=nodes, shuffle_block_size=9, affinity=float(affinity)
    )
    expected = reference_order(shard_sizes, seed, epoch, nodes, 9, affinity)
    assert plan.sample_ids(0, len(plan)).tolist() == expected


@given(sizes, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 6), st.floats(0, 1))
def test_i1_an_epoch_with_any_affinity_is_a_permutation(shard_sizes, seed, epoch, nodes, affinity):
    plan = plan_epoch(
        shard_sizes, seed=seed, epoch=epoch, canonical_nodes=nodes, shuffle_block_size=9, affinity=affinity
    )
    assert sorted(plan.sample_ids(0, len(plan)).tolist()) == list(range(sum(shard_sizes)))


def test_slots_and_generations_of_a_case_computed_by_hand():
    """8 shards in 2 runs of 4: 4 cohorts, of shards 0 4, 1 5, 2 6 and 3 7, and slots of cohorts 0 1 2 3 0 1 2 3.

    With affinity 3/4, cohort k is of generation floor(e/4 + k/4): in epoch 1 cohort 3 begins one, in epoch 2 cohort 2,
    in epoch 3 cohort 1, in epoch 4 cohort 0. Seed 2 draws "exchanged" (1) or "in stored order" (0) for the two shards:
    generation 0: 1, 0, 0, 0 for cohorts 0 to 3; generation 1: 0, 1, 1, 1.
    """
    found = [arranged(np.full(8, 5), seed=2, epoch=epoch, runs=2, affinity=0.75).tolist() for epoch in range(5)]
    assert found == [
        [4, 1, 2, 3, 0, 5, 6, 7],
        [4, 1, 2, 7, 0, 5, 6, 3],
        [4, 1, 6, 7, 0, 5, 2, 3],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [0, 5, 6, 7, 4, 1, 2, 3],
    ]


def test_an_affinity_of_one_is_the_order_without_the_option():
    with_it = plan_epoch([5, 7, 4, 6], seed=9176, epoch=3, canonical_nodes=2, affinity=1)
    without = plan_epoch([5, 7, 4, 6], seed=9176, epoch=3, canonical_nodes=2)
    assert with_it.sample_ids(0, 22).tolist() == without.sample_ids(0, 22).tolist()


@pytest.mark.parametrize(("shards", "runs", "cohorts"), [(8, 2, 4), (15, 2, 4), (1000, 8, 64), (7, 8, 1), (0, 1, 1)])
def test_a_run_has_a_slot_of_every_cohort(shards, runs, cohorts):
    assert num_cohorts(shards, runs) == cohorts


@pytest.mark.parametrize(("affinity", "expected"), [(0.8, 0.8), (0.5, 0.5), (0.25, 0.25), (0.0, 0.0)])
def test_runs_keep_the_part_of_their_shards_that_the_affinity_says(affinity, expected):
    """512 shards in 8 runs: of the shards that are dealt anew, one in 8 returns to its run by chance."""
    kept = kept_parts([100] * 512, 21, runs=8, affinity=affinity)
    assert np.mean(kept) == pytest.approx(expected + (1 - expected) / 8, abs=0.02)
    assert min(kept) >= expected - 1 / 64


def test_shards_of_different_sizes_keep_their_runs_nearly_as_well():
    """1 to 400 samples in a shard: the cuts between runs move by a few shards of 64."""
    shard_sizes = np.random.default_rng(5).integers(1, 400, 512).tolist()
    assert np.mean(kept_parts(shard_sizes, 21, runs=8, affinity=0.8)) > 0.77


def test_in_the_long_run_a_shard_is_in_every_run_equally_often():
    """64 shards, 4 runs, affinity 0.5, 400 epochs: each is about 100 times in each run; 5 deviations are 61."""
    counts = np.zeros((64, 4))
    for epoch in range(400):
        for run, shards in enumerate(runs_of([10] * 64, epoch, runs=4, affinity=0.5)):
            counts[list(shards), run] += 1
    assert np.abs(counts - 100).max() < 61


@given(st.integers(1, 63), st.sampled_from(AFFINITIES[:-1]), st.integers(0, 9))
def test_shards_that_are_appended_leave_those_of_a_cohort_in_their_order(more, affinity, epoch):
    """64 shards in 4 runs have 16 cohorts, as 127 have."""
    few, many = layout([7] * 64, 5, epoch, 4, affinity), layout([7] * (64 + more), 5, epoch, 4, affinity)
    for cohort in range(16):
        old = [shard for shard in few if shard % 16 == cohort]
        assert [shard for shard in many if shard % 16 == cohort and shard < 64] == old


def test_runs_keep_most_of_their_shards_when_the_set_grows_between_epochs():
    """1,024 shards and a tenth more, 8 runs, affinity 0.8: the new ones move the slots of the old ones a little."""
    before = runs_of([50] * 1024, 4, runs=8, affinity=0.8)
    after = runs_of([50] * 1126, 5, runs=8, affinity=0.8)
    kept = sum(len(old & new) for old, new in zip(before, after, strict=True)) / sum(map(len, before))
    assert kept > 0.65


def test_runs_keep_few_shards_when_the_set_grows_beyond_the_size_of_its_cohorts():
    """120 shards in 4 runs have 16 cohorts, 132 have 32: nearly all are dealt anew, and one in 4 returns by chance."""
    assert (num_cohorts(120, 4), num_cohorts(132, 4)) == (16, 32)
    before = runs_of([50] * 120, 4, runs=4, affinity=0.8)
    after = runs_of([50] * 132, 5, runs=4, affinity=0.8)
    assert sum(len(old & new) for old, new in zip(before, after, strict=True)) / 120 < 0.4


def test_groups_of_hosts_that_read_the_same_runs_get_their_part_of_the_moved_shards_back():
    """12 hosts and 8 runs: 4 groups of 3, each with 2 runs. Of the half that is dealt anew, one in 4 comes back."""
    found = []
    for epoch in range(1, 9):
        before, after = (
            plan_epoch([10] * 512, seed=3, epoch=each, canonical_nodes=8, affinity=0.5) for each in (epoch - 1, epoch)
        )
        assert {len(after.runs_of_host(host, 12)) for host in range(12)} == {2}
        shards = [
            {start // 10 for run in plan.runs_of_host(5, 12) for start in plan.pieces(run)[0].tolist()}
            for plan in (before, after)
        ]
        found.append(len(shards[0] & shards[1]) / len(shards[1]))
    assert np.mean(found) == pytest.approx(0.5 + 0.5 / 4, abs=0.03)


def mixture_runs(epoch, affinity):
    """Return the shards that 8 hosts read of a mixture: all of one stream of 256 shards, and half of another."""
    run = constant([[20] * 256] * 2, [StreamWeight(), StreamWeight(repeat=0.5)], seed=1)
    plan = run.plan(epoch, canonical_nodes=8, affinity=affinity)
    ids = plan.sample_ids(0, len(plan))
    assert sorted(np.bincount(ids, minlength=10240).tolist()) == [0] * 2560 + [1] * 7680  # I1
    return [set((ids[host::8] // 20).tolist()) for host in range(8)]


@pytest.mark.parametrize(("affinity", "expected"), [(0.0, 0.125), (0.75, 0.78), (1.0, 1.0)])
def test_the_hosts_of_a_mixture_keep_the_part_that_the_affinity_says(affinity, expected):
    """A part of a shard is another one in each epoch; the shards that hold them stay or move as whole ones do."""
    epochs = [mixture_runs(epoch, affinity) for epoch in range(9)]
    kept = [len(old & new) / len(new) for pair in pairwise(epochs) for old, new in zip(*pair, strict=True)]
    assert np.mean(kept) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_of_streams_take_every_sample_once_with_an_affinity(method):
    run = constant([[9, 4, 7, 5], [3, 8, 2]], seed=1, batching_method=method, global_batch=8, local_batch=4)
    for epoch in range(6):
        plan = run.plan(epoch, canonical_nodes=2, shuffle_block_size=4, affinity=0.4)
        assert sorted(plan.sample_ids(0, 38).tolist()) == list(range(38))


@pytest.mark.parametrize("affinity", [-0.1, 1.01, float("nan"), "0.8", True, None])
def test_an_affinity_out_of_range_is_refused(affinity):
    with pytest.raises(ValueError, match=r"`affinity` must be a number in \[0, 1\]"):
        plan_epoch([4], seed=0, epoch=0, canonical_nodes=1, affinity=affinity)
