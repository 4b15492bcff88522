"""The rules of vacuum: which versions are kept, and which listed objects are removed. Pure; this module does no I/O.

An object is removed only if all of this holds; in any doubt it stays:
- its name is one that Smalti's writers use, below a write id that a version or a marker names, or in `_versions/`;
- no version that is kept needs it;
- it is older than the limit, by the store's own times;
- its write was published, or everything of its write, including the marker, is older than the limit.

The rules for versions are in `keeps_version`, those for objects in `decide`.

Also here: objects of a store in little memory, as a listing, the objects to remove, and sets of names.
"""

import json
import re
import zlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from smalti.catalog.manifest import FOLDER, SEGMENT_LIST_SUFFIX
from smalti.catalog.retention.markers import write_id_of
from smalti.storage import ObjectInfo, UnfinishedUpload

T = TypeVar("T")
_OBJECTS_AT_ONCE = 4096
_COMPRESSION_LEVEL = 1
_MERGE_THRESHOLD = 1 << 20
"""Number of new names, or of merged ones if that is more, from which on they are merged: versions share most names."""
_TABLE = re.compile(rf"{FOLDER}/([0-9a-f]{{64}})[^/]*(?:\.arrow|{re.escape(SEGMENT_LIST_SUFFIX)})")
_PROBE = re.compile(rf"{FOLDER}/probe-[0-9a-f]{{16}}")
_CATALOG = re.compile(rf"(?:[^/]+/)?index\.json|{FOLDER}/\d{{8,}}\.json|{FOLDER}/tags/[^/]+\.json")
_WRITTEN = re.compile(
    r"shard\.\d{5,}\.[a-z]+(\.[a-z0-9.]+)?|[^/]+\.(?:arrow|parquet)|(?:conversion|part-\d{5,})\.json"
    r"|blocks\.\d{5,}\.xxh3",
    re.ASCII,
)


def keeps_version(
    version: int, *, newest: int, is_tagged: bool, is_expired: bool, superseded: float | None, cutoff: float
) -> bool:
    """Return whether a vacuum keeps a version: the newest, one with a tag, or one that was the newest recently.

    Args:
        version: Its number.
        newest: The number of the newest version, which a vacuum may have published.
        is_tagged: It has a tag.
        is_expired: An earlier vacuum has removed it.
        superseded: Time when the next version was published, by the store's clock; None if after the listing.
        cutoff: Times from here on are recent.
    """
    was_newest_recently = not is_expired and (superseded is None or superseded >= cutoff)
    return version == newest or is_tagged or was_newest_recently


class Why(Enum):
    """The reason for which an object is removed, or stays."""

    EXPIRED = "of a version that is no longer kept"
    ORPHAN = "of a write that was never published"
    LEFTOVER = "left over by a write, and named by no version"
    LIVE = "a version that is kept needs it"
    CATALOG = "the versions, tags and index files themselves"
    YOUNG = "younger than the limit"
    IN_PROGRESS = "of a write that may still go on"
    FOREIGN = "not of Smalti's making"


REMOVED = frozenset({Why.EXPIRED, Why.ORPHAN, Why.LEFTOVER})


@dataclass(frozen=True)
class Doomed:
    """One object that may be removed."""

    key: str
    num_bytes: int
    why: Why


@dataclass(frozen=True)
class SetFacts:
    """The facts that the headers and tables of the set provide."""

    published: Collection[str]
    """Write ids of all versions, including expired ones."""
    live: Container[str]
    """Keys that the kept versions need."""
    expired: Collection[str]
    """Write ids of versions that are not kept."""
    condemned: Collection[str] = ()
    """Published write ids and digests of tables of which everything goes that no kept version needs, also what is
    young: a purge of deleted samples does not wait for readers."""


