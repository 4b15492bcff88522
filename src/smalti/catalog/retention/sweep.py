"""The rules of vacuum: which versions are kept, and which listed objects are removed. Pure; this module does no I/O.

An object is removed only if all of this holds; in any doubt it stays:
- its name is one that Smalti's writers use, below a write id that a version or a marker names, or in `_versions/`;
- no version that is kept needs it;
- it is older than the limit, by the store's own times;
- its write was published, or everything of its write, including the marker, is older than the limit.

A new rule is one function here, added to `VERSION_RULES` or `OBJECT_RULES`.
"""

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from smalti.catalog.header import FOLDER, SEGMENT_LIST_SUFFIX, Header
from smalti.catalog.retention.listing import CompressedRows, Joined
from smalti.catalog.retention.markers import write_id_of
from smalti.storage import ObjectInfo, UnfinishedUpload

_TABLE = re.compile(rf"{FOLDER}/([0-9a-f]{{64}})[^/]*(?:\.arrow|{re.escape(SEGMENT_LIST_SUFFIX)})")
_PROBE = re.compile(rf"{FOLDER}/probe-[0-9a-f]{{16}}")
_CATALOG = re.compile(rf"(?:[^/]+/)?index\.json|{FOLDER}/\d{{8,}}\.json|{FOLDER}/tags/[^/]+\.json")
_WRITTEN = re.compile(
    r"shard\.\d{5,}\.[a-z]+(\.[a-z0-9.]+)?|[^/]+\.(?:arrow|parquet)|(?:conversion|part-\d{5,})\.json"
    r"|blocks\.\d{5,}\.xxh3",
    re.ASCII,
)


@dataclass(frozen=True)
class VersionCase:
    """One version, with the facts by which a vacuum decides whether it is kept."""

    header: Header
    num_newer: int
    """Number of versions after it, including those that vacuums publish."""
    is_tagged: bool
    is_expired: bool
    """True if an earlier vacuum has removed it."""
    superseded: float | None
    """Time when the next version was published, by the store's clock; None if that was after the listing."""
    cutoff: float
    """Times from here on are recent."""


def is_newest(case: VersionCase) -> bool:
    """Keep the newest version."""
    return case.num_newer == 0


def is_tagged(case: VersionCase) -> bool:
    """Keep versions with a tag."""
    return case.is_tagged


def was_newest_recently(case: VersionCase) -> bool:
    """Keep versions that were the newest less than the limit ago."""
    return not case.is_expired and (case.superseded is None or case.superseded >= case.cutoff)


VERSION_RULES: tuple[Callable[[VersionCase], bool], ...] = (is_newest, is_tagged, was_newest_recently)
"""A version is kept if one of them returns True."""


def keeps_version(case: VersionCase) -> bool:
    """Return whether a vacuum keeps the version."""
    return any(rule(case) for rule in VERSION_RULES)


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


@dataclass(frozen=True)
class ObjectCase:
    """One listed object, with the facts by which a vacuum decides whether it is removed."""

    info: ObjectInfo
    owner: str | None
    """Write id of the writer that put it; None if no writer of Smalti's did."""
    youngest: float
    """Time of the youngest object of the same write, unfinished uploads included."""
    known: SetFacts
    cutoff: float
    """Objects put before this time are old."""


def live(case: ObjectCase) -> Why | None:
    """Keep objects that a kept version needs."""
    return Why.LIVE if case.info.key in case.known.live else None


def catalog(case: ObjectCase) -> Why | None:
    """Keep headers, tags and index files."""
    return Why.CATALOG if _CATALOG.fullmatch(case.info.key) else None


def foreign(case: ObjectCase) -> Why | None:
    """Keep objects that Smalti did not write."""
    is_ours = case.owner is not None or _TABLE.fullmatch(case.info.key) or _PROBE.fullmatch(case.info.key)
    return None if is_ours else Why.FOREIGN


def condemned(case: ObjectCase) -> Why | None:
    """Remove what a purge is about."""
    table = _TABLE.fullmatch(case.info.key)
    name = table[1] if table is not None else case.owner
    return Why.EXPIRED if name is not None and name in case.known.condemned else None


def young(case: ObjectCase) -> Why | None:
    """Keep objects that are younger than the limit."""
    return Why.YOUNG if time_of(case.info) >= case.cutoff else None


def leftover(case: ObjectCase) -> Why | None:
    """Remove tables, probes, and markers of published writes."""
    return Why.LEFTOVER if case.owner is None or write_id_of(case.info.key) in case.known.published else None


def expired(case: ObjectCase) -> Why | None:
    """Remove objects of writes whose version is not kept."""
    return Why.EXPIRED if case.owner in case.known.expired else None


def unreferenced(case: ObjectCase) -> Why | None:
    """Remove objects of published writes that no kept version needs, such as those of failed tasks."""
    return Why.LEFTOVER if case.owner in case.known.published else None


def in_progress(case: ObjectCase) -> Why | None:
    """Keep objects of an unpublished write of which anything is young."""
    return Why.IN_PROGRESS if case.youngest >= case.cutoff else None


def orphan(case: ObjectCase) -> Why:
    """Remove objects of unpublished writes of which everything is old."""
    del case
    return Why.ORPHAN


OBJECT_RULES: tuple[Callable[[ObjectCase], Why | None], ...] = (
    live,
    catalog,
    foreign,
    condemned,
    young,
    leftover,
    expired,
    unreferenced,
    in_progress,
    orphan,
)
"""The first one that returns a reason decides."""


def decide(case: ObjectCase) -> Why:
    """Return the reason for which the object is removed, or stays."""
    return next(why for rule in OBJECT_RULES if (why := rule(case)) is not None)


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
    tables: list[Doomed] = []
    others = CompressedRows[Doomed](_row_of, _doomed_of)
    marked: list[Doomed] = []
    fences: set[str] = set()
    kept: dict[Why, int] = {}
    for info in listing:
        owner = owner_of(info.key, writes)
        why = decide(ObjectCase(info, owner, 0.0 if owner is None else youngest[owner], known, cutoff))
        if why not in REMOVED:
            kept[why] = kept.get(why, 0) + 1
            continue
        doomed = Doomed(info.key, info.num_bytes, why)
        fence = _fence_of(info.key, writes)
        fences |= set() if fence is None else {fence}
        if _TABLE.fullmatch(info.key):  # first, so that a half-removed version cannot be opened
            tables.append(doomed)
        elif write_id_of(info.key) is not None:  # last: they identify the rest
            marked.append(doomed)
        else:
            others.add(doomed)
    return Sweep(
        doomed=Joined(sorted(tables, key=_key_of), others, sorted(marked, key=_key_of)),
        kept=kept,
        fences=tuple(sorted(fences)),
        shown=frozenset(shown),
    )


def _key_of(each: Doomed) -> str:
    return each.key


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
