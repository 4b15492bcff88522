"""The world as a running process group knows it.

Whether the ranks of a process group begin each pass at the same place; noticed without a collective or a wait.

A rank that loaded another state than its fellows, or none, would read samples that others read too, and leave some to
nobody. The first rank that begins the n-th pass of a loader writes down in the group's own key-value store where that
is, in one atomic step; every later one compares. So of two ranks that differ, the later one says so at once.
"""

import hashlib
import json
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from smalti.cursor.fields import shown
from smalti.dataset.order import Reading
from smalti.errors import CursorError, WorldMismatch
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


_loaders: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""Loaders that began in a process group, by its store: a group that is made anew counts anew, on every rank."""
_OF_THE_HOSTS_ALONE = "initial_physical_nodes"  # the order does not depend on it


class Agreement:
    """The passes of one loader, to be compared with those of its fellows on the other ranks.

    Args:
        where: what the loader reads, as its user named it. Loaders are told apart by it and by how many began with it
            before in the group: ranks that read other data besides, or the same in a world of their own, are no fault.
    """

    def __init__(self, where: str) -> None:
        self._where = hashlib.sha256(where.encode()).hexdigest()[:16]
        self._store: ref[Any] | None = None
        self._number = self._passes = 0

    def check(self, reading: Reading) -> None:
        """Refuses a pass that another rank began at another place, or divides in another way; never waits for anybody.

        Does nothing unless a process group runs that is the world of the pass.

        Raises:
            CursorError: it was begun otherwise; the message says both sides.
        """
        world = reading.this_pass.world
        if not (dist.is_available() and dist.is_initialized()):
            return
        if world.num_ranks == 1 or (dist.get_world_size(), dist.get_rank()) != (world.num_ranks, world.rank):
            return
        # The store that the group met at, for which torch has no public name.
        store: Any = dist.distributed_c10d._get_default_store()
        if store is None:  # MPI needs none
            return
        here = _facts(reading)
        first = _first_to_say(store, self._next_key(store), {"rank": world.rank, "begins": here})
        there = first["begins"]
        differing = [what for what in here if here[what] != there.get(what)]
        if differing:
            saved = ", ".join(f"{what} {shown(there.get(what))}" for what in differing)
            found = ", ".join(f"{what} {shown(here[what])}" for what in differing)
            raise CursorError(
                f"ranks do not begin at the same place: rank {first['rank']} began with {saved}, and rank {world.rank} "
                f"with {found}. Load one state into the loaders of all ranks, as one rank saved it, or into none, and "
                "give all of them the same options; a loader that one rank alone has wants a dataset with `rank=0, "
                "num_ranks=1`.",
                ranks=(first["rank"], world.rank),
                saved={what: there.get(what) for what in differing},
                found={what: here[what] for what in differing},
            )

    def _next_key(self, store: Any) -> str:
        if self._store is None or self._store() is not store:
            began = _loaders.setdefault(store, Counter())
            self._store, self._number, self._passes = ref(store), began[self._where], 0
            began[self._where] += 1
        self._passes += 1
        return f"smalti/begin/{self._where}/{self._number}/{self._passes}"


def _facts(reading: Reading) -> dict[str, Any]:
    """What must be equal on all ranks, flat."""
    state = reading.this_pass.start.to_state()
    own = state.pop("smalti")
    del state[_OF_THE_HOSTS_ALONE]
    dealt = {
        "batch_size": reading.batch_size,
        "tail": reading.options.last_step,
        "replication": reading.options.replication,
    }
    facts: dict[str, Any] = json.loads(json.dumps(state | own | dealt))  # as the other rank's come back
    return facts


def _first_to_say(store: Any, key: str, said: dict[str, Any]) -> dict[str, Any]:
    """What stands under the key: what the first rank wrote, or else this."""
    try:
        first: dict[str, Any] = json.loads(store.compare_set(key, "", json.dumps(said)))
    except NotImplementedError:  # a kind of store that cannot: nothing to compare with
        return said
    except dist.DistError:  # it ended with its rank, which the next collective tells: reading needs no other rank
        return said
    return first
