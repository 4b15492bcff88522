"""Compaction: small shards are merged into full ones, with the same samples in the same order, as a new version.

1. Neighbouring small shards of one split with the same schema, format, compression and hashes are merged; others stay.
   Uncompressed shards and those of zstd, which `auto` makes side by side, are merged too, by `auto`.
2. Samples are copied as stored, and verified (`copying`).
3. Shards of added columns are merged at the same samples, so that they stay aligned with the shards of the version.
4. The record of source files stays complete: shards that it covers are merged with other covered shards only.
5. Concurrent appends are kept: the new version is built again, with the appended shards after the merged ones. If any
   other version was published that has not the same shards and columns, `CommitConflict` is raised and the written
   shards are removed.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from smalti.catalog import Manifest, load_manifest
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import SourceRecord, columns_of
from smalti.errors import CatalogError, CommitConflict, SmaltiError
from smalti.format import ShardInfo, parse_byte_count
from smalti.format.writing.sealing import AUTOMATIC, AUTOMATIC_OUTCOMES
from smalti.storage import Place, Store, open_store
from smalti.writer.copying import PUBLISH_ATTEMPTS, ShardCopier, source_record
from smalti.writer.search import VersionContent

_DEFAULT_LIMIT = 1 << 26  # bytes, the default of the writers


@dataclass(frozen=True)
class ShardSpan:
    """Shards [begin, end) of a version that are merged: into full shards, or into one if there are added columns."""

    begin: int
    end: int


@dataclass(frozen=True)
class MergePlanner:
    """The rules by which shards are chosen to be merged."""

    below: int
    """Shards of fewer bytes uncompressed are small."""
    limit: int
    """Bytes of a full shard, uncompressed."""
    merge_key: Callable[[ShardInfo], object]
    """Shards for which it returns different values are never merged."""

    def spans(self, shards: Sequence[ShardInfo], added: Sequence[Sequence[ShardInfo]]) -> Iterator[ShardSpan]:
        """Yield the spans whose merging leaves fewer shards.

        Args:
            shards: The shards of the version.
            added: For each entry of added columns, the aligned shards. If there are any, whole shards are merged, at
                the same positions in each of them, so that all stay aligned.
        """
        rows = (shards, *added)
        begin = 0
        for alike, group in itertools.groupby(zip(*rows, strict=True), key=self._alike):
            sizes = [[shard.raw.num_bytes for shard in column] for column in group]
            end = begin + len(sizes)
            if alike is not None and added:
                yield from self._packed(begin, sizes)
            elif alike is not None and len(sizes) > 1 and -(-sum(map(sum, sizes)) // self.limit) < len(sizes):
                yield ShardSpan(begin, end)
            begin = end

    def _alike(self, column: Sequence[ShardInfo]) -> tuple[object, ...] | None:
        """Return a key that is equal for small shards that can be merged; None for shards that stay."""
        below = self.below if len(column) == 1 else min(self.below, self.limit)
        if any(shard.raw.num_bytes >= below for shard in column):
            return None
        main = column[0]
        kinds = tuple((shard.schema, shard.layout, _kind_of(shard.compression), shard.hash_names) for shard in column)
        return main.partition, kinds, self.merge_key(main)

    def _packed(self, begin: int, sizes: Iterable[Sequence[int]]) -> Iterator[ShardSpan]:
        """Yield spans of at least two shards whose total size is within the limit in every row."""
        at, totals = begin, [0]
        for place, column in enumerate(sizes, begin):
            grown = [total + size for total, size in itertools.zip_longest(totals, column, fillvalue=0)]
            if max(grown) > self.limit:
                if place - at > 1:
                    yield ShardSpan(at, place)
                at, grown = place, list(column)
            totals = grown
            last = place
        if last + 1 - at > 1:
            yield ShardSpan(at, last + 1)


def _kind_of(compression: str | None) -> str | None:
    """Return a value that is equal for shards that can be merged: both outcomes of `auto` are of a kind."""
    return AUTOMATIC if compression in AUTOMATIC_OUTCOMES else compression


def compact(
    place: Place,
    *,
    below: int | str | None = None,
    size_limit: int | str | None = None,
    on_shard: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Merge small shards, and publish the result as a new version; a no-op if there is nothing to merge.

    Args:
        place: The root of the set: a URL, folder or store.
        below: Shards of fewer bytes uncompressed are small, in bytes or as "32mb"; by default half of `size_limit`.
        size_limit: The largest shard to make, before compression; by default the limit recorded in the shards, or
            64 MiB.
        on_shard: Called with (done, total) after each shard that was read.

    Returns:
        The new version, or the newest one if there was nothing to merge.

    Raises:
        StoreNotFound: there is no set.
        CatalogError: the set has no versions; or the written samples are not those that were read.
        IndexFileError: the tables of added columns or of source files cannot be trusted.
        ChecksumMismatch: a shard is damaged; nothing was published.
        CommitConflict: another writer replaced the content during the call; nothing of this compaction is visible.
        CommitUnknown: the store stopped answering while publishing; nothing was removed.
        StoreError: the store failed; nothing was published.

    Examples:
        >>> len(smalti.load_manifest("s3://bucket/users").shards)
        2
        >>> len(compact("s3://bucket/users").shards)
        1
    """
    store = open_store(place)
    base = VersionContent.of(store, load_manifest(store))
    if not base.manifest.version:
        raise CatalogError(f"{store.url} is a plain MDS set without versions; write it anew with Smalti first")
    limit = _limit(base.manifest, size_limit)
    small = limit // 2 if below is None else parse_byte_count(below, what="`below`")
    sources = source_record(store, base.manifest)

    def knows_files_of(shard: ShardInfo) -> bool:
        return sources is not None and sources.table.covers(shard)

    spans = list(MergePlanner(small, limit, knows_files_of).spans(base.manifest.shards, base.added))
    if not spans:
        return base.manifest
    work = _Compaction(store, base, sources, spans, on_shard)
    markers.begin(store, work.copier.write_id)
    try:
        work.copy(limit)
    except BaseException:
        work.copier.abort()
        raise
    try:
        published = work.publish()
    except CommitConflict:  # after any other fault a version may name the shards; if not, a vacuum removes them
        work.copier.abort()
        raise
    markers.end(store, work.copier.write_id)
    return published


