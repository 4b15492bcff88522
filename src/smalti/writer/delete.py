"""Deletion of samples: a new version without them, and with `purge` the removal of older versions that hold them.

1. The newest version is searched. Shards without a chosen sample stay as they are, by name; of the others the samples
   that stay are copied as stored, in order, into shards of the same form below a new write id.
2. Each shard is verified while it is read, and the row hash of what was written must be that of what should stay.
3. Shards of added columns are rewritten at the same samples; the record of source files loses the deleted samples.
4. What others publish in the meantime is searched too, and the version is built again; nothing of it is lost.
5. The version carries a record of the deletion (`smalti.catalog.erasures`).
6. A purge then searches all older versions, removes tags where that was asked for, retires the versions that hold
   chosen samples (`smalti.catalog.retention.retire`), removes this machine's cached copies of them, and reads every
   shard that a version still has, to show that none holds a chosen sample.
7. Killed at any point, the old version or the new one is there; calling it again continues.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.catalog import Draft, Manifest, load_manifest
from smalti.catalog.erasures import ERASED, Erasure
from smalti.catalog.manifest import num_bytes_of, row_hash_text, stored_bytes
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import SampleRun, SourceRecord, SourceTable
from smalti.catalog.table.shard_table import written_keys
from smalti.errors import ArgumentError, CatalogError, CommitConflict
from smalti.format import ShardInfo
from smalti.format.index import PARQUET
from smalti.storage import Place, Store, open_store
from smalti.writer.copying import PUBLISH_ATTEMPTS, ShardCopier, source_record
from smalti.writer.deletion_report import DeletionReport, PurgeReport, utc_now
from smalti.writer.filters import Filters, as_filters
from smalti.writer.predicate import ArrowExpression, Function, Ids, Predicate
from smalti.writer.purge import OnProgress, Purge, PurgeOptions, progress_of
from smalti.writer.search import (
    CopySearch,
    PositionSearch,
    PredicateSearch,
    Rows,
    SampleGroup,
    Selection,
    VersionContent,
    positions_by_shard,
    sample_hashes,
)


def delete(  # noqa: PLR0913 -- these names are the documented interface
    place: Place,
    where: Any = None,
    *,
    ids: Iterable[Any] | None = None,
    column: str | None = None,
    columns: Iterable[str] | None = None,
    version: int | None = None,
    purge: "bool | PurgeOptions" = False,
    dry_run: bool = False,
    allow_empty: bool = False,
    on_progress: OnProgress | None = None,
) -> DeletionReport:
    """Publish a version without the samples that match; with `purge` also remove older versions that hold them.

    Args:
        place: The root of the set: a URL, folder or store.
        where: Comparisons such as `[("user_id", "==", 17)]`, all of which must hold, or a list of such lists, any of
            which must hold, as `filters` of `pyarrow.parquet.read_table`; or an expression of `pyarrow.compute`; or a
            function from a batch by column to one boolean for each sample.
        ids: Instead of `where`: values of `column`; without `column`, positions of samples in the version.
        column: The column of which `ids` are values; text stands for numbers where it has numbers.
        columns: The columns that a function reads; by default it gets all.
        version: The version of which `ids` are positions, by default the newest, which must still have its shards. With
            `purge`, samples equal to these are deleted and purged, also where they lie in other shards now.
        purge: Also retire older versions that hold matching samples; `PurgeOptions` says what else.
        dry_run: Only search and report; with `purge`, older versions too.
        allow_empty: Allow that no sample is left in the new version.
        on_progress: Called with what is being done, how much of it is done, and of how much.

    Returns:
        What was done; `to_dict()` is its JSON. If no sample of the newest version matches, none is published.

    Raises:
        StoreNotFound: there is no set.
        SchemaError: a comparison is malformed, there is no such column, or its values cannot be compared so.
        CatalogError: the set has no versions, or holds prepared images; all samples match and `allow_empty` is not
            given; a version to be purged has a tag or cannot be searched; or the written samples are not those that
            should stay.
        ChecksumMismatch: a shard is damaged; nothing was published.
        CommitConflict: others kept publishing; nothing of this deletion is visible. Call again.
        CommitUnknown: the store stopped answering while publishing; call again.
        StoreError: the store failed; calling again continues.

    Examples:
        >>> report = delete("s3://bucket/users", [("user_id", "in", [3, 17])])
        >>> report.num_deleted, report.version
        (1, 3)
        >>> smalti.open_dataset("s3://bucket/users").size
        14
    """
    store = open_store(place)
    options = (purge if isinstance(purge, PurgeOptions) else PurgeOptions()) if purge else None
    manifest = _deletable(store)
    chosen = _choose(store, manifest, where, ids, column, columns, version, is_purge=options is not None)
    return _Deletion(store, chosen, options, on_progress).run(manifest, dry_run=dry_run, allow_empty=allow_empty)


def _deletable(store: Store) -> Manifest:
    """Load the newest version, if samples can be deleted from it."""
    manifest = load_manifest(store)
    if not manifest.version:
        raise CatalogError(
            f"{store.url} is a plain MDS set without versions, of which nothing can be replaced safely: convert it to "
            "a versioned set at another place (`smalti convert`), delete there, and remove this folder"
        )
    if any(shard.format == PARQUET for shard in manifest.shards):
        raise CatalogError(
            f"{store.url} holds prepared images, which follow their folder: remove the image files, run "
            "`update_prepared`, and vacuum"
        )
    return manifest


def _choose(
    store: Store,
    manifest: Manifest,
    where: Any,
    ids: Iterable[Any] | None,
    column: str | None,
    columns: Iterable[str] | None,
    version: int | None,
    *,
    is_purge: bool,
) -> Selection:
    if where is None and ids is not None and column is None:
        base = manifest if version in (None, manifest.version) else load_manifest(store, version=version)
        content = VersionContent.of(store, base)
        positions = positions_by_shard(content, ids)
        what = f"{sum(map(len, positions.values()))} positions of version {base.version}"
        if not is_purge:
            check_there(store, manifest, positions)
            search = PositionSearch(store, positions)
            return Selection("positions", what, search, search)
        copies = _copies(store, content, positions)  # so that a purge that was killed can be repeated
        return Selection("positions", what, copies, copies)
    if version is not None:
        raise ArgumentError(
            "`version` is that of positions (`ids` without `column`); others are searched in the newest"
        )
    predicate = _make_predicate(where, ids=ids, column=column, columns=columns)
    found = PredicateSearch(store, predicate)
    if isinstance(predicate, Ids):
        return Selection("ids", f"{len(predicate.values)} ids of {column!r}", found, found, predicate)
    what = str(predicate) if isinstance(predicate, Filters) else f"a {predicate.kind}"
    return Selection(predicate.kind, what, found, found)


def _make_predicate(
    where: Any = None,
    *,
    ids: Iterable[Any] | None = None,
    column: str | None = None,
    columns: Iterable[str] | None = None,
) -> Predicate:
    """Return the predicate of one way to choose samples.

    Raises:
        SchemaError: a comparison is malformed.
        ValueError: not exactly one way was chosen.
    """
    if (where is None) == (ids is None):
        raise ArgumentError("give either `where` or `ids`, which choose the samples")
    if columns is not None and not (callable(where) and not _is_expression(where)):
        raise ArgumentError("`columns` belong to a function as `where`; others tell which columns they read")
    if ids is not None:
        if column is None:
            raise ArgumentError("`ids` need the `column` that they are values of")
        return Ids(column, ids)
    if column is not None:
        raise ArgumentError("`column` belongs to `ids`; comparisons name their columns themselves")
    if isinstance(where, Predicate):
        return where
    if _is_expression(where):
        return ArrowExpression(where)
    if callable(where):
        return Function(where, None if columns is None else tuple(columns))
    return as_filters(where)


def _is_expression(where: Any) -> bool:
    return type(where).__module__.startswith("pyarrow") and type(where).__name__ == "Expression"


def check_there(store: Store, manifest: Manifest, positions: Mapping[str, Rows]) -> None:
    """Check that a version still has the shards of the positions.

    Raises:
        CatalogError: one was rewritten.
    """
    there = {shard.raw.basename for shard in manifest.shards}
    for name in positions:
        if name not in there:
            raise CatalogError(
                f"{store.url}: shard {name} of the given positions is not in version {manifest.version} any more; look "
                "the positions up again there",
                key=name,
            )


def _copies(store: Store, content: VersionContent, positions: Mapping[str, Rows]) -> CopySearch:
    """Return the search for copies of samples; there must be none in their own version but themselves."""
    hashes: set[bytes] = set()
    for shard in content.manifest.shards:
        if shard.raw.basename in positions:
            hashes.update(sample_hashes(store, shard, positions[shard.raw.basename].tolist()))
    search = CopySearch(store, frozenset(hashes))
    begin, others = 0, []
    for shard in content.manifest.shards:
        own = positions.get(shard.raw.basename, np.zeros(0, np.int64))
        others += [begin + row for row in search.rows_of(SampleGroup(shard)).tolist() if row not in own]
        begin += shard.samples
    if others:
        shown = ", ".join(map(str, others[:10])) + (", ..." if len(others) > 10 else "")
        raise CatalogError(
            f"{store.url}: the samples {shown} of version {content.manifest.version} are equal to chosen ones, and a "
            "purge could not tell them apart in older versions; choose them too, or choose by a column",
            positions=others,
        )
    return search


@dataclass(frozen=True)
class _Found:
    """The chosen samples of a version."""

    content: VersionContent
    groups: Sequence[tuple[SampleGroup, Rows]]

    @property
    def num_samples(self) -> int:
        return sum(len(rows) for _, rows in self.groups)


class _Deletion:
    """One call of `delete`, and the copies of the samples that stay."""

    def __init__(
        self, store: Store, selection: Selection, options: PurgeOptions | None, on_progress: OnProgress | None
    ) -> None:
        self.store = store
        self.selection = selection
        self.options = options
        self.on_progress = on_progress
        self.started = utc_now()
        self.copier = ShardCopier(store)
        self.replaced: dict[tuple[str, ...], tuple[ShardInfo, ...]] = {}
        """New shards by the key of the group that they replace; empty if no sample of the group stays."""
        self.removed_hash: dict[tuple[str, ...], int] = {}
        """Sum of the hashes of the deleted samples of a group, in the version's own shard."""

    def run(self, manifest: Manifest, *, dry_run: bool, allow_empty: bool) -> DeletionReport:
        """Search, rewrite, publish, purge, report."""
        found = self._search(manifest, allow_empty=allow_empty)
        purge = None if self.options is None else Purge(self.store, self.selection, self.options, self.on_progress)
        if purge is not None:
            purge.check(newest_goes=found.num_samples > 0, dry_run=dry_run)
        made: Manifest | None = None
        if found.num_samples and not dry_run:
            found, made = self._publish(found, allow_empty=allow_empty)
        purged = None if purge is None else purge.dry_run(found.num_samples) if dry_run else purge.run()
        return self._report(found, made, purged, dry_run=dry_run)

    def _search(self, manifest: Manifest, *, allow_empty: bool) -> _Found:
        content = VersionContent.of(self.store, manifest)
        shown = progress_of(self.on_progress, "searched")
        found = _Found(content, list(self.selection.newest.run(content, shown)))
        if found.num_samples == manifest.rows and manifest.rows and not allow_empty:
            raise CatalogError(
                f"all {manifest.rows} samples of version {manifest.version} of {self.store.url} match; nothing was "
                "deleted. Say `allow_empty` for a version without samples, or remove the whole set"
            )
        return found

    def _publish(self, found: _Found, *, allow_empty: bool) -> tuple[_Found, Manifest | None]:
        """Write the new version; what others publish in the meantime is searched too.

        Returns what was deleted and the new version; None if others have deleted it.
        """
        write_id = self.copier.write_id
        markers.begin(self.store, write_id)
        for _ in range(PUBLISH_ATTEMPTS):
            try:
                draft, erased = self._draft(found)
            except BaseException:
                self.copier.abort()
                raise
            try:  # after any fault but a conflict a version may name the shards; if not, a vacuum removes them
                based_on = found.content.manifest.version
                made = replace_content(self.store, draft, based_on=based_on, operation="delete", erased=(erased,))
            except CommitConflict:
                try:
                    found = self._search(self._newest(), allow_empty=allow_empty)
                except BaseException:
                    self.copier.abort()
                    raise
                if not found.num_samples:
                    self.copier.abort()
                    return found, None
            else:
                self._remove_unused(found)
                markers.end(self.store, write_id)
                return found, made
        self.copier.abort()
        raise CommitConflict(
            f"{self.store.url}: a deletion was overtaken {PUBLISH_ATTEMPTS} times; nothing of it is visible"
        )

    def _newest(self) -> Manifest:
        """Load the version that others have published in the meantime."""
        newest = _deletable(self.store)
        if isinstance(self.selection.newest, PositionSearch):
            check_there(self.store, newest, self.selection.newest.positions)
        return newest

    def _draft(self, found: _Found) -> tuple[Draft, Mapping[str, Any]]:
        """Write the shards of a version, and return its draft and the record of the deletion."""
        shown = progress_of(self.on_progress, "rewritten")
        for done, (group, rows) in enumerate(found.groups, 1):
            if group.key not in self.replaced:
                self._rewrite(group, rows)
            if shown is not None:
                shown(done, len(found.groups))
        base = found.content.manifest
        removed = sum(self.removed_hash[group.key] for group, _ in found.groups)
        sources, paths = self._sources(found)
        sidecars = self.copier.store_tables(sources, found.content.entries, lambda row: self._shards_of(found, row))
        draft = base.redraft(
            self.copier.write_id,
            shards=self._shards_of(found, 0),
            sidecars=sidecars,
            row_hash=row_hash_text(int(base.row_hash, 16) - removed) if base.row_hash else "",
        )
        erasure = Erasure(self.selection.by, found.num_samples, purged=self.options is not None, paths=sorted(paths))
        self.copier.key_of(ERASED)
        return draft, erasure.store(self.store, self.copier.write_id)

    def _rewrite(self, group: SampleGroup, rows: Rows) -> None:
        """Write the shards of a group again, without these samples."""
        stays = np.ones(group.main.samples, bool)
        stays[rows] = False
        name = f"{len(self.replaced):05d}"
        copies = []
        for row, shard in enumerate(group.shards):
            fits = shard.size_limit is not None and (shard.samples == 1 or shard.raw.num_bytes <= shard.size_limit)
            limit = shard.size_limit if fits else None  # so that the samples that stay are one shard again
            made, removed = self.copier.copy([shard], f"{name}-{row}" if row else name, limit, stays)
            if len(made) > 1:
                raise CatalogError(
                    f"{self.store.locate(shard.raw.basename)}: {len(made)} shards were written in its place, expected "
                    "one; nothing was published. This is a fault of Smalti or of this machine's memory"
                )
            copies.append((made, removed))
        self.replaced[group.key] = tuple(made for shards, _ in copies for made in shards)
        self.removed_hash[group.key] = copies[0][1]

    def _remove_unused(self, published: _Found) -> None:
        """Remove the shards that replace groups which the published version does not have. Best effort."""
        needed = {name for group, _ in published.groups for name in written_keys(self.replaced[group.key])}
        written = {name for made in self.replaced.values() for name in written_keys(made)}
        markers.remove_written(self.store, written - needed)

    def _shards_of(self, found: _Found, row: int) -> tuple[ShardInfo, ...]:
        """Return the shards of a row of the new version: 0 for its own, 1 and up for added columns."""
        changed = {group.key for group, _ in found.groups}
        shards: list[ShardInfo] = []
        for group in found.content:
            if group.key not in changed:
                shards.append(group.shards[row])
            elif self.replaced[group.key]:
                shards.append(self.replaced[group.key][row])
        return tuple(shards)

    def _sources(self, found: _Found) -> tuple[SourceRecord | None, set[str]]:
        """Return the record of source files without the deleted samples, and the files that had some of them."""
        record = source_record(self.store, found.content.manifest)
        if record is None:
            return None, set()
        runs, paths, removed = dict(record.table.runs), set[str](), 0
        for group, rows in found.groups:
            before = runs.pop(group.main.raw.basename, None)
            if before is None:
                continue  # appended, of no known file
            left, erased = _without(before, rows)
            paths |= erased
            removed += self.removed_hash[group.key]
            if left:
                runs[self.replaced[group.key][0].raw.basename] = left
        row_hash = row_hash_text(int(record.row_hash, 16) - removed) if record.row_hash else record.row_hash
        return SourceRecord(SourceTable(record.table.fingerprints, runs), record.recipe, row_hash), paths

    def _report(
        self, found: _Found, made: Manifest | None, purged: PurgeReport | None, *, dry_run: bool
    ) -> DeletionReport:
        base = found.content.manifest
        by_split: dict[str, int] = {}
        for group, rows in found.groups:
            if group.main.partition is not None:
                by_split[group.main.partition] = by_split.get(group.main.partition, 0) + len(rows)
        written = [shard for group, _ in found.groups for shard in self.replaced.get(group.key, ())]
        emptied = tuple(sorted({*base.partitions} - {*made.partitions})) if made is not None else ()
        return DeletionReport(
            url=self.store.url,
            dry_run=dry_run,
            by=self.selection.by,
            what=self.selection.what,
            started=self.started,
            finished=utc_now(),
            base_version=base.version,
            version=None if made is None else made.version,
            write_id=None if made is None else made.write_id,
            digest=None if made is None else made.digest,
            row_hash=None if made is None else made.row_hash,
            rows_before=base.rows,
            num_deleted=found.num_samples,
            deleted_by_split=by_split,
            emptied_splits=emptied,
            num_shards=len(base.shards),
            shards_concerned=len(found.groups),
            bytes_total=num_bytes_of(base.shards) + sum(map(num_bytes_of, found.content.added)),
            bytes_concerned=sum(stored_bytes(shard) for group, _ in found.groups for shard in group.shards),
            bytes_written=sum(map(stored_bytes, written)),
            missing_ids=self.selection.missing(),
            purge=purged,
        )


def _without(runs: Sequence[SampleRun], rows: Rows) -> tuple[list[SampleRun], set[str]]:
    """Return the runs of a shard without these samples, and the files that had some of them."""
    ends = np.cumsum([run.rows for run in runs])
    gone = np.bincount(np.searchsorted(ends, rows, side="right"), minlength=len(runs)).tolist()
    left: list[SampleRun] = []
    for run, count in zip(runs, gone, strict=True):
        if run.rows == count:
            continue
        joins = left and left[-1].path == run.path
        before = left.pop().rows if joins else 0
        left.append(SampleRun(run.path, before + run.rows - count))
    return left, {run.path for run, count in zip(runs, gone, strict=True) if count}