def decide(info: ObjectInfo, owner: str | None, youngest: float, known: SetFacts, cutoff: float) -> Why:
    """Return the reason for which a listed object is removed, or stays: the first that applies.

    Args:
        info: The object.
        owner: Write id of the writer that put it; None if no writer of Smalti's did.
        youngest: Time of the youngest object of the same write, unfinished uploads included.
        known: The facts of the set.
        cutoff: Objects put before this time are old.
    """
    if info.key in known.live:
        return Why.LIVE
    if _CATALOG.fullmatch(info.key):
        return Why.CATALOG
    if not is_ours(info.key, owner):
        return Why.FOREIGN
    if is_condemned(info.key, owner, known):
        return Why.EXPIRED
    if time_of(info) >= cutoff:
        return Why.YOUNG
    if owner is None or write_id_of(info.key) in known.published:  # tables, probes, markers of published writes
        return Why.LEFTOVER
    if owner in known.expired:
        return Why.EXPIRED
    if owner in known.published:  # such as those of failed tasks
        return Why.LEFTOVER
    return Why.IN_PROGRESS if youngest >= cutoff else Why.ORPHAN


def is_ours(key: str, owner: str | None) -> bool:
    """Return whether Smalti wrote an object."""
    return owner is not None or bool(_TABLE.fullmatch(key) or _PROBE.fullmatch(key))


def is_condemned(key: str, owner: str | None, known: SetFacts) -> bool:
    """Return whether a purge removes an object that no kept version needs."""
    table = _TABLE.fullmatch(key)
    return (owner if table is None else table[1]) in known.condemned


@dataclass(frozen=True)
class Sweep:
    """The objects to remove, in order, and the number of objects that stay for each reason."""

    doomed: Sequence[Doomed]
    kept: Mapping[Why, int]
    fences: tuple[str, ...]
    """Write ids, published or not, and digests of tables, that lose objects."""
    shown: frozenset[str]
    """Write ids and digests of tables that have objects in the listing."""


def sweep(
    listing: Iterable[ObjectInfo], known: SetFacts, cutoff: float, unfinished: Iterable[UnfinishedUpload] = ()
) -> Sweep:
    """Decide which of the listed objects may be removed.

    The listing is iterated three times; nothing is remembered of objects that stay. Objects last put before `cutoff`,
    in seconds by the store's clock, are old. A writer with a young upload in `unfinished` is running.
    """
    writes = writes_of(listing, known.published)
    youngest: dict[str, float] = {}
    shown: set[str] = set()
    for info in listing:
        owner, name = owner_of(info.key, writes), _fence_of(info.key, writes)
        if owner is not None:
            youngest[owner] = max(youngest.get(owner, 0.0), time_of(info))
        if name is not None:
            shown.add(name)
    for upload in unfinished:
        owner = owner_of(upload.key, writes)
        if owner is not None:
            youngest[owner] = max(youngest.get(owner, 0.0), upload.begun)
    removed = CompressedRows[Doomed](_row_of, _doomed_of)
    fences: set[str] = set()
    kept: dict[Why, int] = {}
    for info in listing:
        owner = owner_of(info.key, writes)
        why = decide(info, owner, 0.0 if owner is None else youngest[owner], known, cutoff)
        if why not in REMOVED:
            kept[why] = kept.get(why, 0) + 1
            continue
        doomed = Doomed(info.key, info.num_bytes, why)
        if (fence := _fence_of(info.key, writes)) is not None:
            fences.add(fence)
        if _TABLE.fullmatch(info.key):  # first, so that a half-removed version cannot be opened
            removed.first.append(doomed)
        elif write_id_of(info.key) is not None:  # last: they identify the rest
            removed.last.append(doomed)
        else:
            removed.add(doomed)
    for few in (removed.first, removed.last):
        few.sort(key=attrgetter("key"))
    return Sweep(removed, kept, fences=tuple(sorted(fences)), shown=frozenset(shown))


def _row_of(each: Doomed) -> tuple[str, int, str]:
    return each.key, each.num_bytes, each.why.name


def _doomed_of(key: str, num_bytes: int, why: str) -> Doomed:
    return Doomed(key, num_bytes, Why[why])


def writes_of(listing: Iterable[ObjectInfo], published: Iterable[str]) -> set[str]:
    """Return every write id that a version or a marker names."""
    return {*published, *(write_id for info in listing if (write_id := write_id_of(info.key)) is not None)}


def old_uploads(
    found: Iterable[UnfinishedUpload], writes: Collection[str], cutoff: float
) -> tuple[UnfinishedUpload, ...]:
    """Return the uploads begun before `cutoff` by a writer of one of these write ids, and all old temporary files."""
    return tuple(
        each for each in found if each.begun < cutoff and (each.is_temporary or owner_of(each.key, writes) is not None)
    )


