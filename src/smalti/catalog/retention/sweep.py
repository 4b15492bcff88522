"""Which objects of a set nobody needs any more: pure reasoning over a listing and what the headers say, no I/O.

An object is removed only if all of this holds; whatever is in doubt stays:
- its name is one that Smalti's writers give, below a write id that a version or a marker names, or in `_versions/`;
- no version that is kept needs it;
- it is older than the limit, by the store's own times;
- it is of a write that was published, or of one of which everything, its marker too, is older than the limit.

How old objects are by the store's own clock, and how old they must be before a clean-up removes them.
"""

import re
import secrets
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from smalti.catalog.header import FOLDER
from smalti.catalog.retention.markers import write_id_of
from smalti.errors import CatalogError, StoreError
from smalti.storage import ObjectInfo, Store, UnfinishedUpload

LEAST_SECONDS = 7 * 86400.0
"""Writers and readers may be at work for days: what is younger is left alone, unless somebody insists."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_age(age: str | float) -> float:
    """Seconds, of a number or of text such as "7d", "36h", "90m", "2w".

    Raises:
        CatalogError: it is neither.
    """
    if isinstance(age, int | float) and not isinstance(age, bool) and 0 <= age < float("inf"):
        return float(age)
    match = _AGE.fullmatch(age.strip()) if isinstance(age, str) else None
    if match is None:
        raise CatalogError(f'expected an age such as "7d", "36h" or a number of seconds, found {age!r:.60}')
    return float(match[1]) * _UNITS[match[2]]


def checked_limit(older_than: str | float, *, whose: str, unsafe_ttl: bool) -> float:
    """The age in seconds from which on something may go.

    Args:
        older_than: As for `parse_age`.
        whose: Who may still be at work, such as "writer or reader", for the message.
        unsafe_ttl: Allow less than `LEAST_SECONDS`.

    Raises:
        CatalogError: it is no age, or less than that.
    """
    limit = parse_age(older_than)
    if limit < LEAST_SECONDS and not unsafe_ttl:
        raise CatalogError(
            f"`older_than` is {limit / 86400:.2g} days; less than {LEAST_SECONDS / 86400:.0f} may remove what a slow "
            f"{whose} still needs. Say `unsafe_ttl` if nobody is at work there"
        )
    return limit


@contextmanager
def probe_in(store: Store, folder: str) -> Iterator[str]:
    """The key of a small object that lies in the folder while the block lists it: its time is the store's own now."""
    key = f"{folder}/probe-{secrets.token_hex(8)}"
    store.put(key, b"what time is it?")
    try:
        yield key
    finally:
        with suppress(StoreError):  # a later clean-up removes it
            store.delete(key)


def told_time(store: Store, changed: float | None) -> float:
    """The time of a probe, as it was listed.

    Raises:
        CatalogError: the store did not tell any.
    """
    if changed is None:
        raise CatalogError(
            f"{store.url}: this store does not tell when its objects were put, so that nothing can be called old"
        )
    return changed


def time_of(info: ObjectInfo) -> float:
    """When the object was put; what nobody knows the age of is young for ever."""
    return float("inf") if info.changed is None else info.changed


_TABLE = re.compile(rf"{FOLDER}/([0-9a-f]{{64}})[^/]*\.arrow")
_PROBE = re.compile(rf"{FOLDER}/probe-[0-9a-f]{{16}}")
_CATALOG = re.compile(rf"(?:[^/]+/)?index\.json|{FOLDER}/\d{{8,}}\.json|{FOLDER}/tags/[^/]+\.json")
_WRITTEN = re.compile(r"shard\.\d{5,}\.[a-z]+(\.[a-z0-9.]+)?|[^/]+\.arrow", re.ASCII)


class Why(Enum):
    """Why an object goes, or stays."""

    EXPIRED = "of a version that is no longer kept"
    ORPHAN = "of a write that was never published"
    LEFTOVER = "left over by a write, and named by no version"
    LIVE = "a version that is kept needs it"
    CATALOG = "the versions, tags and index files themselves"
    YOUNG = "younger than the limit"
    IN_PROGRESS = "of a write that may still go on"
    FOREIGN = "not of Smalti's making"


@dataclass(frozen=True)
class Doomed:
    """One object that may go."""

    key: str
    num_bytes: int
    why: Why


@dataclass(frozen=True)
class Known:
    """What the set says about itself."""

    published: Collection[str]
    """Write ids of all versions there ever were."""
    live: Container[str]
    """Keys that the kept versions need."""
    expired: Collection[str]
    """Write ids of versions that are not kept."""
    remembered: Collection[str]
    """Write ids that cannot be published again, since the newest version knows them."""


