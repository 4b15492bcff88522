"""A hash of samples that does not depend on their order, nor on the shards in which they lie.

XXH3-128 of every sample as it is stored, added up modulo 2^128: samples that are added, add their own sum; samples that
move to other shards change nothing. A change of one sample changes the sum, but for a chance of 2^-128. It guards
against mistakes and damage; somebody who wants two sets to look alike can make them so.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from xxhash import xxh3_128_digest

MODULUS = 1 << 128
_AT_ONCE = 1 << 16


def hash_rows(data: memoryview, ends: "Sequence[int] | np.ndarray[Any, np.dtype[np.int64]]") -> int:
    """The sum over the samples that lie back to back in `data`.

    Args:
        data: Bytes that hold the samples.
        ends: Where the first begins, and where each ends; rising.
    """
    total = 0
    for begin in range(0, len(ends) - 1, _AT_ONCE):
        part = ends[begin : begin + _AT_ONCE + 1]
        places = part.tolist() if isinstance(part, np.ndarray) else part
        total += _sum([xxh3_128_digest(data[a:b]) for a, b in pairwise(places)])
    return total % MODULUS


def hash_each(samples: Iterable[bytes]) -> int:
    """The sum over samples that lie apart."""
    return _sum([xxh3_128_digest(sample) for sample in samples]) % MODULUS


def _sum(digests: list[bytes]) -> int:
    """Of digests as numbers, big end first: four columns of 32 bits, whose sums fit 64."""
    words = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 4)
    first, second, third, last = words.sum(axis=0, dtype=np.uint64).tolist()
    return int((first << 96) + (second << 64) + (third << 32) + last)
