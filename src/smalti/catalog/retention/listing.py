"""Memory-saving containers: a listing of a store that can be iterated several times, and a set of very many names.

A listing of a million objects takes some 25 MB: neighbouring names differ little, and are kept compressed.
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

_OBJECTS_AT_ONCE = 4096
_COMPRESSION_LEVEL = 1
_MERGE_THRESHOLD = 1 << 20
"""Number of new names, or of merged ones if that is more, from which on they are merged: versions share most names."""


class Listing:
    """Objects in the order in which a store listed them: name, size and time of each; other facts are dropped."""

    def __init__(self, found: Iterable[ObjectInfo]) -> None:
        self._parts: list[bytes] = []
        rest = iter(found)
        while part := list(islice(rest, _OBJECTS_AT_ONCE)):
            columns = [[each.key for each in part], [each.num_bytes for each in part], [each.changed for each in part]]
            self._parts.append(zlib.compress(json.dumps(columns).encode(), _COMPRESSION_LEVEL))

    def __iter__(self) -> Iterator[ObjectInfo]:
        for part in self._parts:
            for key, num_bytes, changed in zip(*json.loads(zlib.decompress(part)), strict=True):
                yield ObjectInfo(key, num_bytes, "", changed)


class Names:
    """A set of names with eight bytes per name and rare false positives: 1 in 2^44 for a set of a million names.

    Use it for names of objects to keep: a false positive keeps an object that could have been removed.
    """

    def __init__(self, parts: Iterable[Iterable[str]]) -> None:
        merged: NDArray[np.uint64] = np.zeros(0, np.uint64)
        fresh: list[NDArray[np.uint64]] = []
        count = 0
        for part in parts:
            fresh.append(np.fromiter(map(_hash, part), np.uint64))
            count += fresh[-1].size
            if count > max(merged.size, _MERGE_THRESHOLD):
                merged, fresh, count = np.unique(np.concatenate([merged, *fresh])), [], 0
        self._hashes = memoryview(np.unique(np.concatenate([merged, *fresh])))

    def __contains__(self, name: object) -> bool:
        mark = _hash(str(name))
        place = bisect_left(self._hashes, mark)
        return place < len(self._hashes) and self._hashes[place] == mark


def _hash(name: str) -> int:
    return xxh3_64_intdigest(name.encode(errors="surrogatepass"))
