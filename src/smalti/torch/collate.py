"""From columns, or from samples, to tensors: what a loader does with a batch when nobody gave it a `collate_fn`.

Whether batches by column can be made of streams whose columns differ; said before the first step is taken.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from smalti.dataset.order import Reading
from smalti.errors import SchemaError
from smalti.format.logical import MASK_SUFFIX
from smalti.stream import ShardSet

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


def check_batches(reading: Reading, sets: Sequence[ShardSet]) -> None:
    """Return only if no batch at either end of the pass mixes streams with other columns.

    What makes no whole batch of one stream stands at an epoch's end: less than one batch of each stream. So as many
    steps as there are streams, and one, are planned at both ends; in a set of streams that are alike, none.

    Args:
        reading: one rank's part of the pass.
        sets: the streams.

    Raises:
        SchemaError: a batch mixes them; it says which streams, at which step, and what to do.
    """
    kinds: dict[tuple[Any, ...], int] = {}
    kind_of = np.array([kinds.setdefault((each.logical, *sorted(each.columns.items())), len(kinds)) for each in sets])
    if len(kinds) < 2:
        return
    ends = np.cumsum([each.num_samples for each in sets])
    count, looked_at = reading.division.num_steps, len(sets) + 1
    for first, stop in ((0, looked_at), (max(looked_at, count - looked_at), count)):
        for step, ids in reading.steps(first, stop):
            streams = np.unique(np.searchsorted(ends, ids, side="right"))
            if np.unique(kind_of[streams]).size > 1:
                raise _mixed(sets, streams.tolist(), kind_of[streams].tolist(), step.step, count)


def _columns(its: ShardSet) -> dict[str, Any]:
    """Column to encoding, and to logical type where values are given as what they stand for."""
    return its.columns | dict(its.logical.types if its.logical is not None else {})


def _mixed(sets: Sequence[ShardSet], streams: list[int], kinds: list[int], step: int, count: int) -> SchemaError:
    one, other = streams[0], next(stream for stream, kind in zip(streams, kinds, strict=True) if kind != kinds[0])
    columns = [_columns(sets[stream]) for stream in (one, other)]
    return SchemaError(
        f"streams {one} ({sets[one].options.root}) and {other} ({sets[other].options.root}) have different columns, "
        f"{columns[0]} and {columns[1]}, and step {step} of {count} holds samples of both. Use "
        "`batching_method='per_stream'`, with weights and an `epoch_size` by which each stream gives a multiple of the "
        "global batch (what is left of each is mixed at the epoch's end); or read by sample, with a `collate_fn`.",
        streams=(one, other),
        step=step,
    )
