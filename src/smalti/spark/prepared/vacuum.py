"""Vacuum of prepared images: removes Parquet parts that killed preparations left, and nothing else.

1. The store's own clock is used: ages are relative to a probe that is stored now and listed with all other objects.
2. A part is removed if its write is Smalti's, no table names it, and all objects of that write, including its marker,
   are older than the limit. Tables, pointers and objects of other programs stay.
3. Before the objects of a write without a named part are removed, the write is marked as dead, and the tables are read
   again. A paused update that resumes sees the marker, or its table is seen.
4. Markers are removed last, so that the next vacuum completes one that dies.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smalti.catalog.retention.sweep import Doomed, Why, time_of
from smalti.catalog.retention.vacuum import LEAST_SECONDS, VacuumReport, checked_limit, probe_in, probe_timestamp
from smalti.errors import SmaltiError, StoreError, StoreNotFound
from smalti.spark.prepared.table import load_table
from smalti.spark.prepared.writes import WRITES, begin, give_up, is_given_up, marker_key, write_id_of
from smalti.storage import ObjectInfo, Store, UnfinishedUpload, open_store

_PART = re.compile(r"part-(?:\d{5,}-[0-9a-f]{8}|joined)\.parquet", re.ASCII)
_TABLE = re.compile(r"_tables/([^/]+)\.arrow")
_POINTER = re.compile(r"_newest/[^/]+\.json")
_PROBE = re.compile(rf"{WRITES}/probe-[0-9a-f]{{16}}")
_REMOVED = frozenset((Why.ORPHAN, Why.LEFTOVER))


def vacuum_prepared(
    path: str | Path,
    *,
    older_than: str | float = "7d",
    dry_run: bool = True,
    unsafe_ttl: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> VacuumReport:
    """Remove parts that dead preparations left at a path of `update_prepared`; by default only report them.

    Every update does this itself at its end, with the default limit.

    Never removed: parts that a table names, writes with an object younger than `older_than`, and objects that Smalti
    did not write.

    Args:
        path: The path of `update_prepared`. A small object is stored there and removed, to read the store's clock.
        older_than: Seconds, or text such as "7d", "36h".
        dry_run: True only reports.
        unsafe_ttl: True permits less than seven days: parts of a running preparation may then be removed.
        storage_options: Credentials and endpoint of the store.

    Raises:
        StoreNotFound: There are no prepared tables.
        CatalogError: The store has no modification times, or `older_than` is unusable.
        FormatError: A table cannot be read, so that the parts it needs are unknown; nothing was removed.
        StoreError: The store failed; a further call continues.
    """
    store = open_store(path, storage_options)
    limit = checked_limit(older_than, whose="preparation", unsafe_ttl=unsafe_ttl)
    if all(next(iter(store.list(folder)), None) is None for folder in ("_tables", WRITES)):
        raise StoreNotFound(
            f"{store.url} holds no prepared tables: neither _tables nor {WRITES} is there; check the address",
            url=store.url,
        )
    return _vacuum(_Listing.of(store, limit), dry_run=dry_run)


def sweep_after_update(store: Store, known: Iterable[str]) -> None:
    """Do what `vacuum_prepared` does, with removal. Best effort: errors are ignored, as the update itself succeeded.

    Args:
        store: The root.
        known: Parts that the caller knows to be named by tables; if there are no others, no table is read.
    """
    with suppress(SmaltiError):
        listing = _Listing.of(store, LEAST_SECONDS)
        if listing.leftovers(frozenset(known)).doomed or listing.old_uploads():
            _vacuum(listing, dry_run=False)


@dataclass(frozen=True)
class _Leftovers:
    """The objects to remove, parts before markers, and the number of objects that stay, by reason."""

    doomed: tuple[Doomed, ...]
    kept: Mapping[Why, int]

    @property
    def writes(self) -> set[str]:
        """Write ids of which everything is removed."""
        return {found for each in self.doomed if (found := write_id_of(each.key)) is not None}


@dataclass(frozen=True)
class _Listing:
    """The objects below the root, listed before any table is read."""

    store: Store
    objects: Sequence[ObjectInfo]
    cutoff: float
    writes: frozenset[str]
    """Write ids of Smalti's preparations, by their markers."""
    given_up: frozenset[str]
    """Write ids that an interrupted vacuum had marked as dead."""
    unfinished: Sequence[UnfinishedUpload] | None = ()
    """Uploads that were not completed; None if the store does not list them."""

    @classmethod
    def of(cls, store: Store, limit: float) -> "_Listing":
        objects, now = _listed(store)
        cutoff = now - limit
        markers = {info.key: info for info in objects if write_id_of(info.key) is not None}
        writes = frozenset(name for key in markers if (name := write_id_of(key)) is not None)
        # A marker that was changed to dead is younger than the parts of its write; few markers are, and are read.
        old = {_owner(info.key, writes) for info in objects if info.key not in markers and time_of(info) < cutoff}
        suspects = [name for name in sorted(writes & old) if time_of(markers[marker_key(name)]) >= cutoff]
        given_up = frozenset(name for name in suspects if is_given_up(store, name))
        return cls(store, objects, cutoff, writes, given_up, _unfinished(store))

    def named(self) -> frozenset[str]:
        """Return the parts that tables name, reading the tables again."""
        names = [found[1] for info in self.store.list("_tables") if (found := _TABLE.fullmatch(info.key))]
        tables = (load_table(self.store, name) for name in names)
        return frozenset(part for table in tables if table is not None for part in table.parts)

    def leftovers(self, live: frozenset[str]) -> _Leftovers:
        """Return the objects to remove if tables name these parts; pure."""
        young = [info.key for info in self.objects if self._is_young(info)]
        young += [upload.key for upload in self.unfinished or () if upload.begun >= self.cutoff]
        busy = {_owner(key, self.writes) for key in young} - self.given_up
        reasons = [self._why(info, live, busy) for info in self.objects]
        staying = {
            _owner(info.key, self.writes)
            for info, why in zip(self.objects, reasons, strict=True)
            if why not in _REMOVED and write_id_of(info.key) is None
        }
        doomed: list[Doomed] = []
        kept: dict[Why, int] = {}
        for info, why in zip(self.objects, reasons, strict=True):
            write_id = write_id_of(info.key)
            if why in _REMOVED and (write_id is None or write_id not in staying):
                doomed.append(Doomed(info.key, info.num_bytes, why))
            else:
                reason = Why.LIVE if why in _REMOVED else why  # the marker of parts that stay
                kept[reason] = kept.get(reason, 0) + 1
        return _Leftovers(tuple(sorted(doomed, key=_removal_order)), kept)

    def old_uploads(self) -> tuple[UnfinishedUpload, ...] | None:
        """Return uploads of parts, and temporary files, that began before the limit and were not completed.

        None if the store does not list them.
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


def _vacuum(listing: _Listing, *, dry_run: bool) -> VacuumReport:
    store, found, uploads = listing.store, listing.leftovers(listing.named()), listing.old_uploads()
    if not dry_run:
        for upload in uploads or ():
            store.abort_upload(upload)
        for write_id in sorted(found.writes):
            give_up(store, write_id)
        if found.writes:
            claimed, found = found.writes, listing.leftovers(listing.named())
            for write_id in sorted(claimed - found.writes):  # its table was stored just before
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
    """Return all objects below the root, and the time by the store's clock."""
    with probe_in(store, WRITES) as probe:
        objects = list(store.list())
    now = probe_timestamp(store, next((info.changed for info in objects if info.key == probe), None))
    return [info for info in objects if info.key != probe], now


def _owner(key: str, writes: Collection[str]) -> str | None:
    """Return the id of the write that put an object; None if it is not of Smalti."""
    marked = write_id_of(key)
    if marked is not None:
        return marked
    folder, separator, name = key.partition("/")
    return folder if separator and folder in writes and _PART.fullmatch(name) else None


def _removal_order(each: Doomed) -> tuple[bool, str]:
    return write_id_of(each.key) is not None, each.key
