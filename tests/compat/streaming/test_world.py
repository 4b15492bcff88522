"""World, ranks, Spanner and Array: values by hand."""

import numpy as np
import pytest
from torch import tensor

from smalti.compat.streaming.base import distributed
from smalti.compat.streaming.base.array import Array
from smalti.compat.streaming.base.spanner import Spanner
from smalti.compat.streaming.base.world import World

pytestmark = pytest.mark.torch


class Squares(Array):
    size = 6

    def get_item(self, idx):
        return idx * idx


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (2, 4),
        (-1, 25),
        (np.int32(3), 9),
        (slice(1, 4), [1, 4, 9]),
        (slice(-2, None), [16, 25]),
        (slice(4, 0, -2), [16, 4]),
        (slice(None, None, -3), [25, 4]),
        ([0, [1, 2]], [0, [1, 4]]),
        (np.array([5, -6]), [25, 0]),
    ],
    ids=str,
)
def test_an_array_is_indexed_as_numpys(at, expected):
    assert Squares()[at] == expected


def test_sample_ids_are_found_in_their_shards():
    spanner = Spanner(np.array([3, 0, 2]), span_size=2)
    assert [spanner[number] for number in range(5)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    assert spanner.shard_bounds.tolist() == [0, 3, 3, 5]
    assert [span.tolist() for span in spanner.spans] == [[0], [0, 1, 2], [2]]
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match=f"Invalid sample index `{wrong}`"):
            spanner[wrong]


def test_a_worker_has_its_place_among_nodes_and_ranks():
    world = World(num_nodes=2, ranks_per_node=3, workers_per_rank=4, worker=17)
    assert world.to_json() == {
        "num_nodes": 2,
        "ranks_per_node": 3,
        "workers_per_rank": 4,
        "worker": 17,
        "num_ranks": 6,
        "workers_per_node": 12,
        "num_workers": 24,
        "rank": 4,
        "worker_of_rank": 1,
        "node": 1,
        "worker_of_node": 5,
        "rank_of_node": 1,
        "is_multinode": True,
        "is_leader": False,
        "is_local_leader": False,
    }
    assert world.copy().to_json() == world.to_json()
    assert world.replicate(3).to_json() == World(1, 2, 4, 5).to_json(), "two groups, which fill no node of three"
    assert world.detect_workers().to_json() == World(2, 3, 1, 4).to_json()
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="eplication"):
            world.replicate(wrong)


def test_ranks_come_from_the_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert World.detect().to_json() == World(1, 1, 1, 0).to_json()
    assert not distributed.maybe_init_dist()
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert distributed.get_local_rank() == 1
    assert World.detect().to_json() == World(2, 4, 1, 5).to_json()


def test_without_a_process_group_collectives_do_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    distributed.barrier()
    value = tensor([3])
    distributed.broadcast(value, 0)
    gathered = [tensor([7])]
    distributed.all_gather(gathered, value)
    assert (value.item(), gathered[0].item()) == (3, 7)
    assert distributed.all_gather_object("mine") == ["mine"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"world_size\(2\) > 1"):
        distributed.all_gather_object("mine")