def owner_of(key: str, writes: Collection[str]) -> str | None:
    """Return the write id whose writer put this object; None if no writer of Smalti's did."""
    marked = write_id_of(key)
    if marked is not None:
        return marked
    *folders, name = key.split("/")
    owner = next((folder for folder in folders[:2] if folder in writes), None)
    return owner if owner is not None and _WRITTEN.fullmatch(name) else None


def table_digest(key: str) -> str:
    """Return the digest in the key of a shard table, a segment or a list of segments."""
    table = _TABLE.fullmatch(key)
    return key if table is None else table[1]


def _fence_of(key: str, writes: Collection[str]) -> str | None:
    """Return the entry in a header's `fenced` that prevents versions from naming this object again.

    Writes that were published have one too: a copy could bring their shards back.
    """
    table = _TABLE.fullmatch(key)
    return table[1] if table is not None else owner_of(key, writes)


def time_of(info: ObjectInfo) -> float:
    """Return the time when the object was put; infinity if it is unknown, so that the object is never old."""
    return float("inf") if info.changed is None else info.changed


class CompressedRows(Sequence[T]):
    """Values in order, iterable several times, some thousands of them compressed together.

    A million objects take some 25 MB: neighbouring names differ little. Equal to every sequence of equal values.
    """

    def __init__(self, to_row: Callable[[T], tuple[Any, ...]], from_row: Callable[..., T]) -> None:
        """Create an empty sequence of values that these functions make rows of JSON, and rows values."""
        self.first: list[T] = []
        """A few values before those that were added."""
        self.last: list[T] = []
        """A few values after them."""
        self._to_row, self._from_row = to_row, from_row
        self._parts: list[bytes] = []
        self._fresh: list[tuple[Any, ...]] = []

    def add(self, value: T) -> None:
        """Append a value to those that were added."""
        self._fresh.append(self._to_row(value))
        if len(self._fresh) == _OBJECTS_AT_ONCE:
            columns = list(zip(*self._fresh, strict=True))
            self._parts.append(zlib.compress(json.dumps(columns).encode(), _COMPRESSION_LEVEL))
            self._fresh = []

    def __len__(self) -> int:
        return len(self.first) + _OBJECTS_AT_ONCE * len(self._parts) + len(self._fresh) + len(self.last)

    def __iter__(self) -> Iterator[T]:
        yield from self.first
        for part in self._parts:
            for row in zip(*json.loads(zlib.decompress(part)), strict=True):
                yield self._from_row(*row)
        for row in self._fresh:
            yield self._from_row(*row)
        yield from self.last

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


def listed_objects(found: Iterable[ObjectInfo]) -> CompressedRows[ObjectInfo]:
    """Return objects in the order in which a store listed them, iterable several times; name, size and time of each."""
    rows = CompressedRows[ObjectInfo](
        lambda each: (each.key, each.num_bytes, each.changed),
        lambda key, num_bytes, changed: ObjectInfo(key, num_bytes, "", changed),
    )
    for each in found:
        rows.add(each)
    return rows


class Names:
    """A set of names with eight bytes per name and rare false positives: 1 in 2^44 for a set of a million names.

    Use it for names of objects to keep: a false positive keeps an object that could have been removed.
    """

    def __init__(self, parts: Iterable[Iterable[str]]) -> None:
        merged: NDArray[np.uint64] = np.zeros(0, np.uint64)
        fresh: list[NDArray[np.uint64]] = []
        count = 0
        for part in parts:
            fresh.append(np.fromiter(map(_name_hash, part), np.uint64))
            count += fresh[-1].size
            if count > max(merged.size, _MERGE_THRESHOLD):
                merged, fresh, count = np.unique(np.concatenate([merged, *fresh])), [], 0
        self._hashes = memoryview(np.unique(np.concatenate([merged, *fresh])))

    def __contains__(self, name: object) -> bool:
        mark = _name_hash(str(name))
        place = bisect_left(self._hashes, mark)
        return place < len(self._hashes) and self._hashes[place] == mark


def _name_hash(name: str) -> int:
    return xxh3_64_intdigest(name.encode(errors="surrogatepass"))
