"""Removing Parquet parts that killed preparations left beside prepared tables, and nothing else.

1. What time it is, and how old an object is, the store says: an object put now is listed with everything else.
2. A part may go if the write below which it lies is Smalti's, no table names it, and everything of that write, its
   marker too, is older than the limit. Tables, pointers and what others put there stay.
3. Before anything of a write goes of which no table names a part, its marker says so; then the tables are looked at
   once more. An update that was asleep all that time and wakes up sees the marker, or its table is seen.
4. Markers go last, so that a clean-up that dies is gone on with by the next one.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.catalog.retention.age import LEAST_SECONDS, checked_limit, probe_in, probe_timestamp, time_of
from smalti.catalog.retention.sweep import Doomed, Why
from smalti.catalog.retention.vacuum import VacuumReport
from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.spark.prepared.table import load_table
from smalti.spark.prepared.writes import WRITES, begin, give_up, is_given_up, marker_key, write_id_of
from smalti.storage import ObjectInfo, Store, UnfinishedUpload, open_store

_PART = re.compile(r"part-(?:\d{5,}-[0-9a-f]{8}|joined)\.parquet", re.ASCII)
_TABLE = re.compile(r"_tables/([^/]+)\.arrow")
_POINTER = re.compile(r"_newest/[^/]+\.json")
_PROBE = re.compile(rf"{WRITES}/probe-[0-9a-f]{{16}}")
_GOING = frozenset((Why.ORPHAN, Why.LEFTOVER))


def vacuum_prepared(
    path: str | Path,
    *,
    older_than: str | float = "7d",
    dry_run: bool = True,
    unsafe_ttl: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> VacuumReport:
    """Remove parts that dead preparations left at a path of `update_prepared`; by default only say what would go.

    Every update does this itself at its end, with the default limit.

    Never removed: what a table names, what is younger than `older_than` or of a write of which anything is, and what
    Smalti did not write.

    Args:
        path: that of `update_prepared`. A small object is put there and removed, to read the store's clock.
        older_than: seconds, or text such as "7d", "36h".
        dry_run: only report.
        unsafe_ttl: allow less than seven days: what a preparation that is still at work has put may then go.
        storage_options: credentials and endpoint of the store.

    Raises:
        StoreNotFound: there are no prepared tables.
        CatalogError: the store tells no times, or `older_than` cannot be used.
        FormatError: a table cannot be read, so that it cannot be told what it needs; nothing was removed.
        StoreError: the store failed; call again, and it goes on.
    """
    store = open_store(path, storage_options)
    limit = checked_limit(older_than, whose="preparation", unsafe_ttl=unsafe_ttl)
    if all(next(iter(store.list(folder)), None) is None for folder in ("_tables", WRITES)):
        raise StoreNotFound(
            f"{store.url} holds no prepared tables: neither _tables nor {WRITES} is there; check the address",
            url=store.url,
        )
    return _vacuumed(_There.of(store, limit), dry_run=dry_run)


def sweep_after_update(store: Store, known: Iterable[str]) -> None:
    """As `vacuum_prepared` for good; best effort, for a caller who has something more important to say.

    Args:
        store: the root.
        known: parts that tables name, of which the caller knows: where there are no others, no table is read.
    """
    with suppress(SmaltiError):
        there = _There.of(store, LEAST_SECONDS)
        if there.leftovers(frozenset(known)).doomed or there.old_uploads():
            _vacuumed(there, dry_run=False)


@dataclass(frozen=True)
class _Found:
    """What may go, parts before markers, and how many objects stay for which reason."""

    doomed: tuple[Doomed, ...]
    kept: Mapping[Why, int]

    @property
    def writes(self) -> set[str]:
        """Write ids of which everything goes."""
        return {found for each in self.doomed if (found := write_id_of(each.key)) is not None}


@dataclass(frozen=True)
class _There:
    """What lies at the root, listed before any table is read."""

    store: Store
    objects: Sequence[ObjectInfo]
    cutoff: float
    writes: frozenset[str]
    """Write ids of Smalti's preparations, by their markers."""
    given_up: frozenset[str]
    """Those that an earlier clean-up took for dead, and did not come to the end of."""
    unfinished: Sequence[UnfinishedUpload] | None = ()
    """Uploads that were not ended; None where the store does not list them."""

    @classmethod
    def of(cls, store: Store, limit: float) -> "_There":
        objects, now = _listed(store)
        cutoff = now - limit
        markers = {info.key: info for info in objects if write_id_of(info.key) is not None}
        writes = frozenset(name for key in markers if (name := write_id_of(key)) is not None)
        # Only where a part is old and the marker is young can it be that it says so: few are read.
        old = {_owner(info.key, writes) for info in objects if info.key not in markers and time_of(info) < cutoff}
        doubtful = [name for name in sorted(writes & old) if time_of(markers[marker_key(name)]) >= cutoff]
        given_up = frozenset(name for name in doubtful if is_given_up(store, name))
        return cls(store, objects, cutoff, writes, given_up, _unfinished(store))

    def named(self) -> frozenset[str]:
        """Every part that a table names, by the tables that are there now."""
        names = [found[1] for info in self.store.list("_tables") if (found := _TABLE.fullmatch(info.key))]
        tables = (load_table(self.store, name) for name in names)
        return frozenset(part for table in tables if table is not None for part in table.parts)

    def leftovers(self, live: frozenset[str]) -> _Found:
        """What may go, if these are the parts that tables name: pure."""
        young = [info.key for info in self.objects if self._is_young(info)]
        young += [upload.key for upload in self.unfinished or () if upload.begun >= self.cutoff]
        busy = {_owner(key, self.writes) for key in young} - self.given_up
        reasons = [self._why(info, live, busy) for info in self.objects]
        staying = {
            _owner(info.key, self.writes)
            for info, why in zip(self.objects, reasons, strict=True)
            if why not in _GOING and write_id_of(info.key) is None
        }
        doomed: list[Doomed] = []
        kept: dict[Why, int] = {}
        for info, why in zip(self.objects, reasons, strict=True):
            write_id = write_id_of(info.key)
            if why in _GOING and (write_id is None or write_id not in staying):
                doomed.append(Doomed(info.key, info.num_bytes, why))
            else:
                told = Why.LIVE if why in _GOING else why  # a marker says whose the parts are that stay
                kept[told] = kept.get(told, 0) + 1
        return _Found(tuple(sorted(doomed, key=_turn)), kept)

    def old_uploads(self) -> tuple[UnfinishedUpload, ...] | None:
        """Return uploads of parts, and temporary files, that were begun before the limit and never ended.

        None where the store does not list them.
        """
        if self.unfinished is None:
            return None
        old = [each for each in self.unfinished if each.begun < self.cutoff]
        return tuple(each for each in old if each.is_temporary or _owner(each.key, self.writes) is not None)

    def _why(self, info: ObjectInfo, live: frozenset[str], busy: Collection[str | None]) -> Why:
        if info.key in live:
            return Why.LIVE
        if _TABLE.fullmatch(info.key) or _POINTER.fullmatch(info.key):
            return Why.CATALOG
        owner = _owner(info.key, self.writes)
        if owner is None and not _PROBE.fullmatch(info.key):
            return Why.FOREIGN
        is_marker = write_id_of(info.key) is not None
        if self._is_young(info) and not (is_marker and owner in self.given_up):
            return Why.YOUNG
        if owner is None:
            return Why.LEFTOVER
        if owner in busy:
            return Why.IN_PROGRESS
        return Why.LEFTOVER if any(key.startswith(f"{owner}/") for key in live) else Why.ORPHAN

    def _is_young(self, info: ObjectInfo) -> bool:
        return time_of(info) >= self.cutoff


