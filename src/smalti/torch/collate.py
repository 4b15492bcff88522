"""From columns, or from samples, to tensors: what a loader does with a batch when nobody gave it a `collate_fn`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from smalti.format.logical import MASK_SUFFIX

_TORCH_KINDS = "biufc"
_TIMES = "Mm"


def columns_to_tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Numeric arrays become tensors of the same dtype and shape, without a copy where memory may be written.

    Equal-shaped numeric arrays in a list are stacked; everything else (text, bytes, arrays of varying shape) stays
    the list it is. Times and spans of time become int64, in the unit that they have: torch has no type for them. Of a
    column `age` with nulls, a bool tensor `age__is_null` says which values mean nothing.
    """
    tensors: dict[str, Any] = {}
    for name, value in columns.items():
        tensors[name] = _column(value)
        if isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            tensors[name + MASK_SUFFIX] = torch.from_numpy(mask.reshape(len(mask), -1).all(axis=1))
    return tensors


def collate_samples(samples: Sequence[Any]) -> Any:
    """What torch's `default_collate` makes of samples, with times and spans of time as int64 tensors."""
    return collate(samples, collate_fn_map=_COLLATE)


def _column(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _TORCH_KINDS + _TIMES:
        return _tensor(np.ma.getdata(value))
    if isinstance(value, list) and value and all(_stacks(row, value[0]) for row in value):
        return _tensor(np.stack(value))
    return value


def _tensor(array: "np.ndarray[Any, Any]") -> torch.Tensor:
    if array.dtype.kind in _TIMES:
        array = array.view(np.int64)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _stacks(row: Any, first: Any) -> bool:
    return (
        isinstance(row, np.ndarray)
        and isinstance(first, np.ndarray)
        and row.dtype == first.dtype
        and row.shape == first.shape
        and row.dtype.kind in _TORCH_KINDS + _TIMES
    )


def _times(samples: Sequence[Any], *, collate_fn_map: Any = None) -> torch.Tensor:  # noqa: ARG001 - torch's signature
    return _tensor(np.array(samples))


_COLLATE: dict[Any, Any] = {**default_collate_fn_map, np.datetime64: _times, np.timedelta64: _times}
