"""World: the numbers of hosts and ranks, and the place of this process among them. A pure value.

Only the `detect_*` functions read the environment; all other code takes a World as an argument.
"""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smalti.attributes import whole_number
from smalti.errors import WorldMismatch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
"""Variables for the rank and the number of ranks: torchrun's and TorchDistributor's, Horovod's, Open MPI's, MPICH's."""


@dataclass(frozen=True)
class World:
    """The processes that read: `num_ranks` training processes, spread evenly over `num_hosts` hosts.

    The order of an epoch does not depend on it, only its division does.

    Examples:
        >>> world = World.flat(rank=1, num_ranks=3)
        >>> dataset = StreamingDataset(remote="s3://bucket/users", world=world)
        >>> len(dataset)  # samples of this rank
        5
    """

    rank: int = 0
    """Global number of this process, 0-based."""
    num_ranks: int = 1
    """Training processes altogether."""
    host: int = 0
    """Number of the host that this process runs on, 0-based."""
    num_hosts: int = 1
    """Hosts that share nothing but the store."""
    host_rank: int = 0
    """Number of this process among those of its host, 0-based."""
    ranks_on_host: int = 1
    """Training processes on every host."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            # Ranks are compared as JSON, which cannot hold integers of numpy.
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        facts = (
            f"rank {self.rank} of {self.num_ranks}, host {self.host} of {self.num_hosts}, "
            f"place {self.host_rank} of {self.ranks_on_host}"
        )
        inside = (
            0 <= self.rank < self.num_ranks
            and 0 <= self.host < self.num_hosts
            and 0 <= self.host_rank < self.ranks_on_host
        )
        if not inside or self.num_hosts * self.ranks_on_host != self.num_ranks:
            raise WorldMismatch(
                f"not a world: {facts}; every number must lie below its count, and hosts times ranks per host must "
                "be the number of ranks. Check RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE of every process.",
                world=facts,
            )

    @classmethod
    def flat(cls, rank: int, num_ranks: int) -> "World":
        """Return a world in which every rank counts as a host of its own."""
        return cls(rank=rank, num_ranks=num_ranks, host=rank, num_hosts=num_ranks)

    @classmethod
    def from_identities(cls, rank: int, identities: Sequence[str]) -> "World":
        """Return the world of `rank`, where `identities[r]` names the host of rank r.

        Hosts are numbered by their first rank. With unequal numbers of ranks per host the world is flat: an even
        division over hosts would give some ranks more than others.
        """
        hosts = list(dict.fromkeys(identities))
        members = {host: [r for r, name in enumerate(identities) if name == host] for host in hosts}
        counts = {len(ranks) for ranks in members.values()}
        if len(counts) != 1:
            return cls.flat(rank, len(identities))
        own_host = members[identities[rank]]
        return cls(
            rank=rank,
            num_ranks=len(identities),
            host=hosts.index(identities[rank]),
            num_hosts=len(hosts),
            host_rank=own_host.index(rank),
            ranks_on_host=len(own_host),
        )

    def replicated(self, replication: int) -> "World":
        """Return the world of replica groups: each `replication` consecutive ranks, which read the same, count as one.

        Groups that fill hosts evenly keep them as hosts; otherwise each group counts as a host of its own. The result
        follows from the rank's number alone, so all ranks divide alike.

        Raises:
            WorldMismatch: `replication` does not divide the ranks.
        """
        if replication < 1 or self.num_ranks % replication:
            raise WorldMismatch(
                f"`replication` is {replication}, expected a divisor of the {self.num_ranks} ranks: that many "
                "consecutive ranks read the same samples.",
                replication=replication,
                num_ranks=self.num_ranks,
            )
        if replication == 1:
            return self
        groups, inside = self.num_ranks // replication, self.ranks_on_host % replication == 0
        return World.of_blocks(self.rank // replication, groups, self.num_hosts if inside else groups)

    @classmethod
    def of_blocks(cls, rank: int, num_ranks: int, num_hosts: int) -> "World":
        """Return a world whose hosts hold consecutive ranks, equally many each."""
        each = num_ranks // num_hosts
        return cls(rank, num_ranks, rank // each, num_hosts, rank % each, each)


def detect_world() -> World:
    """Return the world that RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE describe (torchrun's names).

    Without them the world is a single process. LOCAL_WORLD_SIZE is used only if it divides the ranks evenly. Spark's
    TorchDistributor always sets it to 1, which makes every rank a host of its own: exact, but ranks of one machine then
    share fewer shards. Where a process group exists, use `smalti.torch.gather_world`, which compares host identities.

    Raises:
        WorldMismatch: a variable is not a number, or they contradict each other.
    """
    rank, num_ranks = _number("RANK", 0), _number("WORLD_SIZE", 1)
    local_rank, local_size = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)
    if num_ranks == 1:
        return World()
    if "RANK" not in os.environ:  # every process would read as rank 0
        raise WorldMismatch(
            f"WORLD_SIZE is {num_ranks} and RANK is not set, so that no process can tell which of them it is. Give the "
            "dataset a `world`, such as World.flat(rank, num_ranks), or make the process group first.",
            num_ranks=num_ranks,
        )
    if local_size < 1 or num_ranks % local_size or local_rank >= local_size:
        return World.flat(rank, num_ranks)
    return World(
        rank=rank,
        num_ranks=num_ranks,
        host=rank // local_size,
        num_hosts=num_ranks // local_size,
        host_rank=local_rank,
        ranks_on_host=local_size,
    )


def detect_ranks() -> tuple[int, int] | None:
    """Return rank and number of ranks from the variables of torchrun, Horovod or MPI; None without them."""
    for rank, size in _LAUNCHERS:
        texts = os.environ.get(rank), os.environ.get(size)
        if texts[0] is not None and texts[1] is not None and all(text.isdigit() for text in texts if text):
            return int(texts[0]), int(texts[1])
    return None


def detect_host_identity() -> str:
    """Return a name for this host, equal for all processes that share its disk and kernel: host name and boot id."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else f"{uuid.getnode():x}"
    return f"{socket.gethostname()}/{boot}"


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as fault:
        raise WorldMismatch(
            f"environment variable {variable} is {text!r}, expected a whole number; it is set by the launcher "
            "(torchrun, TorchDistributor, srun): unset it to run alone.",
            variable=variable,
        ) from fault
