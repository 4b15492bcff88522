"""Columns as tensors, with Petastorm's promotions of types; torch is needed from here on."""

from collections.abc import Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from smalti.compat.petastorm.values import Columns, rows_of

_PROMOTED = {np.dtype(np.uint16): np.int32, np.dtype(np.uint32): np.int64, np.dtype(np.bool_): np.uint8}
_LISTED = (str, bytes, Decimal)


def tensor_columns(columns: Columns) -> dict[str, Any]:
    """Numbers as tensors, without a copy; text, bytes and decimals as lists.

    Raises:
        TypeError: a column holds None, values of different shapes, or what torch has no type for.
    """
    return {name: _column(name, values) for name, values in columns.items()}


def numbers_only(columns: Columns, make: Any) -> dict[str, Any]:
    """The columns as `make` turns arrays into tensors.

    Raises:
        TypeError: a column is not made of numbers.
    """
    for name, values in columns.items():
        if values.dtype.kind not in "biufc":
            raise TypeError(
                f"column {name!r} holds {values.dtype}; this loader hands over numbers alone: use DataLoader."
            )
    return {name: make(_promoted(values)) for name, values in columns.items()}


def sample_dicts(columns: Columns) -> list[dict[str, Any]]:
    """The rows one by one, for a `collate_fn` of the user's own.

    Raises:
        TypeError: a column holds None.
    """
    for name, values in columns.items():
        _refuse_none(name, values)
    promoted = {name: _promoted(values) for name, values in columns.items()}
    return [{name: values[row] for name, values in promoted.items()} for row in range(rows_of(columns))]


def decimal_friendly_collate(batch: Sequence[Any]) -> Any:
    """What torch's `default_collate` makes of rows, with text, bytes and decimals left as lists."""
    first = batch[0]
    if isinstance(first, dict):
        return {name: decimal_friendly_collate([row[name] for row in batch]) for name in first}
    return list(batch) if isinstance(first, _LISTED) else default_collate(list(batch))


def _column(name: str, values: np.ndarray[Any, Any]) -> Any:
    if values.dtype.kind in "biufc":
        return torch.from_numpy(_promoted(values))
    _refuse_none(name, values)
    if values.dtype.kind in "US" or (values.size and isinstance(values.flat[0], _LISTED)):
        return values.tolist()
    if not values.size:
        return []
    raise TypeError(f"column {name!r} cannot become a tensor: {_what(values)}. Change it in a TransformSpec.")


def _promoted(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wanted = _PROMOTED.get(values.dtype)
    if wanted is not None:
        return values.astype(wanted)
    return values if values.flags.writeable else values.copy()


def _refuse_none(name: str, values: np.ndarray[Any, Any]) -> None:
    if values.dtype == object and any(value is None for value in values.flat):
        raise TypeError(
            f"column {name!r} holds None, and torch has no such value: leave those rows out with `filters=[[({name!r}, "
            "'!=', None)]]` or a predicate, or fill them in a TransformSpec or in Spark."
        )


def _what(values: np.ndarray[Any, Any]) -> str:
    if values.dtype.kind in "mM":
        return f"it holds times ({values.dtype})"
    first = values.flat[0]
    if isinstance(first, np.ndarray):
        shapes = sorted({value.shape for value in values.flat})
        return f"its rows have different shapes, such as {shapes[0]} and {shapes[-1]}"
    if isinstance(first, date | time | timedelta):
        return f"it holds times ({type(first).__name__})"
    return f"it holds Python objects ({type(first).__name__})"
