"""Deletion of samples: a new version without them, and with `purge` the removal of older versions that hold them.

1. The newest version is searched. Shards without a chosen sample stay as they are, by name; of the others the samples
   that stay are copied as stored, in order, into shards of the same form below a new write id.
2. Each shard is verified while it is read, and the row hash of what was written must be that of what should stay.
3. Shards of added columns are rewritten at the same samples; the record of source files loses the deleted samples.
4. What others publish in the meantime is searched too, and the version is built again; nothing of it is lost.
5. The version carries a record of the deletion (`smalti.catalog.sidecars`).
6. A purge then searches all older versions, removes tags where that was asked for, retires the versions that hold
   chosen samples (`smalti.catalog.retention.vacuum`), removes this machine's cached copies of them, and reads every
   shard that a version still has, to show that none holds a chosen sample.
7. Killed at any point, the old version or the new one is there; calling it again continues.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smalti.catalog import Draft, Manifest, load_manifest
from smalti.catalog.manifest import row_hash_text, stored_bytes
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import ERASED, Erasure, SampleRun, SourceRecord, SourceTable
from smalti.catalog.table.shard_table import num_bytes_of, written_keys
from smalti.errors import ArgumentError, CatalogError
from smalti.format import ShardInfo
from smalti.format.index import PARQUET
from smalti.storage import Place, Store, open_store
from smalti.writer.copying import ShardCopier, source_record
from smalti.writer.purge import DeletionReport, OnProgress, Purge, PurgeOptions, PurgeReport, progress_of, utc_now
from smalti.writer.search import (
    CopySearch,
    PositionSearch,
    PredicateSearch,
    Rows,
    SampleGroup,
    SampleSearch,
    VersionContent,
    key_of,
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
    manifest = load_manifest(store)
    _check_deletable(store, manifest)
    search: SampleSearch
    if where is None and ids is not None and column is None:
        base = manifest if version in (None, manifest.version) else load_manifest(store, version=version)
        # A purge searches for copies, so that one that was killed can be repeated.
        kind = PositionSearch if options is None else CopySearch
        search = kind(store, VersionContent.of(store, base), ids)
    elif version is not None:
        raise ArgumentError(
            "`version` is that of positions (`ids` without `column`); others are searched in the newest"
        )
    else:
        from smalti.writer.predicate import predicate_of  # imports pyarrow

        search = PredicateSearch(store, predicate_of(where, ids=ids, column=column, columns=columns))
    return _Deletion(store, search, options, on_progress, allow_empty=allow_empty).run(manifest, dry_run=dry_run)


def _check_deletable(store: Store, manifest: Manifest) -> None:
    """Check that samples can be deleted from a version."""
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


@dataclass
class _Deletion:
    """One call of `delete`, and the copies of the samples that stay."""

    store: Store
    search: SampleSearch
    options: PurgeOptions | None
    on_progress: OnProgress | None
    allow_empty: bool
    started: str = field(default_factory=utc_now)
    replaced: dict[tuple[str, ...], tuple[ShardInfo, ...]] = field(default_factory=dict)
    """New shards by the key of the group that they replace; empty if no sample of the group stays."""
    removed_hash: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Sum of the hashes of the deleted samples of a group, in the version's own shard."""

    def run(self, manifest: Manifest, *, dry_run: bool) -> DeletionReport:
        """Search, rewrite, publish, purge, report."""
        self.copier = ShardCopier(self.store)
        self._search(manifest)
        purge = None if self.options is None else Purge(self.store, self.search, self.options, self.on_progress)
        if purge is not None:
            purge.check(newest_goes=self.num_samples > 0, dry_run=dry_run)
        made: Manifest | None = None
        if self.num_samples and not dry_run:
            made = self.copier.publish(manifest, self._draft, operation="delete")
            if made is not None:
                self._remove_unused()
                markers.end(self.store, self.copier.write_id)
        purged = None if purge is None else purge.dry_run(self.num_samples) if dry_run else purge.run()
        return self._report(made, purged, dry_run=dry_run)

    def _search(self, manifest: Manifest) -> None:
        """Search a version for the samples to delete."""
        self.content = VersionContent.of(self.store, manifest)
        shown = progress_of(self.on_progress, "searched")
        self.groups: Sequence[tuple[SampleGroup, Rows]] = list(self.search.run(self.content, shown))
        self.num_samples = sum(len(rows) for _, rows in self.groups)
        if self.num_samples == manifest.rows and manifest.rows and not self.allow_empty:
            raise CatalogError(
                f"all {manifest.rows} samples of version {manifest.version} of {self.store.url} match; nothing was "
                "deleted. Say `allow_empty` for a version without samples, or remove the whole set"
            )

    def _draft(self, base: Manifest) -> tuple[Draft, tuple[Mapping[str, Any]]] | None:
        """Write the shards of a version without the samples, and return its draft and the record of the deletion.

        A version that others have published in the meantime is searched, too; None if they have deleted the samples.
        """
        if base is not self.content.manifest:
            _check_deletable(self.store, base)
            self._search(base)
            if not self.num_samples:
                return None
        shown = progress_of(self.on_progress, "rewritten")
        for done, (group, rows) in enumerate(self.groups, 1):
            if key_of(group) not in self.replaced:
                self._rewrite(group, rows)
            if shown is not None:
                shown(done, len(self.groups))
        removed = sum(self.removed_hash[key_of(group)] for group, _ in self.groups)
        sources, paths = self._sources()
        changed = {key_of(group) for group, _ in self.groups}
        groups = [self.replaced[key] if (key := key_of(group)) in changed else group for group in self.content]
        rows_of_shards = list(zip(*filter(None, groups), strict=True)) or [()] * (1 + len(self.content.entries))
        draft = base.redraft(
            self.copier.write_id,
            shards=rows_of_shards[0],
            sidecars=self.copier.store_tables(sources, self.content.entries, rows_of_shards),
            row_hash=row_hash_text(int(base.row_hash, 16) - removed) if base.row_hash else "",
        )
        erasure = Erasure(self.search.by, self.num_samples, purged=self.options is not None, paths=sorted(paths))
        self.copier.key_of(ERASED)
        return draft, (erasure.store(self.store, self.copier.write_id),)

    def _rewrite(self, group: SampleGroup, rows: Rows) -> None:
        """Write the shards of a group again, without these samples."""
        stays = np.ones(group[0].samples, bool)
        stays[rows] = False
        name = f"{len(self.replaced):05d}"
        copies = []
        for row, shard in enumerate(group):
            fits = shard.size_limit is not None and (shard.samples == 1 or shard.raw.num_bytes <= shard.size_limit)
            limit = shard.size_limit if fits else None  # so that the samples that stay are one shard again
            made, removed = self.copier.copy([shard], f"{name}-{row}" if row else name, limit, stays)
            if len(made) > 1:
                raise CatalogError(
                    f"{self.store.locate(shard.raw.basename)}: {len(made)} shards were written in its place, expected "
                    "one; nothing was published. This is a fault of Smalti or of this machine's memory"
                )
            copies.append((made, removed))
        self.replaced[key_of(group)] = tuple(made for shards, _ in copies for made in shards)
        self.removed_hash[key_of(group)] = copies[0][1]

    def _remove_unused(self) -> None:
        """Remove the shards that replace groups which the published version does not have. Best effort."""
        needed = {name for group, _ in self.groups for name in written_keys(self.replaced[key_of(group)])}
        written = {name for made in self.replaced.values() for name in written_keys(made)}
        markers.remove_written(self.store, written - needed)

    def _sources(self) -> tuple[SourceRecord | None, set[str]]:
        """Return the record of source files without the deleted samples, and the files that had some of them."""
        record = source_record(self.store, self.content.manifest)
        if record is None:
            return None, set()
        runs, paths, removed = dict(record.table.runs), set[str](), 0
        for group, rows in self.groups:
            before = runs.pop(group[0].raw.basename, None)
            if before is None:
                continue  # appended, of no known file
            left, erased = _without(before, rows)
            paths |= erased
            removed += self.removed_hash[key_of(group)]
            if left:
                runs[self.replaced[key_of(group)][0].raw.basename] = left
        row_hash = row_hash_text(int(record.row_hash, 16) - removed) if record.row_hash else record.row_hash
        return SourceRecord(SourceTable(record.table.fingerprints, runs), record.recipe, row_hash), paths

    def _report(self, made: Manifest | None, purged: PurgeReport | None, *, dry_run: bool) -> DeletionReport:
        base = self.content.manifest
        by_split: dict[str, int] = {}
        for group, rows in self.groups:
            if group[0].partition is not None:
                by_split[group[0].partition] = by_split.get(group[0].partition, 0) + len(rows)
        written = [shard for group, _ in self.groups for shard in self.replaced.get(key_of(group), ())]
        return DeletionReport(
            url=self.store.url,
            dry_run=dry_run,
            by=self.search.by,
            what=self.search.what,
            started=self.started,
            finished=utc_now(),
            base_version=base.version,
            version=None if made is None else made.version,
            write_id=None if made is None else made.write_id,
            digest=None if made is None else made.digest,
            row_hash=None if made is None else made.row_hash,
            rows_before=base.rows,
            num_deleted=self.num_samples,
            deleted_by_split=by_split,
            emptied_splits=() if made is None else tuple(sorted({*base.partitions} - {*made.partitions})),
            num_shards=len(base.shards),
            shards_concerned=len(self.groups),
            bytes_total=num_bytes_of(base.shards) + sum(map(num_bytes_of, self.content.added)),
            bytes_concerned=sum(stored_bytes(shard) for group, _ in self.groups for shard in group),
            bytes_written=sum(map(stored_bytes, written)),
            missing_ids=self.search.num_missing(),
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