def _vacuumed(there: _There, *, dry_run: bool) -> VacuumReport:
    store, found, uploads = there.store, there.leftovers(there.named()), there.old_uploads()
    if not dry_run:
        for upload in uploads or ():
            store.abort_upload(upload)
        for write_id in sorted(found.writes):
            give_up(store, write_id)
        if found.writes:
            claimed, found = found.writes, there.leftovers(there.named())
            for write_id in sorted(claimed - found.writes):  # its table came just before
                begin(store, write_id)
        for each in found.doomed:
            store.delete(each.key)
    kept = {why.value: found.kept[why] for why in Why if why in found.kept}
    return VacuumReport(dry_run=dry_run, version=None, expired=(), removed=found.doomed, kept=kept, uploads=uploads)


def _unfinished(store: Store) -> list[UnfinishedUpload] | None:
    try:
        return list(store.unfinished_uploads())
    except StoreError:
        return None


def _listed(store: Store) -> tuple[list[ObjectInfo], float]:
    """Everything that is there, and the time by the store's own clock."""
    with probe_in(store, WRITES) as probe:
        objects = list(store.list())
    now = probe_timestamp(store, next((info.changed for info in objects if info.key == probe), None))
    return [info for info in objects if info.key != probe], now


def _owner(key: str, writes: Collection[str]) -> str | None:
    """The write id whose preparation put this object; None for what none of ours put."""
    marked = write_id_of(key)
    if marked is not None:
        return marked
    folder, separator, name = key.partition("/")
    return folder if separator and folder in writes and _PART.fullmatch(name) else None


def _turn(each: Doomed) -> tuple[bool, str]:
    return write_id_of(each.key) is not None, each.key
