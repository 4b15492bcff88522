"""Ranks of a process group: the world that they form, and the check that all of them begin a pass at the same place.

A rank that loaded another state than the others, or none, would read samples that others read too, and leave some out.
The check needs neither a collective nor a wait: the first rank that begins the n-th pass of a loader writes its start
into the group's key-value store, in one atomic operation, and every later rank compares its own start with that one.
"""

import hashlib
import json
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch.distributed as dist

from smalti.cursor import shown
from smalti.dataset.order import Reading
from smalti.errors import CursorError, WorldMismatch
from smalti.world import World, detect_host_identity, detect_world


def gather_world() -> World:
    """Return the world of this rank, with hosts identified by host name and boot id. Collective in a process group.

    LOCAL_WORLD_SIZE is not used: TorchDistributor sets it to 1 for every process of a machine. Without a process group
    this is `detect_world()`; no group is created.

    Examples:
        >>> gather_world().num_ranks  # without a process group
        1
    """
    if not group_runs():
        return detect_world()
    identities: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(identities, detect_host_identity())
    return World.from_identities(dist.get_rank(), [str(name) for name in identities])


def running_world() -> World:
    """Return the launcher's world, or that of a process group that the launcher did not describe. Not collective.

    Lightning's own launchers set no RANK, and those that fork set no variable at all. Each rank of the group then
    counts as a host of its own: every sample is still read once, but ranks of one machine share fewer shards than with
    `gather_world`.

    Raises:
        WorldMismatch: there is no group, and the launcher's variables contradict each other.
    """
    if not group_runs():
        return detect_world()
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    try:
        world = detect_world()
    except WorldMismatch:  # incomplete variables do not matter: the group describes the world
        return World.flat(rank, num_ranks)
    return world if (world.rank, world.num_ranks) == (rank, num_ranks) else World.flat(rank, num_ranks)


def group_runs() -> bool:
    """Return whether this process is in a process group of torch.distributed."""
    return dist.is_available() and dist.is_initialized()


_loaders: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""Numbers of loaders per data set that began in a process group, by the group's store; a new group starts at zero."""
_IGNORED_FIELD = "initial_physical_nodes"  # of a cursor's state: the order does not depend on it


class Agreement:
    """The passes of one loader, to be compared with those of the same loader on other ranks.

    A loader is identified by `where`, the data that it reads as its user named it, and its number among the loaders of
    the group with the same `where`. So ranks may read other data besides.
    """

    def __init__(self, where: str) -> None:
        self._where = hashlib.sha256(where.encode()).hexdigest()[:16]
        self._store: ref[Any] | None = None
        self._number = self._passes = 0

    def check(self, reading: Reading) -> None:
        """Check that the first rank to begin this pass began at the same place, with the same division. Does not wait.

        A no-op unless a process group is running and is the world of the pass.

        Raises:
            CursorError: the ranks differ; the message has the values of both.
        """
        world = reading.this_pass.world
        if not group_runs() or world.num_ranks == 1:
            return
        if (dist.get_world_size(), dist.get_rank()) != (world.num_ranks, world.rank):
            return
        # The store at which the group met; torch has no public name for it.
        store: Any = dist.distributed_c10d._get_default_store()
        if store is None:  # with MPI
            return
        here = _start_of(reading)
        first = _put_if_absent(store, self._next_key(store), {"rank": world.rank, "begins": here})
        there = first["begins"]
        differing = [what for what in here if here[what] != there.get(what)]
        if differing:
            saved = ", ".join(f"{what} {shown(there.get(what))}" for what in differing)
            found = ", ".join(f"{what} {shown(here[what])}" for what in differing)
            raise CursorError(
                f"ranks do not begin at the same place: rank {first['rank']} began with {saved}, and rank {world.rank} "
                f"with {found}. Load one state into the loaders of all ranks, as one rank saved it, or into none, and "
                "give all of them the same options; a loader that only one rank has needs a dataset with `rank=0, "
                "num_ranks=1`.",
                ranks=(first["rank"], world.rank),
                saved={what: there.get(what) for what in differing},
                found={what: here[what] for what in differing},
            )

    def _next_key(self, store: Any) -> str:
        if self._store is None or self._store() is not store:
            counts = _loaders.setdefault(store, Counter())
            self._store, self._number, self._passes = ref(store), counts[self._where], 0
            counts[self._where] += 1
        self._passes += 1
        return f"smalti/begin/{self._where}/{self._number}/{self._passes}"


def _start_of(reading: Reading) -> dict[str, Any]:
    """Return the values that must be equal on all ranks, as a flat mapping."""
    state = reading.this_pass.start.to_state()
    own = state.pop("smalti")
    del state[_IGNORED_FIELD]
    division = {
        "batch_size": reading.batch_size,
        "tail": reading.options.tail,
        "replication": reading.options.replication,
    }
    start: dict[str, Any] = json.loads(json.dumps(state | own | division))  # the types that the other rank's have
    return start


def _put_if_absent(store: Any, key: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the value that the first rank has put under the key; put this one if there is none."""
    try:
        first: dict[str, Any] = json.loads(store.compare_set(key, "", json.dumps(value)))
    except NotImplementedError:  # this type of store has no such operation: there is nothing to compare with
        return value
    except dist.DistError:  # the store ended with its rank. Reading needs no other rank; the next collective will fail
        return value
    return first
