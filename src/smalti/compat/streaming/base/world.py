"""World: the numbers of nodes, ranks and workers, and the place of this process among them."""

from copy import copy
from typing import Any

from typing_extensions import Self

from smalti.compat.streaming.base import distributed as dist

__all__ = ["World"]


class World:
    """Nodes, ranks and loader workers of a run; a rank without workers counts as one worker.

    All counts are of the whole run, unless their names say "of" or "per". Every node has equally many ranks.

    Args:
        num_nodes: nodes.
        ranks_per_node: ranks of every node.
        workers_per_rank: loader workers of every rank.
        worker: number of this worker among all.
    """

    def __init__(self, num_nodes: int, ranks_per_node: int, workers_per_rank: int, worker: int) -> None:
        self.num_nodes = num_nodes
        self.ranks_per_node = ranks_per_node
        self.workers_per_rank = workers_per_rank
        self.worker = worker
        self.num_ranks = num_nodes * ranks_per_node
        self.workers_per_node = ranks_per_node * workers_per_rank
        self.num_workers = num_nodes * self.workers_per_node
        self.rank, self.worker_of_rank = divmod(worker, workers_per_rank)
        self.node, self.worker_of_node = divmod(worker, self.workers_per_node)
        self.rank_of_node = self.rank % ranks_per_node
        self.is_multinode = num_nodes > 1
        self.is_leader = not worker
        self.is_local_leader = not self.worker_of_node

    def to_json(self) -> dict[str, Any]:
        """Return all attributes."""
        return dict(vars(self))

    @classmethod
    def detect(cls) -> Self:
        """Return the world that RANK, WORLD_SIZE and LOCAL_WORLD_SIZE and torch's loader describe."""
        ranks_per_node = dist.get_local_world_size()
        number, count = cls._get_worker_info()
        num_nodes = dist.get_world_size() // ranks_per_node
        return cls(num_nodes, ranks_per_node, count, dist.get_rank() * count + number)

    def copy(self) -> Self:
        """Return an equal world."""
        return copy(self)

    def replicate(self, replication: int) -> Self:
        """Return the world in which each `replication` consecutive ranks, which read the same samples, are one.

        Where the groups do not fill whole nodes, all of them count as ranks of one node.

        Raises:
            ValueError: `replication` does not divide the ranks.
        """
        if replication <= 0:
            raise ValueError(f"Replication factor must be positive, found {replication}.")
        if self.num_ranks % replication:
            raise ValueError(
                f"World size must be divisible by your replication factor, found {self.num_ranks} ranks and "
                f"{replication}."
            )
        num_ranks = self.num_ranks // replication
        num_nodes = 1 if num_ranks % self.ranks_per_node else num_ranks // self.ranks_per_node
        worker = self.rank // replication * self.workers_per_rank + self.worker_of_rank
        return type(self)(num_nodes, num_ranks // num_nodes, self.workers_per_rank, worker)

    def detect_workers(self) -> Self:
        """Return this rank's world with the loader worker that this process is."""
        number, count = self._get_worker_info()
        return type(self)(self.num_nodes, self.ranks_per_node, count, self.rank * count + number)

    @classmethod
    def _get_worker_info(cls) -> tuple[int, int]:
        """Return number of this loader worker, and number of workers of its rank."""
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return (0, 1) if info is None else (info.id, info.num_workers)
