"""WorldShape: the numbers of hosts, ranks and workers that MosaicML's orders depend on. A pure value."""

from dataclasses import dataclass

from smalti.errors import WorldMismatch
from smalti.world import World


@dataclass(frozen=True)
class WorldShape:
    """Numbers of hosts, ranks and workers, and the batch size; not which of them this process is."""

    hosts: int = 1
    """Physical nodes."""
    ranks_on_host: int = 1
    """Ranks on every host."""
    workers: int = 1
    """Loader processes of every rank; 1 where the rank reads by itself."""
    batch_size: int = 1
    """Samples per rank and step."""

    def __post_init__(self) -> None:
        for name in ("hosts", "ranks_on_host", "workers", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, found {getattr(self, name)}.")

    @classmethod
    def of(cls, world: World, *, workers: int, batch_size: int) -> "WorldShape":
        """Return the shape of `world`, with this many workers per rank (0 counts as 1) and this batch size."""
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
        """Return the shape in which each replica group of `replication` consecutive ranks counts as one rank.

        As in MosaicML: where the groups do not fill whole hosts, all of them count as ranks of one host.

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
