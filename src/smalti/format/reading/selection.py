"""Indexing: integers, slices, lists and arrays of sample numbers, checked. Knows no shards."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.format.encodings.encoding import Array


def pick(at: Any, size: int, get: Callable[[int], Any], what: str) -> Any:
    """Return what `get` returns for an integer, or lists of it for more than one, nested as `at` is.

    Args:
        at: An integer, negative ones count from the end; a slice; a list, perhaps of lists; an array of integers.
        size: Number of samples.
        get: Takes a number in [0, size).
        what: The thing that is indexed, for messages.

    Raises:
        IndexError: No such number.
        ValueError: `at` is something else.
    """
    if isinstance(at, int | np.integer) and not isinstance(at, bool):
        number = operator.index(at)
        if not -size <= number < size:
            there = f"samples 0 to {size - 1}" if size else "no samples"
            raise IndexError(f"sample {number} of {what}: it has {there}.")
        return get(number % size)
    if isinstance(at, slice):
        return [get(number) for number in range(*at.indices(size))]
    if isinstance(at, np.ndarray) and at.ndim and (at.dtype.kind in "iu" or not at.size):
        at = at.tolist()
    if isinstance(at, list):
        return [pick(item, size, get, what) for item in at]
    raise ValueError(
        f"{what} takes an integer, a slice, or lists or arrays of integers, found {type(at).__name__}"
        + (f" of {at.dtype}" if isinstance(at, np.ndarray) else "")
        + "."
    )


def check_rows(indices: Array, size: int, what: str) -> Array:
    """Return the sample numbers as an integer array of shape (n,).

    Args:
        indices: What the caller passed; negative numbers are refused.
        size: Number of samples.
        what: The thing that is indexed, for messages.

    Raises:
        IndexError: Another shape or type, or a number outside [0, size).
    """
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise IndexError(
            f"expected a one-dimensional array of sample numbers, found {rows.dtype} of shape {rows.shape}"
        )
    if rows.size and not (rows.min() >= 0 and rows.max() < size):
        raise IndexError(f"samples {rows.min()} to {rows.max()} of {size} in {what}")
    return rows
