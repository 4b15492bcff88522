"""Many values at once out of one mapped shard: where each lies, and copies of the fixed-size ones, without a loop."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.errors import FormatError
from smalti.format.layout import OFFSET, Offsets

Int64s = np.ndarray[Any, "np.dtype[np.int64]"]
Bytes = np.ndarray[Any, "np.dtype[np.uint8]"]


@dataclass(frozen=True)
class Cells:
    """Where the values of one column lie in the file: int64, shape (n,) each; the ends are exclusive."""

    begin: Int64s
    end: Int64s


def gather(data: Bytes, begin: Int64s, dtype: "np.dtype[Any]") -> np.ndarray[Any, Any]:
    """The items of `dtype` that start at these bytes, in a fresh array of shape (n,).

    Every place must have been checked: `begin + itemsize <= len(data)`.
    """
    if not len(begin) or not dtype.itemsize:
        return np.empty(len(begin), dtype)
    # One item at every byte of the file, overlapping: picking from this view is a copy of exactly the wanted bytes.
    view: np.ndarray[Any, Any] = np.ndarray((len(data) - dtype.itemsize + 1,), dtype, data, strides=(1,))
    return view[begin]


def locate(data: Bytes, offsets: Offsets, indices: Int64s, sizes: tuple[int | None, ...], *, what: str) -> list[Cells]:
    """The places of every column's values for these samples, all inside their samples.

    Args:
        data: The whole file, uint8.
        offsets: Its checked table of offsets.
        indices: Samples, int64, shape (n,), each in [0, N).
        sizes: Column sizes; None where a length stands in front of the sample.
        what: The file's name, for messages.

    Raises:
        FormatError: A sample is shorter than its columns need; padding behind the last column is allowed.
    """
    begin, end = offsets[indices].astype(np.int64), offsets[indices + 1].astype(np.int64)
    num_lengths = sum(size is None for size in sizes)
    place = begin + 4 * num_lengths
    _check_inside(place, end, indices, what)
    heads = gather(data, begin, np.dtype((np.void, 4 * num_lengths))).view(OFFSET).reshape(len(begin), num_lengths)
    cells, variable = [], 0
    for size in sizes:
        if size is None:
            after = place + heads[:, variable].astype(np.int64)
            variable += 1
        else:
            after = place + size
        cells.append(Cells(place, after))
        place = after
    _check_inside(place, end, indices, what)
    return cells


def _check_inside(place: Int64s, end: Int64s, indices: Int64s, what: str) -> None:
    bad = place > end
    if bad.any():
        at = int(np.argmax(bad))
        raise FormatError(
            f"{what}, sample {int(indices[at])}: its columns need {int(place[at] - end[at])} bytes more than it has; "
            "the shard is damaged. Fetch it again, or run the writer again.",
            sample=int(indices[at]),
        )
