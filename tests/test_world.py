"""World and host identities."""

import pytest

from smalti.errors import WorldMismatch
from smalti.world import World, detect_host_identity, detect_world

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def launched(monkeypatch):
    """Set the launcher's variables and unset the others."""

    def launch(**values):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    launch()
    return launch


def test_without_a_launcher_the_world_is_one_process(launched):
    assert detect_world() == World(rank=0, num_ranks=1, host=0, num_hosts=1, host_rank=0, ranks_on_host=1)


def test_torchrun_on_two_hosts_of_four(launched):
    launched(RANK=6, WORLD_SIZE=8, LOCAL_RANK=2, LOCAL_WORLD_SIZE=4)
    assert detect_world() == World(rank=6, num_ranks=8, host=1, num_hosts=2, host_rank=2, ranks_on_host=4)


def test_a_local_world_size_of_one_makes_every_rank_a_host(launched):
    """TorchDistributor sets these for all processes of a machine."""
    launched(RANK=3, WORLD_SIZE=4, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
    assert detect_world() == World.flat(3, 4)


def test_local_sizes_that_do_not_divide_the_ranks_are_ignored(launched):
    launched(RANK=4, WORLD_SIZE=5, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)
    assert detect_world() == World.flat(4, 5)


def test_a_variable_that_is_no_number_is_named(launched):
    launched(RANK="first", WORLD_SIZE=2)
    with pytest.raises(WorldMismatch, match="RANK is 'first', expected a whole number"):
        detect_world()


def test_a_rank_beyond_the_world_is_refused(launched):
    launched(RANK=2, WORLD_SIZE=2)
    with pytest.raises(WorldMismatch, match="rank 2 of 2"):
        detect_world()


def test_a_world_without_a_rank_is_refused(launched):
    """Lightning's own launcher sets no RANK: every process would read what rank 0 reads."""
    launched(WORLD_SIZE=2, LOCAL_RANK=1)
    with pytest.raises(WorldMismatch, match="WORLD_SIZE is 2 and RANK is not set"):
        detect_world()


def every_rank(hosts, ranks_on_host):
    return [World.of_blocks(rank, hosts * ranks_on_host, hosts) for rank in range(hosts * ranks_on_host)]


def test_consecutive_ranks_are_one_reader_and_keep_their_host():
    found = [world.replicated(2) for world in every_rank(2, 4)]
    first, second = World(0, 4, 0, 2, 0, 2), World(1, 4, 0, 2, 1, 2)
    third, fourth = World(2, 4, 1, 2, 0, 2), World(3, 4, 1, 2, 1, 2)
    assert found == [first, first, second, second, third, third, fourth, fourth]


@pytest.mark.parametrize("replication", [4, 8])
def test_groups_that_span_hosts_are_hosts_of_their_own(replication):
    groups = 8 // replication
    found = [world.replicated(replication) for world in every_rank(4, 2)]
    assert found == [World.flat(rank // replication, groups) for rank in range(8)]


def test_replica_groups_across_two_hosts_count_as_hosts():
    assert [world.replicated(2) for world in every_rank(2, 3)] == [World.flat(rank // 2, 3) for rank in range(6)]


@pytest.mark.parametrize("replication", [0, 3, 5])
def test_a_replication_that_does_not_divide_the_ranks_is_refused(replication):
    with pytest.raises(WorldMismatch, match=f"`replication` is {replication}, expected a divisor of the 4 ranks"):
        World.flat(0, 4).replicated(replication)


def test_hosts_are_distinguished_by_identity_and_numbered_by_their_first_rank():
    names = ["b", "a", "b", "a"]
    assert World.from_identities(2, names) == World(2, 4, host=0, num_hosts=2, host_rank=1, ranks_on_host=2)
    assert World.from_identities(1, names) == World(1, 4, host=1, num_hosts=2, host_rank=0, ranks_on_host=2)


def test_hosts_of_unequal_size_are_divided_by_global_rank():
    assert World.from_identities(2, ["a", "a", "b"]) == World.flat(2, 3)


def test_the_host_identity_is_the_same_for_every_process_of_a_host():
    import subprocess
    import sys

    code = "from smalti.world import detect_host_identity; print(detect_host_identity())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert other.stdout.strip() == detect_host_identity()
