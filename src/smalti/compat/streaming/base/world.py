"""World: the numbers of nodes, ranks and workers, and the place of this process among them.

The ranks are from the launcher's environment variables; collectives do nothing without a process group.
"""

import os
import sys
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, cast

from typing_extensions import Self

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["World"]

TObj = TypeVar("TObj")


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
        ranks_per_node = get_local_world_size()
        number, count = cls._get_worker_info()
        num_nodes = get_world_size() // ranks_per_node
        return cls(num_nodes, ranks_per_node, count, get_rank() * count + number)

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


def get_rank() -> int:
    """Return the number of this process among all ranks."""
    return int(os.environ.get("RANK", "0"))


def get_world_size() -> int:
    """Return the number of ranks."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def get_local_rank() -> int:
    """Return the number of this process among the ranks of its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_local_world_size() -> int:
    """Return the number of ranks of this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def barrier() -> None:
    """Wait until all ranks are here, if there is a process group."""
    group = _process_group()
    if group is not None:
        group.barrier()


def broadcast(tensor: "Tensor", src: int) -> None:
    """Replace `tensor` by that of rank `src`, if there is a process group."""
    group = _process_group()
    if group is not None:
        group.broadcast(tensor, src)


def all_gather(tensor_list: "list[Tensor]", tensor: "Tensor") -> None:
    """Replace `tensor_list` by the tensors of all ranks, if there is a process group."""
    group = _process_group()
    if group is not None:
        group.all_gather(tensor_list, tensor)


def all_gather_object(obj: TObj) -> list[TObj]:
    """Return the objects of all ranks.

    Raises:
        RuntimeError: there are several ranks and no process group.
    """
    group = _process_group()
    if group is not None:
        gathered: list[Any] = [None] * get_world_size()
        group.all_gather_object(gathered, obj)
        return cast("list[TObj]", gathered)
    if get_world_size() == 1:
        return [obj]
    raise RuntimeError(
        f"The world_size({get_world_size()}) > 1, but the distributed package is not available or has not been "
        "initialized: call `torch.distributed.init_process_group` first."
    )


def maybe_init_dist() -> bool:
    """Make a process group if there are several ranks and none yet; return whether it was made here."""
    import torch
    from torch import distributed as group

    if get_world_size() == 1 or not group.is_available() or group.is_initialized():
        return False
    backend = "nccl" if torch.cuda.is_available() and group.is_nccl_available() else "gloo"
    group.init_process_group(backend=backend, rank=get_rank(), world_size=get_world_size())
    return True


def _process_group() -> Any:
    """Return `torch.distributed` if a process group exists, else None."""
    group = sys.modules.get("torch.distributed")  # who has a group has imported it
    return group if group is not None and group.is_available() and group.is_initialized() else None
