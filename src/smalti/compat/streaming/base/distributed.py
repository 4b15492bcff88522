"""Ranks from the launcher's environment variables, and collectives that do nothing without a process group."""

import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["all_gather", "barrier", "broadcast", "get_local_rank", "get_local_world_size", "get_rank", "get_world_size"]

TObj = TypeVar("TObj")


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
