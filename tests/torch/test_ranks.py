"""Which world a dataset reads in: the launcher's, or the running process group's where that knows better."""

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from smalti.errors import WorldMismatch
from smalti.torch import StreamingDataset
from smalti.torch.ranks import running_world
from smalti.world import World

pytestmark = pytest.mark.torch

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def launched(monkeypatch):
    """Sets the launcher's variables to these, and to no others."""

    def launch(**variables):
        for name in LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    launch()
    return launch


@pytest.fixture
def group():
    """A process group that says it is rank 1 of 2; nothing is sent."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_without_a_group_the_launcher_is_believed(launched):
    launched(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert running_world() == World(rank=3, num_ranks=4, host=1, num_hosts=2, host_rank=1, ranks_on_host=2)


def test_half_a_description_without_a_group_is_an_error(launched):
    launched(WORLD_SIZE="2", LOCAL_RANK="1")
    with pytest.raises(WorldMismatch, match="RANK"):
        running_world()


@pytest.mark.parametrize(
    "variables",
    [
        {},  # Lightning's ddp_spawn and ddp_fork
        {"WORLD_SIZE": "2", "LOCAL_RANK": "1"},  # Lightning's ddp
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"},
    ],
)
@pytest.mark.usefixtures("group")
def test_a_running_group_knows_better_than_a_launcher_that_differs(launched, variables):
    launched(**variables)
    assert running_world() == World.flat(1, 2)
    assert StreamingDataset(remote="/nowhere").world == World.flat(1, 2)


@pytest.mark.usefixtures("group")
def test_a_launcher_that_agrees_with_the_group_knows_the_hosts(launched):
    launched(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert running_world() == World(rank=1, num_ranks=2, host_rank=1, ranks_on_host=2)


@pytest.mark.usefixtures("group")
def test_a_world_that_was_given_is_the_datasets(launched):
    assert StreamingDataset(remote="/nowhere", world=World.flat(2, 7)).world == World.flat(2, 7)
