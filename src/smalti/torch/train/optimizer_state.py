"""An optimiser's state as named tensors and JSON, and back; torch's own form is a nest that only a pickle can hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smalti.errors import CheckpointError


def split_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors as `<parameter number>.<name>`, and the rest as JSON values."""
    state = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for parameter, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{parameter}.{name}"] = value
            else:
                numbers.setdefault(str(parameter), {})[name] = value
    return tensors, {"numbers": numbers, "groups": state["param_groups"]}


def restore_state(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]
) -> None:
    """Gives `optimizer` the state that `split_state` took apart.

    Raises:
        CheckpointError: the state belongs to another optimiser or model.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in rest["numbers"].items()}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            entries.setdefault(int(number), {})[name] = _like(parameters[int(number)], tensor, key)
        # JSON has no tuples, and AdamW unpacks its betas.
        groups = [{**group, "betas": tuple(group["betas"])} if "betas" in group else group for group in rest["groups"]]
        _check_groups(groups, optimizer)
        optimizer.load_state_dict({"state": entries, "param_groups": groups})
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the optimiser state of the checkpoint does not fit this model: {error}. Train on with the configuration "
            "that wrote it."
        ) from error


def _check_groups(groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    """Return if groups hold settings that the optimiser can work with; their number is checked when they are loaded.

    Numbers may be others than it has now. Switches may not: they decide how the optimiser computes, and this program
    sets them. One that is missing is of a later torch than the one that wrote the groups.
    """
    for group, own in zip(groups, optimizer.param_groups, strict=False):
        for name, value in own.items():
            if name == "params":
                continue
            if value is None or isinstance(value, bool):
                fits = name not in group or group[name] is value
            else:
                fits = _kind(group[name]) == _kind(value)
            if not fits:
                raise ValueError(f"`{name}` is {group[name]!s:.40}, expected one like {value}")


def _kind(value: Any) -> Any:
    """Return what two values of a setting have in common: numbers, or tuples of equally many numbers."""
    if isinstance(value, tuple):
        return [_kind(each) for each in value]
    return float if type(value) in {int, float} else type(value)


def _like(parameter: torch.Tensor, tensor: torch.Tensor, key: str) -> torch.Tensor:
    """The tensor in the parameter's memory layout.

    Files hold tensors row by row, while parameters may be channels_last; the fused optimisers walk through both as flat
    memory and would give each weight the momentum of another one.
    """
    if tensor.dim() == 0:
        return tensor
    if tensor.shape != parameter.shape:
        raise ValueError(f"{key} has shape {tuple(tensor.shape)}, its parameter {tuple(parameter.shape)}")
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
