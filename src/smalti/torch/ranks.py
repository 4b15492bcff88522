"""The world as a running process group knows it."""

import torch.distributed as dist

from smalti.errors import WorldMismatch
from smalti.world import World, detect_host_identity, detect_world


def gather_world() -> World:
    """The world of this rank, with hosts told apart by host name and boot id. Collective where a group exists.

    LOCAL_WORLD_SIZE is not believed: TorchDistributor sets it to 1 for every process of a machine. Without a process
    group this is `detect_world()`; none is created.
    """
    if not group_runs():
        return detect_world()
    identities: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(identities, detect_host_identity())
    return World.from_identities(dist.get_rank(), [str(name) for name in identities])


def running_world() -> World:
    """The launcher's world, or the process group's where one runs that the launcher did not describe. Not collective.

    Lightning's own launchers set no RANK, and those that fork set nothing: the group alone knows then. Its ranks count
    as hosts of their own, which is exact, and lets ranks of one machine share fewer shards; `gather_world` does better.

    Raises:
        WorldMismatch: there is no group, and the launcher's variables contradict each other.
    """
    if not group_runs():
        return detect_world()
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    try:
        told = detect_world()
    except WorldMismatch:  # half a description is no fault where a whole one exists
        return World.flat(rank, num_ranks)
    return told if (told.rank, told.num_ranks) == (rank, num_ranks) else World.flat(rank, num_ranks)


def group_runs() -> bool:
    """Return whether this process is in a process group of torch.distributed."""
    return dist.is_available() and dist.is_initialized()