def _limit(manifest: Manifest, size_limit: int | str | None) -> int:
    if size_limit is not None:
        return parse_byte_count(size_limit, what="`size_limit`")
    return max((shard.size_limit or 0 for shard in manifest.shards), default=0) or _DEFAULT_LIMIT


class _Compaction:
    """One compaction: its shards, tables and publication."""

    def __init__(
        self,
        store: Store,
        base: VersionContent,
        sources: SourceRecord | None,
        spans: Sequence[ShardSpan],
        on_shard: Callable[[int, int], None] | None = None,
    ) -> None:
        self.copier = ShardCopier(store, self._count)
        self._store = store
        self._base = base
        self._sources = sources
        self._spans = spans
        self._on_shard = on_shard
        self._done = 0
        self._total = sum(span.end - span.begin for span in spans) * (1 + len(base.added))
        self._merged: list[list[list[ShardInfo]]] = []
        """New shards by row (0: the version's shards, 1 and up: added columns) and by span."""

    def copy(self, limit: int) -> None:
        """Write the merged shards."""
        main, added = self._base.manifest.shards, self._base.added
        self._merged = [[] for _ in range(1 + len(added))]
        for number, span in enumerate(self._spans):
            for row, shards in enumerate((main, *added)):
                name = f"{number:05d}-{row}" if row else f"{number:05d}"
                merged, _ = self.copier.copy(shards[span.begin : span.end], name, None if row else limit)
                self._merged[row].append(merged)
                if [shard.samples for shard in merged] != [shard.samples for shard in self._merged[0][-1]]:
                    raise SmaltiError(
                        f"shards {span.begin} to {span.end - 1} of {self._store.url} and those beside them were cut at "
                        "other samples; nothing was published. This is a fault of Smalti"
                    )

    def publish(self) -> Manifest:
        """Publish the merged shards in place of those of the base, followed by shards appended since."""
        store, base = self._store, self._base.manifest
        shards = self._rewritten(0)
        newest, sources = base, self._sources
        for _ in range(PUBLISH_ATTEMPTS):
            draft = newest.redraft(
                self.copier.write_id,
                shards=(*shards, *newest.shards[len(base.shards) :]),
                sidecars=self.copier.store_tables(self._moved(sources), self._base.entries, self._rewritten),
            )
            try:
                return replace_content(store, draft, based_on=newest.version)
            except CommitConflict:
                newest = load_manifest(store)
                if not self._still_fits(newest):
                    raise
                sources = source_record(store, newest)
        raise CommitConflict(
            f"{store.url}: a compaction was overtaken {PUBLISH_ATTEMPTS} times; nothing of it is visible"
        )

    def _still_fits(self, newest: Manifest) -> bool:
        """Return whether a version begins with the shards of the base, and has the same added columns."""
        base = self._base.manifest
        same_columns = columns_of(newest.sidecars) == self._base.entries
        return same_columns and tuple(newest.shards[: len(base.shards)]) == tuple(base.shards)

    def _rewritten(self, row: int) -> tuple[ShardInfo, ...]:
        """Return the shards of a row with the merged shards in place of the spans."""
        shards = (self._base.manifest.shards, *self._base.added)[row]
        found: list[ShardInfo] = []
        at = 0
        for span, merged in zip(self._spans, self._merged[row], strict=True):
            found += [*shards[at : span.begin], *merged]
            at = span.end
        return (*found, *shards[at:])

    def _moved(self, sources: SourceRecord | None) -> SourceRecord | None:
        """Return the record of source files with the merged shards in place of the spans."""
        if sources is None:
            return None
        shards = self._base.manifest.shards
        spans = zip(self._spans, self._merged[0], strict=True)
        table = sources.table.moved((shards[span.begin : span.end], merged) for span, merged in spans)
        return SourceRecord(table, sources.recipe, sources.row_hash)

    def _count(self) -> None:
        self._done += 1
        if self._on_shard is not None:
            self._on_shard(self._done, self._total)
