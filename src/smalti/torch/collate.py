"""From columns to tensors: what a loader does with a batch when nobody asks for samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_TORCH_KINDS = "biufc"


def columns_to_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Numeric arrays become tensors of the same dtype and shape, without a copy where memory may be written.

    Equal-shaped numeric arrays in a list are stacked; everything else (text, bytes, arrays of varying shape) stays
    the list it is.
    """
    return {name: _column(value) for name, value in columns.items()}


def _column(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _TORCH_KINDS:
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    if isinstance(value, list) and value and all(_stacks(row, value[0]) for row in value):
        return torch.from_numpy(np.stack(value))
    return value


def _stacks(row: Any, first: Any) -> bool:
    return (
        isinstance(row, np.ndarray)
        and isinstance(first, np.ndarray)
        and row.dtype == first.dtype
        and row.shape == first.shape
        and row.dtype.kind in _TORCH_KINDS
    )