@dataclass(frozen=True)
class Sweep:
    """What may go, in the order in which it should, and how many objects stay for which reason."""

    doomed: tuple[Doomed, ...]
    kept: Mapping[Why, int]
    fences: tuple[str, ...]
    """Write ids that could still be published, and digests of tables, of which something goes."""
    shown: frozenset[str]
    """Write ids and digests of tables of which the listing shows something."""


def sweep(
    listing: Iterable[ObjectInfo], known: Known, cutoff: float, unfinished: Iterable[UnfinishedUpload] = ()
) -> Sweep:
    """Decide which of the objects listed may go.

    The listing is gone through three times; what is remembered of an object that stays is nothing.

    Args:
        listing: All objects of the set.
        known: What the set says about itself.
        cutoff: What was last put before it is old; seconds by the store's clock.
        unfinished: Uploads that were not ended: a writer with a young one is at work.
    """
    writes = writes_of(listing, known.published)
    youngest: dict[str, float] = {}
    shown: set[str] = set()
    for info in listing:
        owner, name = _owner(info.key, writes), _fenced_by(info.key, writes)
        if owner is not None:
            youngest[owner] = max(youngest.get(owner, 0.0), time_of(info))
        if name is not None:
            shown.add(name)
    for upload in unfinished:
        owner = _owner(upload.key, writes)
        if owner is not None:
            youngest[owner] = max(youngest.get(owner, 0.0), upload.begun)
    doomed: list[Doomed] = []
    kept: dict[Why, int] = {}
    for info in listing:
        owner = _owner(info.key, writes)
        why = _why(info, owner, known, cutoff)
        if why is Why.ORPHAN and owner is not None and youngest[owner] >= cutoff:
            why = Why.IN_PROGRESS
        if why in {Why.EXPIRED, Why.ORPHAN, Why.LEFTOVER}:
            doomed.append(Doomed(info.key, info.num_bytes, why))
        else:
            kept[why] = kept.get(why, 0) + 1
    return Sweep(
        doomed=tuple(sorted(doomed, key=_turn)),
        kept=kept,
        fences=_fences(doomed, writes, known),
        shown=frozenset(shown),
    )


def writes_of(listing: Iterable[ObjectInfo], published: Iterable[str]) -> set[str]:
    """Every write id that a version or a marker names."""
    return {*published, *(write_id for info in listing if (write_id := write_id_of(info.key)) is not None)}


def old_uploads(
    found: Iterable[UnfinishedUpload], writes: Collection[str], cutoff: float
) -> tuple[UnfinishedUpload, ...]:
    """Return the uploads begun before `cutoff` by a writer of one of these write ids, and all old temporary files."""
    return tuple(
        each for each in found if each.begun < cutoff and (each.is_temporary or _owner(each.key, writes) is not None)
    )


def _why(info: ObjectInfo, owner: str | None, known: Known, cutoff: float) -> Why:
    if info.key in known.live:
        return Why.LIVE
    if _CATALOG.fullmatch(info.key):
        return Why.CATALOG
    is_table = _TABLE.fullmatch(info.key) is not None
    if owner is None and not is_table and not _PROBE.fullmatch(info.key):
        return Why.FOREIGN
    if time_of(info) >= cutoff:
        return Why.YOUNG
    if owner is None or write_id_of(info.key) in known.published:
        return Why.LEFTOVER
    if owner in known.expired:
        return Why.EXPIRED
    return Why.LEFTOVER if owner in known.published else Why.ORPHAN


def _owner(key: str, writes: Collection[str]) -> str | None:
    """The write id whose writer put this object; None for what no writer of ours put."""
    marked = write_id_of(key)
    if marked is not None:
        return marked
    *folders, name = key.split("/")
    owner = next((folder for folder in folders[:2] if folder in writes), None)
    return owner if owner is not None and _WRITTEN.fullmatch(name) else None


def _fenced_by(key: str, writes: Collection[str]) -> str | None:
    """What in a header's `fenced` keeps anybody from naming this object again."""
    table = _TABLE.fullmatch(key)
    return table[1] if table is not None else _owner(key, writes)


def _fences(doomed: Iterable[Doomed], writes: Collection[str], known: Known) -> tuple[str, ...]:
    found = {_fenced_by(each.key, writes) for each in doomed}
    return tuple(sorted(name for name in found if name is not None and name not in known.remembered))


def _turn(each: Doomed) -> tuple[int, str]:
    """Tables first, so that a version that is half gone cannot be opened; markers last: they say whose the rest is."""
    is_marker = write_id_of(each.key) is not None
    return 0 if _TABLE.fullmatch(each.key) else 2 if is_marker else 1, each.key
