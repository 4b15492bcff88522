"""MosaicML's partitions: the ids that each worker reads."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from smalti.compat.streaming.order.partition import PARTITIONS, CanonicalOrder, WorldShape
from smalti.errors import CursorError, WorldMismatch
from tests.compat.streaming.mosaic_worlds import partition_ids, shapes


def canonical(num_samples, nodes, hosts=1):
    order = CanonicalOrder(num_samples, nodes, hosts)
    return order.ids_at(np.arange(len(order))).tolist()


def test_canonical_nodes_take_turns_and_short_ones_repeat_their_last_id():
    """The table in the module's docstring: nodes of 5, 6, 5 and 6 ids."""
    ids = canonical(22, 4)
    assert ids[:8] == [0, 5, 11, 16, 1, 6, 12, 17]
    assert ids[16:] == [4, 9, 15, 20, 4, 10, 15, 21]


def test_rows_are_added_until_the_hosts_of_a_node_share_it_evenly():
    """One node, 4 hosts, 10 ids: 2 more, from 4 + 1 ids before."""
    assert canonical(10, 1, hosts=4) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6]


def test_fewer_ids_than_canonical_nodes_are_repeated_in_turn():
    assert canonical(3, 4) == [0, 1, 2, 0]
    assert canonical(2, 2, hosts=4) == [0, 0, 1, 1]


def test_too_few_ids_for_the_hosts_of_a_node_are_refused_as_by_mosaicml():
    with pytest.raises(WorldMismatch, match="4 samples of 1 canonical nodes are too few to be shared by 6 hosts"):
        canonical(4, 1, hosts=6)


def test_a_rank_is_padded_with_samples_before_its_hosts_last_row():
    """7 ids, 3 ranks: each needs 3, so 2 more; those 3 + 2 - 1 before."""
    assert partition_ids("orig", 7, WorldShape(1, 3, 1, 3), canonical_nodes=1).reshape(3, 3).tolist() == [
        [0, 3, 6],
        [1, 4, 3],
        [2, 5, 4],
    ]


def test_fewer_samples_than_ranks_are_repeated_in_turn():
    assert partition_ids("orig", 2, WorldShape(1, 5, 1, 1), canonical_nodes=1).reshape(5).tolist() == [0, 1, 0, 1, 0]


@given(st.sampled_from(PARTITIONS), st.integers(1, 200), shapes, st.sampled_from([1, 2, 4, 8, 12]), st.integers(0, 100))
def test_i1_every_id_from_the_start_on_is_read_and_ranks_get_equally_many(algorithm, count, shape, nodes, begin):
    start = min(begin, count)
    try:
        ids = partition_ids(algorithm, count, shape, canonical_nodes=nodes, start=start)
    except WorldMismatch:
        assume(False)
    first = start - start % shape.hosts
    order = CanonicalOrder(count, nodes, shape.hosts)
    before = set(order.ids_at(np.arange(min(first, len(order)))).tolist())
    dealt = Counter(ids.reshape(-1).tolist())
    assert set(range(count)) - before <= set(dealt)
    assert set(dealt) <= set(range(-1, count))
    of_ranks = (ids.reshape(shape.num_ranks, -1) >= 0).sum(axis=1)
    assert len(set(of_ranks.tolist())) == 1


@given(st.integers(24, 200), st.integers(1, 3), st.sampled_from([3, 5, 6, 7]), st.integers(1, 3), st.integers(0, 5))
def test_i3_relaxed_reads_the_first_worlds_global_batches_on_hosts_that_do_not_divide(count, ranks, hosts, batch, done):
    """A run of 4 hosts and 4 canonical nodes; the global batch stays."""
    first = WorldShape(4, ranks, 1, hosts * batch)
    later = WorldShape(hosts, ranks, 1, 4 * batch)
    start = done * first.global_batch
    assume(start < count)
    steps = [
        partition_ids("relaxed", count, shape, canonical_nodes=4, start=start, initial_hosts=4)
        .transpose(3, 2, 0, 1, 4)
        .reshape(-1, first.global_batch)
        for shape in (first, later)
    ]
    assert np.sort(steps[0], axis=1).tolist() == np.sort(steps[1], axis=1).tolist()


def test_hosts_that_do_not_divide_are_refused_in_a_first_run():
    with pytest.raises(
        WorldMismatch, match=r"^Either canonical or physical nodes must be .*: 4 canonical .* among 3 hosts"
    ) as caught:
        partition_ids("relaxed", 100, WorldShape(hosts=3), canonical_nodes=4)
    assert (caught.value.canonical_nodes, caught.value.hosts) == (4, 3)


@pytest.mark.parametrize("initial", [4, 0])
def test_relaxed_refuses_a_global_batch_that_the_first_ranks_cannot_share(initial):
    with pytest.raises(
        WorldMismatch, match="A global batch size of 6 is not evenly divisible by the initial total"
    ) as caught:
        partition_ids("relaxed", 100, WorldShape(3, 1, 1, 2), canonical_nodes=4, initial_hosts=initial)
    assert (caught.value.global_batch, caught.value.initial_hosts) == (6, initial)


def test_a_start_beyond_the_padded_epoch_is_a_cursor_error():
    """22 samples on 4 ranks are padded to 24."""
    shape = WorldShape(1, 4, 1, 1)
    assert partition_ids("orig", 22, shape, canonical_nodes=1, start=24).size == 0
    with pytest.raises(
        CursorError, match=r"^Resuming further into the dataset \(25\) than it has samples \(22\)"
    ) as caught:
        partition_ids("orig", 22, shape, canonical_nodes=1, start=25)
    assert (caught.value.start, caught.value.num_samples) == (25, 22)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "strict"}, "`algorithm` must be one of orig, relaxed, found 'strict'"),
        ({"start": -1}, "`start` must be at least 0, found -1"),
        ({"num_samples": 0}, "`num_samples` must be at least 1, found 0"),
        ({"canonical_nodes": 0}, "`canonical_nodes` must be at least 1, found 0"),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    chosen = {"algorithm": "orig", "num_samples": 8, "shape": WorldShape(), "canonical_nodes": 1} | arguments
    with pytest.raises(ValueError, match=message):
        partition_ids(**chosen)


@pytest.mark.parametrize("name", ["hosts", "ranks_on_host", "workers", "batch_size"])
def test_a_shape_with_a_zero_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1, found 0"):
        WorldShape(**{name: 0})
