"""Vectors of Spark ML and MLlib, dense and sparse, as lists of all their numbers."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smalti.errors import SchemaError

_MAX_NUMBERS = 1 << 27
"""In one batch: a gigabyte. Sparse vectors of a million numbers are not to be written out by the ten thousand."""
Array = np.ndarray[Any, Any]


def dense_vectors(array: pa.StructArray) -> pa.LargeListArray:
    """Each vector as the list of its numbers; a null stays a null.

    Args:
        array: structs of type (0 sparse, 1 dense), size, indices and values, as Spark hands vectors over.

    Raises:
        SchemaError: a sparse vector that contradicts itself, or a batch whose vectors take too much memory.
    """
    is_null = np.asarray(array.is_null())
    kinds, sizes, indices, values = array.flatten()
    num_values = _filled(values.value_lengths())
    is_sparse = (_filled(kinds) == 0) & ~is_null
    lengths = np.where(is_sparse, _filled(sizes), num_values)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if ends[-1] > _MAX_NUMBERS:
        row = int(np.argmax(lengths))
        raise SchemaError(
            f"the vectors of one batch have {ends[-1]} numbers with the zeros of sparse ones, over {_MAX_NUMBERS}: "
            "store indices and values as two array columns.",
            row=row,
        )
    owners = np.repeat(np.arange(len(array)), num_values)
    within = np.arange(len(owners)) - np.repeat(np.cumsum(num_values) - num_values, num_values)
    places = ends[owners] + within
    of_sparse = is_sparse[owners]
    places[of_sparse] = ends[owners[of_sparse]] + _indices(indices, is_sparse, num_values, lengths)
    numbers = np.zeros(int(ends[-1]))
    numbers[places] = values.flatten().to_numpy(zero_copy_only=False)
    mask = pa.array(is_null) if is_null.any() else None
    return pa.LargeListArray.from_arrays(pa.array(ends.astype(np.int64)), pa.array(numbers), mask=mask)


def _indices(indices: pa.ListArray, is_sparse: Array, num_values: Array, lengths: Array) -> Array:
    """The places of all values of the sparse vectors within them, one vector behind the other."""
    num_indices = np.where(is_sparse, _filled(indices.value_lengths()), 0)
    wrong = is_sparse & (num_indices != num_values)
    if not wrong.any():
        chosen = indices.filter(pa.array(is_sparse)).flatten().to_numpy(zero_copy_only=False).astype(np.int64)
        owners = np.repeat(np.arange(len(lengths)), num_indices)
        wrong[owners[(chosen < 0) | (chosen >= lengths[owners])]] = True
        if not wrong.any():
            places: Array = chosen
            return places
    raise SchemaError("a sparse vector whose indices and values contradict each other.", row=int(np.argmax(wrong)))


def _filled(numbers: pa.Array) -> Array:
    found: Array = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
