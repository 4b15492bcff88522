"""Objects of a store in little memory: a listing, the objects to remove, and sets of names."""

import json
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.storage import ObjectInfo

T = TypeVar("T")
_OBJECTS_AT_ONCE = 4096
_COMPRESSION_LEVEL = 1
_MERGE_THRESHOLD = 1 << 20
"""Number of new names, or of merged ones if that is more, from which on they are merged: versions share most names."""


class CompressedRows(Generic[T]):
    """Values in order, iterable several times, some thousands of them compressed together.

    A million objects take some 25 MB: neighbouring names differ little.
    """

    def __init__(self, to_row: Callable[[T], tuple[Any, ...]], from_row: Callable[..., T]) -> None:
        """Create an empty sequence of values that these functions make rows of JSON, and rows values."""
        self._to_row, self._from_row = to_row, from_row
        self._parts: list[bytes] = []
        self._fresh: list[tuple[Any, ...]] = []

    def add(self, value: T) -> None:
        """Append a value."""
        self._fresh.append(self._to_row(value))
        if len(self._fresh) == _OBJECTS_AT_ONCE:
            columns = list(zip(*self._fresh, strict=True))
            self._parts.append(zlib.compress(json.dumps(columns).encode(), _COMPRESSION_LEVEL))
            self._fresh = []

    def __len__(self) -> int:
        return _OBJECTS_AT_ONCE * len(self._parts) + len(self._fresh)

    def __iter__(self) -> Iterator[T]:
        for part in self._parts:
            for row in zip(*json.loads(zlib.decompress(part)), strict=True):
                yield self._from_row(*row)
        for row in self._fresh:
            yield self._from_row(*row)


class ListedObjects:
    """Objects in the order in which a store listed them, iterable several times; name, size and time of each."""

    def __init__(self, found: Iterable[ObjectInfo]) -> None:
        self._rows = CompressedRows[ObjectInfo](
            lambda each: (each.key, each.num_bytes, each.changed),
            lambda key, num_bytes, changed: ObjectInfo(key, num_bytes, "", changed),
        )
        for each in found:
            self._rows.add(each)

    def __iter__(self) -> Iterator[ObjectInfo]:
        return iter(self._rows)


class Joined(Sequence[T]):
    """The values of several collections, end to end; equal to every sequence of equal values."""

    def __init__(self, *parts: "Sequence[T] | CompressedRows[T]") -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, at: Any) -> Any:
        """Return a value, or a tuple of values for a slice; the values before it are passed over."""
        places = range(len(self))[at]
        if isinstance(places, int):
            return next(islice(self, places, None))
        found = list(islice(self, max(places, default=-1) + 1))
        return tuple(found[place] for place in places)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # like a list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} values)"


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
