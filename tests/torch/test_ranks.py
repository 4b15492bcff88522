"""The world of a dataset: the launcher's, or that of a running process group if the two differ."""

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
def launch_as(monkeypatch):
    """A function that sets the launcher's variables to its arguments, and removes all others."""

    def launch(**variables):
        for name in LAUNCHERS:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    launch()
    return launch


@pytest.fixture
def group():
    """A process group of which this process is rank 1 of 2; nothing is sent."""
    dist.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_without_a_group_the_world_is_the_launchers(launch_as):
    launch_as(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert running_world() == World(rank=3, num_ranks=4, host=1, num_hosts=2, host_rank=1, ranks_on_host=2)


def test_incomplete_variables_without_a_group_are_an_error(launch_as):
    launch_as(WORLD_SIZE="2", LOCAL_RANK="1")
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
def test_a_running_group_has_priority_over_a_launcher_that_differs(launch_as, variables):
    launch_as(**variables)
    assert running_world() == World.flat(1, 2)
    assert StreamingDataset(remote="/nowhere").world == World.flat(1, 2)


@pytest.mark.usefixtures("group")
def test_the_hosts_come_from_a_launcher_that_agrees_with_the_group(launch_as):
    launch_as(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    assert running_world() == World(rank=1, num_ranks=2, host_rank=1, ranks_on_host=2)


@pytest.mark.usefixtures("group")
def test_a_users_world_is_the_datasets(launch_as):
    assert StreamingDataset(remote="/nowhere", world=World.flat(2, 7)).world == World.flat(2, 7)
