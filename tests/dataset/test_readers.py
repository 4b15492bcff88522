"""Readers: explicit ranks, and replica groups."""

import pytest

from smalti.dataset import OrderOptions, StreamingDataset
from smalti.errors import WorldMismatch
from smalti.world import World
from tests.dataset.every_rank import global_order, ranks_of
from tests.shard_sets import write_set


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("set") / "root", 137)


def read_ids(dataset):
    return [s["id"] for s in dataset]


def test_a_rank_and_a_number_of_ranks_are_a_world(root):
    datasets = [
        StreamingDataset(remote=str(root), batch_size=4, world=World.flat(rank, 3), order=OrderOptions(tail="short"))
        for rank in (0, 1, 2)
    ]
    assert [dataset.world for dataset in datasets] == [World.flat(rank, 3) for rank in (0, 1, 2)]
    assert sorted(n for dataset in datasets for n in read_ids(dataset)) == list(range(137))
    assert len(datasets[0]) == 46


def test_a_world_that_is_none_is_refused():
    with pytest.raises(TypeError, match=r"`world` must be a smalti.World, found \(0, 2\)"):
        StreamingDataset(remote="/x", world=(0, 2))


def test_a_rank_beyond_the_number_of_ranks_is_refused():
    with pytest.raises(WorldMismatch, match="rank 2 of 2"):
        StreamingDataset(remote="/x", world=World.flat(2, 2))


def test_ranks_that_replicate_each_other_read_the_same_and_the_order_stays(root):
    options = {"shuffle": True, "num_canonical_nodes": 4}
    alone = global_order(ranks_of(root, 1, 1, batch_size=137, **options))
    read = [list(d.batches()) for d in ranks_of(root, 2, 4, replication=2, batch_size=4, **options)]
    ids = [[batch["_sample_id"].tolist() for batch in batches] for batches in read]
    assert ids[0::2] == ids[1::2]
    first_of_each = ranks_of(root, 2, 4, replication=2, batch_size=4, **options)[::2]
    assert len(first_of_each[0]) == 35
    assert global_order(first_of_each) == alone


def test_replicas_are_counted_once_in_the_state(root):
    dataset = ranks_of(root, 2, 4, replication=2, batch_size=4)[5]
    this_pass = dataset._smalti.begin_pass()
    assert dataset._smalti.reading(this_pass).cursor_after(3).samples == 3 * 4 * 4


def test_a_replication_that_does_not_divide_the_ranks_says_so(root):
    dataset = StreamingDataset(
        remote=str(root), batch_size=4, world=World.flat(0, 4), order=OrderOptions(replication=3)
    )
    with pytest.raises(WorldMismatch, match="`replication` is 3, expected a divisor of the 4 ranks"):
        next(dataset.batches())
