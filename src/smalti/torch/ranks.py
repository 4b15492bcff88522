"""The world as a running process group knows it."""

import torch.distributed as dist

from smalti.world import World, detect_host_identity, detect_world


def gather_world() -> World:
    """The world of this rank, with hosts told apart by host name and boot id. Collective where a group exists.

    LOCAL_WORLD_SIZE is not believed: TorchDistributor sets it to 1 for every process of a machine. Without a process
    group this is `detect_world()`; none is created.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return detect_world()
    identities: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(identities, detect_host_identity())
    return World.from_identities(dist.get_rank(), [str(name) for name in identities])
