"""Readers: explicit ranks, replica groups, and the worlds that MosaicML's orders accept."""

import json

import pytest

from smalti.dataset import StreamingDataset
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
        StreamingDataset(remote=str(root), batch_size=4, rank=rank, num_ranks=3, tail="short") for rank in (0, 1, 2)
    ]
    assert [dataset.world for dataset in datasets] == [World.flat(rank, 3) for rank in (0, 1, 2)]
    assert sorted(n for dataset in datasets for n in read_ids(dataset)) == list(range(137))
    assert len(datasets[0]) == 46


@pytest.mark.parametrize("given", [{"rank": 0}, {"num_ranks": 2}, {"rank": 0, "num_ranks": 1, "world": World()}])
def test_an_incomplete_or_contradictory_world_is_refused(given):
    with pytest.raises(ValueError, match="give `rank` and `num_ranks` together, or `world` alone"):
        StreamingDataset(remote="/x", **given)


def test_a_rank_beyond_the_number_of_ranks_is_refused():
    with pytest.raises(WorldMismatch, match="rank 2 of 2"):
        StreamingDataset(remote="/x", rank=2, num_ranks=2)


@pytest.mark.parametrize("algorithm", ["window", "py1s"])
def test_ranks_that_replicate_each_other_read_the_same_and_the_order_stays(root, algorithm):
    options = {"shuffle": True, "shuffle_algo": algorithm, "num_canonical_nodes": 4}
    alone = global_order(ranks_of(root, 1, 1, batch_size=137, **options))
    read = [list(d.batches()) for d in ranks_of(root, 2, 4, replication=2, batch_size=4, **options)]
    ids = [[batch["_sample_id"].tolist() for batch in batches] for batches in read]
    assert ids[0::2] == ids[1::2]
    first_of_each = ranks_of(root, 2, 4, replication=2, batch_size=4, **options)[::2]
    assert len(first_of_each[0]) == 35
    assert global_order(first_of_each) == alone


def test_replicas_are_counted_once_in_the_state(root):
    dataset = ranks_of(root, 2, 4, replication=2, batch_size=4)[5]
    this_pass = dataset.begin_pass()
    assert dataset.cursor_after(this_pass, 3).samples == 3 * 4 * 4


def test_a_replication_that_does_not_divide_the_ranks_says_so(root):
    dataset = StreamingDataset(remote=str(root), batch_size=4, rank=0, num_ranks=4, replication=3)
    with pytest.raises(WorldMismatch, match="`replication` is 3, expected a divisor of the 4 ranks"):
        next(dataset.batches())


def test_the_last_step_of_mosaicmls_order_is_short_unless_asked_otherwise(root):
    def sizes(**options):
        dataset = StreamingDataset(remote=str(root), batch_size=50, shuffle_algo="py1e", **options)
        return [len(batch["id"]) for batch in dataset.batches()]

    assert sizes() == [50, 50, 37]
    assert sizes(tail="pad") == [50, 50, 50]
    assert sizes(tail="drop") == [50, 50]


def test_hosts_that_do_not_fit_mosaicmls_order_are_refused_with_the_remedy(root):
    dataset = ranks_of(root, 3, 1, batch_size=4, shuffle_algo="py1e", num_canonical_nodes=4, partition_algo="orig")[0]
    with pytest.raises(WorldMismatch, match="4 canonical nodes cannot be divided among 3 hosts"):
        next(dataset.batches())


@pytest.mark.parametrize("number", range(8))
def test_two_epochs_equal_those_read_by_mosaicml(shared, number):
    """Golden sets, with epochs recorded from MosaicML's own loader."""
    golden = json.loads((shared / "golden" / "orders.json").read_text())["epochs"][number]
    recorded = [golden.pop("epoch0"), golden.pop("epoch1")]
    dataset = StreamingDataset(
        local=str(shared / "golden" / golden.pop("dataset")), shuffle=True, include_ids=True, **golden
    )
    assert [[i for batch in dataset.batches() for i in batch["_sample_id"].tolist()] for _ in range(2)] == recorded
