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
from collections.abc import Callable, Iterator, Sequence

from smalti.catalog import Draft, Manifest, load_manifest
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import SourceRecord, columns_of
from smalti.errors import CatalogError, CommitConflict, SmaltiError
from smalti.format import ShardInfo, parse_byte_count
from smalti.format.writing.sealing import AUTOMATIC, AUTOMATIC_OUTCOMES
from smalti.storage import Place, Store, open_store
from smalti.writer.copying import ShardCopier, source_record
from smalti.writer.search import SampleGroup, VersionContent

_DEFAULT_LIMIT = 1 << 26  # bytes, the default of the writers


Span = tuple[int, int]
"""Shards [begin, end) of a version that are merged: into full shards, or into one if there are added columns."""


def _spans_to_merge(
    content: VersionContent, below: int, limit: int, merge_key: Callable[[ShardInfo], object]
) -> Iterator[Span]:
    """Yield the spans whose merging leaves fewer shards.

    If there are added columns, whole shards are merged, at the same positions in each row of shards, so that all stay
    aligned.

    Args:
        content: The shards of the version, and those aligned with them.
        below: Shards of fewer bytes uncompressed are small.
        limit: Bytes of a full shard, uncompressed.
        merge_key: Shards for which it returns different values are never merged.
    """
    most = min(below, limit) if content.added else below

    def alike(group: SampleGroup) -> tuple[object, ...] | None:
        """Return a key that is equal for small shards that can be merged; None for shards that stay."""
        if any(shard.raw.num_bytes >= most for shard in group):
            return None
        codecs = [AUTOMATIC if shard.compression in AUTOMATIC_OUTCOMES else shard.compression for shard in group]
        forms = tuple((shard.schema, shard.layout, shard.hash_names) for shard in group)
        return group[0].partition, codecs, forms, merge_key(group[0])

    begin = 0
    for key, groups in itertools.groupby(content, alike):
        sizes = [[shard.raw.num_bytes for shard in group] for group in groups]
        end = begin + len(sizes)
        if key is not None and content.added:
            yield from _packed(begin, sizes, limit)
        elif key is not None and len(sizes) > 1 and -(-sum(map(sum, sizes)) // limit) < len(sizes):
            yield begin, end
        begin = end


def _packed(begin: int, sizes: Sequence[Sequence[int]], limit: int) -> Iterator[Span]:
    """Yield spans of at least two shards whose total size is within the limit in every row."""
    at, totals = begin, [0] * len(sizes[0])
    for place, column in enumerate(sizes, begin):
        grown = [total + size for total, size in zip(totals, column, strict=True)]
        if max(grown) > limit:
            if place - at > 1:
                yield at, place
            at, grown = place, list(column)
        totals = grown
    if begin + len(sizes) - at > 1:
        yield at, begin + len(sizes)


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
    recorded = max((shard.size_limit or 0 for shard in base.manifest.shards), default=0) or _DEFAULT_LIMIT
    limit = recorded if size_limit is None else parse_byte_count(size_limit, what="`size_limit`")
    small = limit // 2 if below is None else parse_byte_count(below, what="`below`")
    work = _Compaction(store, base, limit, on_shard)
    work.spans = list(_spans_to_merge(base, small, limit, work.knows_files_of))
    if not work.spans:
        return base.manifest
    published = work.copier.publish(base.manifest, work.draft, operation="compact") or base.manifest
    markers.end(store, work.copier.write_id)
    return published


class _Compaction:
    """One compaction: its shards and tables."""

    def __init__(
        self, store: Store, base: VersionContent, limit: int, on_shard: Callable[[int, int], None] | None
    ) -> None:
        self.copier = ShardCopier(store, self._count)
        self.spans: list[Span] = []
        self._store = store
        self._base = base
        self._sources = source_record(store, base.manifest)
        self._limit = limit
        self._on_shard = on_shard
        self._done = 0
        self._rows: list[list[ShardInfo]] = []
        """The shards of the base with the merged ones in place of the spans, and those of each addition of columns."""
        self._moved: list[tuple[Sequence[ShardInfo], list[ShardInfo]]] = []
        """The shards of each span of the base, and those that they were merged into."""

    def knows_files_of(self, shard: ShardInfo) -> bool:
        """Return whether the record of source files covers a shard."""
        return self._sources is not None and self._sources.table.covers(shard)

    def draft(self, newest: Manifest) -> tuple[Draft, tuple[()]]:
        """Return the draft of the merged shards, followed by those that a version has beyond the base.

        Raises:
            CommitConflict: the version does not begin with the shards of the base, or has other added columns.
            Otherwise: as for `ShardCopier.copy`.
        """
        base, entries, sources = self._base.manifest, self._base.entries, self._sources
        if newest is not base:
            is_same = columns_of(newest.sidecars) == entries
            if not is_same or tuple(newest.shards[: len(base.shards)]) != tuple(base.shards):
                raise CommitConflict(
                    f"{self._store.url}: this compaction was made from version {base.version}, and version "
                    f"{newest.version} has other shards or columns; nothing of it is visible. Do it again from the "
                    "newest",
                    version=base.version,
                    write_id=self.copier.write_id,
                )
            sources = source_record(self._store, newest)
        if not self._rows:
            self._copy()
        if sources is not None:
            sources = SourceRecord(sources.table.moved(self._moved), sources.recipe, sources.row_hash)
        draft = newest.redraft(
            self.copier.write_id,
            shards=(*self._rows[0], *newest.shards[len(base.shards) :]),
            sidecars=self.copier.store_tables(sources, entries, self._rows),
        )
        return draft, ()

    def _copy(self) -> None:
        """Write the merged shards."""
        before = self._base.manifest.shards, *self._base.added
        rows: list[list[ShardInfo]] = [[] for _ in before]
        at = 0
        for number, (begin, end) in enumerate(self.spans):
            for row, shards in enumerate(before):
                name = f"{number:05d}-{row}" if row else f"{number:05d}"
                merged, _ = self.copier.copy(shards[begin:end], name, None if row else self._limit)
                if row == 0:
                    self._moved.append((shards[begin:end], merged))
                if [shard.samples for shard in merged] != [shard.samples for shard in self._moved[-1][1]]:
                    raise SmaltiError(
                        f"shards {begin} to {end - 1} of {self._store.url} and those beside them were cut at other "
                        "samples; nothing was published. This is a fault of Smalti"
                    )
                rows[row] += [*shards[at:begin], *merged]
            at = end
        self._rows = [[*merged, *shards[at:]] for merged, shards in zip(rows, before, strict=True)]

    def _count(self) -> None:
        self._done += 1
        if self._on_shard is not None:
            total = sum(end - begin for begin, end in self.spans) * (1 + len(self._base.added))
            self._on_shard(self._done, total)
