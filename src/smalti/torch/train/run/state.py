"""States of training as named tensors and JSON values: what a checkpoint holds of objects such as `state_dict()`s.

Nothing is pickled. Scalars, texts, bytes, None, tensors and NumPy arrays are stored, and lists, tuples and mappings of
them; keys of mappings are texts, numbers, truth values or None. A Counter, as schedulers have it, stays one.
"""

import base64
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from smalti.errors import CheckpointError

_CHANNELS_LAST = "channels_last"


def pack_state(state: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors of a state by name, and the rest of it as JSON values, which name the tensors.

    Raises:
        CheckpointError: a value is of another type; the message says which, and where it stands.
    """
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _packed(state, "state", tensors)


def unpack_state(tensors: Mapping[str, torch.Tensor], packed: Any) -> Any:
    """Return the state that `pack_state` took apart; its tensors are on the CPU.

    Raises:
        CheckpointError: the values do not belong together.
    """
    try:
        return _unpacked(packed, tensors)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the state of the checkpoint is not complete: {type(error).__name__}: {error}. Use an older checkpoint."
        ) from error


def _packed(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.Tensor):
        name = _free_name(where, tensors)
        tensors[name] = value
        is_last = value.dim() == 4 and not value.is_contiguous() and _is_channels_last(value)
        return {"tensor": name, **({"format": _CHANNELS_LAST} if is_last else {})}
    if isinstance(value, (np.ndarray, np.generic)):
        name = _free_name(where, tensors)
        tensors[name] = torch.from_numpy(np.array(value))
        return {"array": name}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(each, f"{where}.{number}", tensors) for number, each in enumerate(value)]}
    if isinstance(value, Mapping):
        _check_keys(value, where)
        name = "counter" if isinstance(value, Counter) else "dict"
        return {name: [[key, _packed(each, f"{where}.{key}", tensors)] for key, each in value.items()]}
    raise CheckpointError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold; give tensors, arrays, numbers, texts, "
        "and lists, tuples and dicts of them, such as an object's `state_dict()`."
    )


def _free_name(where: str, taken: Mapping[str, torch.Tensor]) -> str:
    """Return a name that no other tensor has: keys with dots can give two places one name."""
    name, number = where, 1
    while name in taken:
        number += 1
        name = f"{where}#{number}"
    return name


def _check_keys(value: Mapping[Any, Any], where: str) -> None:
    names = [str(key) for key in value]
    for key in value:
        if key is not None and not isinstance(key, (str, int, float, bool)):
            raise CheckpointError(
                f"{where} has a key of type {type(key).__name__}; a checkpoint holds texts and numbers."
            )
    if len(set(names)) < len(names):
        raise CheckpointError(f"{where} has keys with one name, such as 1 and '1': {sorted(names)}; rename one.")


def _is_channels_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def _unpacked(packed: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = ((name, each) for name, each in packed.items() if name != "format")
    if kind == "tensor":
        tensor = tensors[value]
        is_last = packed.get("format") == _CHANNELS_LAST
        return tensor.contiguous(memory_format=torch.channels_last) if is_last else tensor
    if kind == "array":
        return tensors[value].numpy()
    if kind == "dict":
        return {key: _unpacked(each, tensors) for key, each in value}
    if kind == "counter":
        return Counter({key: _unpacked(each, tensors) for key, each in value})
    if kind in {"list", "tuple"}:
        return {"list": list, "tuple": tuple}[kind](_unpacked(each, tensors) for each in value)
    if kind == "float":
        return float(value)
    if kind == "bytes":
        return base64.b64decode(value)
    raise ValueError(f"unknown kind {kind}")
