"""How many hosts, ranks and workers divide an epoch as the peer divides it, and in which batches. A pure value."""

from dataclasses import dataclass

from smalti.errors import WorldMismatch
from smalti.world import World


@dataclass(frozen=True)
class WorldShape:
    """The numbers that the peer's partition depends on; who I am among them is not part of it."""

    hosts: int = 1
    """Physical nodes."""
    ranks_on_host: int = 1
    """Ranks on every host."""
    workers: int = 1
    """Loader processes of every rank; 1 where the rank loads for itself."""
    batch_size: int = 1
    """Samples per rank and step."""

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_on_host", "workers", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, found {getattr(self, name)}.")

    @classmethod
    def of(cls, world: World, *, workers: int, batch_size: int) -> "WorldShape":
        """The shape of `world`, where every rank has so many workers (0 counts as 1) and so large a batch."""
        return cls(world.num_hosts, world.ranks_on_host, max(1, workers), batch_size)

    @property
    def num_ranks(self) -> int:
        """Ranks altogether."""
        return self.hosts * self.ranks_on_host

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.num_ranks * self.batch_size

    def replicated(self, replication: int) -> "WorldShape":
        """The shape in which each `replication` consecutive ranks count as one, because they read the same samples.

        As with the peer: where the groups do not fill whole hosts, all of them count as ranks of one host.

        Raises:
            WorldMismatch: `replication` does not divide the ranks.
        """
        if replication < 1 or self.num_ranks % replication:
            raise WorldMismatch(
                f"`replication` is {replication}, expected a divisor of the {self.num_ranks} ranks.",
                replication=replication,
                num_ranks=self.num_ranks,
            )
        groups = self.num_ranks // replication
        hosts = groups // self.ranks_on_host if groups % self.ranks_on_host == 0 else 1
        return WorldShape(hosts, groups // hosts, self.workers, self.batch_size)
