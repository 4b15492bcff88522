"""What lies in a store, listed once and gone through several times, in little memory; and a set of very many names.

A million objects take some 25 MB: names in a listing differ little from their neighbours, and are kept compressed.
"""

import json
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.storage import ObjectInfo

_AT_ONCE = 4096
_LEVEL = 1
_MERGED = 1 << 20
"""So many names are sorted together, or as many as there are already: versions share most of theirs."""


class Listing:
    """Objects in the order in which a store told them: name, size and time of each; what else it told is forgotten."""

    def __init__(self, found: Iterable[ObjectInfo]) -> None:
        self._parts: list[bytes] = []
        rest = iter(found)
        while part := list(islice(rest, _AT_ONCE)):
            columns = [[each.key for each in part], [each.num_bytes for each in part], [each.changed for each in part]]
            self._parts.append(zlib.compress(json.dumps(columns).encode(), _LEVEL))

    def __iter__(self) -> Iterator[ObjectInfo]:
        for part in self._parts:
            for key, num_bytes, changed in zip(*json.loads(zlib.decompress(part)), strict=True):
                yield ObjectInfo(key, num_bytes, "", changed)


class Names:
    """A set of names that takes eight bytes for each; once in 2^44 it says of another name that it is one of a million.

    So it is for those who keep what is in it: what is kept for nothing is rare, and what must be kept is.
    """

    def __init__(self, parts: Iterable[Iterable[str]]) -> None:
        marks: NDArray[np.uint64] = np.zeros(0, np.uint64)
        fresh: list[NDArray[np.uint64]] = []
        count = 0
        for part in parts:
            fresh.append(_marks(part))
            count += fresh[-1].size
            if count > max(marks.size, _MERGED):
                marks, fresh, count = np.unique(np.concatenate([marks, *fresh])), [], 0
        marks = np.unique(np.concatenate([marks, *fresh]))
        self._marks = memoryview(marks)

    def __contains__(self, name: object) -> bool:
        mark = _mark(str(name))
        place = bisect_left(self._marks, mark)
        return place < len(self._marks) and self._marks[place] == mark


def _marks(names: Iterable[str]) -> NDArray[np.uint64]:
    return np.fromiter(map(_mark, names), np.uint64)


def _mark(name: str) -> int:
    return xxh3_64_intdigest(name.encode(errors="surrogatepass"))
