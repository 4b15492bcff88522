"""Orders that MosaicML Streaming 0.13 itself wrote, bit for bit."""

import json

import pytest

from smalti.compat.streaming.order.partition import WorldShape
from smalti.compat.streaming.order.planning import MosaicOptions, MosaicRun
from smalti.compat.streaming.order.sampling import get_sampling, weigh_streams
from smalti.compat.streaming.order.shuffles import SHUFFLES, shuffled_ids
from tests.compat.streaming.mosaic_worlds import partition_ids

# Shards of 5, 7, 4 and 6 samples, 2 canonical nodes, seed 9176, epoch 0, blocks of 8; written by MosaicML on numpy 2.1.
BY_SHUFFLE = {
    "naive": [0, 2, 8, 6, 5, 7, 11, 10, 13, 9, 18, 19, 20, 1, 14, 17, 21, 15, 12, 3, 16, 4],
    "py1s": [7, 6, 10, 11, 9, 8, 5, 12, 15, 13, 14, 18, 17, 16, 19, 20, 21, 2, 4, 0, 1, 3],
    "py2s": [5, 10, 6, 9, 11, 8, 7, 14, 12, 13, 15, 19, 21, 18, 20, 16, 17, 3, 1, 4, 0, 2],
    "py1br": [7, 6, 8, 5, 9, 10, 11, 12, 13, 14, 15, 21, 18, 0, 17, 16, 2, 1, 20, 19, 3, 4],
    "py1e": [7, 6, 10, 11, 9, 8, 12, 5, 15, 13, 14, 18, 19, 20, 16, 0, 17, 21, 2, 4, 1, 3],
}
NEXT_EPOCH = [5, 8, 9, 7, 11, 15, 10, 6, 12, 14, 13, 4, 2, 3, 17, 1, 20, 0, 16, 21, 19, 18]


@pytest.fixture(scope="module")
def orders(shared):
    return json.loads((shared / "golden" / "orders.json").read_text())


@pytest.mark.parametrize("algorithm", SHUFFLES)
def test_a_shuffle_equals_the_order_written_by_mosaicml(algorithm):
    ids = shuffled_ids(algorithm, [5, 7, 4, 6], canonical_nodes=2, seed=9176, epoch=0, block_size=8)
    assert ids.tolist() == BY_SHUFFLE[algorithm]


def test_the_next_epoch_of_py1e_equals_mosaicmls():
    ids = shuffled_ids("py1e", [5, 7, 4, 6], canonical_nodes=2, seed=9176, epoch=1, block_size=8)
    assert ids.tolist() == NEXT_EPOCH


def test_one_host_of_two_ranks_and_two_workers_equals_mosaicml():
    ids = partition_ids("orig", 22, WorldShape(1, 2, 2, 3), canonical_nodes=2)
    rank_0 = [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, -1]]]
    rank_1 = [[[11, 12, 13], [17, 18, 19]], [[14, 15, 16], [20, 21, -1]]]
    assert ids.tolist() == [[rank_0, rank_1]]


def test_two_hosts_read_the_same_as_with_mosaicml():
    ids = partition_ids("orig", 22, WorldShape(2, 2, 1, 3), canonical_nodes=2)
    host_0 = [[[[0, 2, 4], [6, 8, 10]]], [[[1, 3, 5], [7, 9, 9]]]]
    host_1 = [[[[11, 13, 15], [17, 19, 21]]], [[[12, 14, 16], [18, 20, 20]]]]
    assert ids.tolist() == [host_0, host_1]


def test_three_hosts_continue_a_run_of_four():
    ids = partition_ids("relaxed", 48, WorldShape(3, 2, 1, 4), canonical_nodes=4, start=24, initial_hosts=4)
    assert ids.reshape(3, 2, 4).tolist() == [
        [[6, 8, 10, 7], [9, 11, 18, 20]],
        [[22, 19, 21, 23], [30, 32, 34, 31]],
        [[33, 35, 42, 44], [46, 43, 45, 47]],
    ]


@pytest.mark.parametrize(
    ("choose", "granularity", "counts"), [(10, 1, [2, 7, 1, 0]), (30, 3, [7, 10, 7, 6]), (44, 1, [10, 14, 8, 12])]
)
def test_a_sampling_equals_mosaicmls(choose, granularity, counts):
    assert get_sampling([5, 7, 4, 6], choose, granularity, seed=9176, epoch=0, use_epoch=True).tolist() == counts


def test_every_golden_shuffle_equals_mosaicmls(orders):
    for case in orders["shuffle"]:
        ids = shuffled_ids(
            case["algo"],
            case["shard_sizes"],
            canonical_nodes=case["num_canonical_nodes"],
            seed=case["seed"],
            epoch=case["epoch"],
            block_size=case["block_size"],
        )
        assert ids.tolist() == case["ids"]
    assert len(orders["shuffle"]) == 40


def test_every_golden_partition_equals_mosaicmls(orders):
    for case in orders["partition"]:
        world = WorldShape(
            case["num_physical_nodes"], case["ranks_per_node"], case["workers_per_rank"], case["batch_size"]
        )
        ids = partition_ids(
            case["algo"],
            case["num_samples"],
            world,
            canonical_nodes=case["num_canonical_nodes"],
            start=case["drop_first"],
            initial_hosts=case["initial_physical_nodes"],
        )
        assert ids.tolist() == case["ids"]
    assert len(orders["partition"]) == 48


def test_every_golden_sampling_equals_mosaicmls(orders):
    for case in orders["sampling"]:
        counts = get_sampling(
            case["samples_per_shard"],
            case["choose"],
            granularity=case["granularity"],
            seed=case["seed"],
            epoch=case["epoch"],
            use_epoch=case["use_epoch"],
        )
        assert counts.tolist() == case["counts"]
    assert len(orders["sampling"]) == 16


def test_every_golden_epoch_equals_that_of_mosaicmls_loader(orders, shared):
    for case in orders["epochs"]:
        index = json.loads((shared / "golden" / case["dataset"] / "index.json").read_text())
        streams = weigh_streams([[shard["samples"] for shard in index["shards"]]])
        options = MosaicOptions(
            canonical_nodes=case["num_canonical_nodes"],
            seed=case["shuffle_seed"],
            shuffle=True,
            shuffle_algo=case["shuffle_algo"],
            block_size=case["shuffle_block_size"],
        )
        for epoch in (0, 1):
            plan = MosaicRun(streams, WorldShape(batch_size=case["batch_size"]), options).plan(epoch)
            assert plan.sample_ids(0, len(plan)).tolist() == case[f"epoch{epoch}"]
    assert len(orders["epochs"]) == 8
