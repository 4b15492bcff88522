"""MosaicML's shuffles: properties that hold for all of them, and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.compat.streaming.order.shuffles import SHUFFLES, cut_at_nodes, expand, narrow_dtype, shuffled_ids
from smalti.errors import WorldMismatch

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(lambda s: sum(s) >= 12)


@given(
    st.sampled_from(SHUFFLES), sizes, st.integers(1, 12), st.integers(0, 2**40), st.integers(0, 4), st.integers(2, 99)
)
def test_i1_a_shuffle_is_a_permutation(algorithm, shard_sizes, nodes, seed, epoch, block):
    ids = shuffled_ids(algorithm, shard_sizes, canonical_nodes=nodes, seed=seed, epoch=epoch, block_size=block)
    assert sorted(ids.tolist()) == list(range(sum(shard_sizes)))


@pytest.mark.parametrize("algorithm", [name for name in SHUFFLES if name != "naive"])
def test_a_canonical_node_keeps_its_samples_in_every_epoch(algorithm):
    def halves(epoch):
        ids = shuffled_ids(algorithm, [10] * 7, canonical_nodes=2, seed=3, epoch=epoch, block_size=20)
        return set(ids[:35].tolist()), set(ids[35:].tolist())

    assert halves(0) == halves(5)


@pytest.mark.parametrize("algorithm", ["py1s", "py2s"])
def test_a_shard_shuffle_keeps_shards_together(algorithm):
    """6 shards of 10, none of which is cut: 2 nodes of 30."""
    ids = shuffled_ids(algorithm, [10] * 6, canonical_nodes=2, seed=3, epoch=0, block_size=0)
    assert [len(set(part)) for part in (ids // 10).reshape(6, 10).tolist()] == [1] * 6


def test_py1e_does_not_mix_spans_longer_than_its_block():
    """2 shards of 50, blocks of 12 to 20: each shard is shuffled by itself, as MosaicML warns."""
    ids = shuffled_ids("py1e", [50, 50], canonical_nodes=1, seed=3, epoch=0, block_size=16)
    assert [len(set(part)) for part in (ids // 50).reshape(2, 50).tolist()] == [1, 1]


def test_py1br_leaves_up_to_three_quarters_of_a_block_at_a_nodes_end():
    """One shard of 20,000 in blocks of 1,000: in 50 epochs, the stored order at the end is at most 750 long."""
    tails = []
    for epoch in range(50):
        ids = shuffled_ids("py1br", [20000], canonical_nodes=1, seed=3, epoch=epoch, block_size=1000)
        tails.append(int(np.argmax(ids[::-1] != np.arange(20000)[::-1])))
    assert 300 < max(tails) < 750


def test_an_empty_canonical_node_is_refused_by_py1e():
    with pytest.raises(
        WorldMismatch, match=r"^The number of samples assigned to a canonical node is 0. .* 4 .* for 3 samples"
    ) as caught:
        shuffled_ids("py1e", [3], canonical_nodes=4, seed=1, epoch=0, block_size=8)
    assert (caught.value.canonical_nodes, caught.value.num_samples) == (4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "py1b"}, "`algorithm` must be one of py1e, py1br, py1s, py2s, naive, found 'py1b'"),
        ({"canonical_nodes": 0}, "`canonical_nodes` must be at least 1 for the shuffle 'py1br', found 0"),
        ({"seed": -1}, "`seed` must be at least 0"),
        ({"epoch": -1}, "`epoch` must be at least 0"),
        ({"block_size": 1}, "`block_size` must be at least 2 for the shuffle 'py1br', found 1"),
        ({"shard_sizes": [3, -1]}, "`shard_sizes` must be a row of numbers from 0"),
        ({"shard_sizes": [[3]]}, r"`shard_sizes` must be a row of numbers from 0, found shape \(1, 1\)"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    chosen = {"algorithm": "py1br", "shard_sizes": [9], "canonical_nodes": 1, "seed": 1, "epoch": 0, "block_size": 4}
    with pytest.raises(ValueError, match=message):
        shuffled_ids(**(chosen | arguments))


def test_a_set_without_samples_has_an_empty_order():
    for algorithm in ("naive", "py1s", "py2s", "py1br"):
        ids = shuffled_ids(algorithm, [], canonical_nodes=2, seed=1, epoch=0, block_size=8)
        assert ids.tolist() == []


def test_a_span_is_cut_where_a_node_ends_inside_of_it():
    """The example in the module's docstring: shards of 6, 12 and 4 laid out as 2, 0, 1; 22 samples, two nodes."""
    spans = cut_at_nodes(np.array([18, 0, 6]), np.array([4, 6, 12]), 2)
    assert (spans.starts.tolist(), spans.sizes.tolist()) == ([18, 0, 6, 7], [4, 6, 1, 11])
    assert spans.bounds == [0, 3, 4]


def test_empty_spans_belong_to_the_node_that_ends_with_them():
    spans = cut_at_nodes(np.array([0, 4, 4, 8]), np.array([4, 0, 4, 0]), 2)
    assert spans.sizes.tolist() == [4, 0, 4, 0]
    assert spans.bounds == [0, 2, 4]


def test_nodes_without_samples_have_no_spans():
    spans = cut_at_nodes(np.array([0]), np.array([2]), 4)
    assert spans.sizes.tolist() == [1, 1]
    assert spans.bounds == [0, 0, 1, 1, 2]


def test_ranges_are_written_one_after_the_other():
    assert expand(np.array([5, 9, 0]), np.array([2, 0, 3]), np.int32).tolist() == [5, 6, 0, 1, 2]
    assert expand(np.array([5]), np.array([0]), np.int32).tolist() == []


def test_ids_take_half_the_memory_where_31_bits_hold_them():
    assert narrow_dtype(1 << 31) is np.int32
    assert narrow_dtype((1 << 31) + 1) is np.int64
