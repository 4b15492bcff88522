"""Compaction: small shards are merged into full ones, with the same samples in the same order, as a new version.

1. Neighbouring small shards of one split with the same schema, format, compression and hashes are merged; others stay.
   Uncompressed shards and those of zstd, which `auto` makes side by side, are merged too, by `auto`.
2. Each shard is verified while it is read, and its samples are copied as stored; nothing is decoded. Memory is bounded
   by the shards that are being uploaded.
3. Shards of added columns are merged at the same samples, so that they stay aligned with the shards of the version.
4. The row hash of the written samples must be that of the samples that were read, or nothing is published.
5. The record of source files stays complete: shards that it covers are merged with other covered shards only.
6. Concurrent appends are kept: the new version is built again, with the appended shards after the merged ones. If any
   other version was published that has not the same shards and columns, `CommitConflict` is raised and the written
   shards are removed.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from smalti.catalog import Manifest, load_manifest, new_write_id
from smalti.catalog.publishing import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.sidecars import (
    SourceRecord,
    aligned_shards,
    columns_of,
    read_source_record,
    sources_of,
    store_columns,
    store_sources,
)
from smalti.catalog.verify import open_checked
from smalti.errors import CatalogError, CommitConflict, SmaltiError
from smalti.format import FilledShard, ShardBuilder, ShardInfo, ShardOptions, TextShardBuilder, parse_byte_count
from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import MODULUS
from smalti.format.writing.sealing import AUTOMATIC, AUTOMATIC_OUTCOMES
from smalti.storage import Place, Store, open_store
from smalti.writer.uploader import SampleBuilder, ShardUploader, UploadOptions

_PUBLISH_ATTEMPTS = 10  # when appends are published at the same time
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


class LineBuilder(TextShardBuilder):
    """A builder of text shards from lines as stored in other shards of the same dialect."""

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add lines including their ends, and return the completed shards; as `ShardBuilder.add_encoded`."""
        ends = np.concatenate(([0], np.cumsum(lengths))).tolist()
        return self._push([bytes(data[begin:end]) for begin, end in itertools.pairwise(ends)])


@dataclass
class ShardCopier:
    """The copying of samples from shards into new shards below one write id."""

    store: Store
    write_id: str
    on_shard: Callable[[], None]
    """Called after each shard that was read."""
    _uploaders: list[ShardUploader] = field(default_factory=list)

    def merge(self, shards: Sequence[ShardInfo], name: str, limit: int | None) -> list[ShardInfo]:
        """Copy the samples of these shards, of one split and form, into full shards of at most `limit` bytes.

        Raises:
            CatalogError: the written samples are not those that were read.
            ChecksumMismatch: a shard is damaged.
            StoreError: a shard could not be read or stored.
        """
        first = shards[0]
        compression = first.compression if len({shard.compression for shard in shards}) == 1 else AUTOMATIC
        prefix = f"{self.write_id}/{name}"
        uploader = ShardUploader(
            self.store,
            prefix if first.partition is None else f"{first.partition}/{prefix}",
            builder_like(replace(first, compression=compression), limit),
            partition=first.partition,
            uploads=UploadOptions(hash_rows=True),
        )
        self._uploaders.append(uploader)
        rows_read = 0
        for shard in shards:
            with open_checked(self.store, shard) as opened:
                samples = opened.stored_samples()
                rows_read += samples.row_hash()
                uploader.write_encoded(samples.lengths, samples.content)
                del samples
            self.on_shard()
        made = uploader.finish()
        found = sum(shard.samples for shard in made), (uploader.row_hash or 0) % MODULUS
        if found != (sum(shard.samples for shard in shards), rows_read % MODULUS):
            raise CatalogError(
                f"{self.store.locate(prefix)}: the samples that were written are not those that were read from "
                f"{first.raw.basename} and the {len(shards) - 1} shards after it; nothing was published. This is a "
                "fault of Smalti or of this machine's memory"
            )
        return made

    def abort(self) -> tuple[str, ...]:
        """Remove all written shards; return the addresses that could not be removed."""
        return tuple(key for uploader in self._uploaders for key in uploader.abort())


def builder_like(shard: ShardInfo, limit: int | None) -> SampleBuilder:
    """Return a builder of shards with the schema, format, compression and hashes of this one."""
    options = ShardOptions(shard.compression, shard.hash_names, limit, shard.unlisted_hashes)
    if shard.layout is None:
        return ShardBuilder(shard.schema, options, allow_unsafe_types=True)
    return LineBuilder(shard.layout, options)


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
    base = _BaseVersion.of(store, load_manifest(store))
    limit = _limit(base.manifest, size_limit)
    small = limit // 2 if below is None else parse_byte_count(below, what="`below`")
    spans = list(MergePlanner(small, limit, base.knows_files_of).spans(base.manifest.shards, base.added))
    if not spans:
        return base.manifest
    work = _Compaction(store, new_write_id(), base, spans, on_shard)
    markers.begin(store, work.write_id)
    try:
        work.copy(limit)
    except BaseException:
        work.abort()
        raise
    try:
        published = work.publish()
    except CommitConflict:  # after any other fault a version may name the shards; if not, a vacuum removes them
        work.abort()
        raise
    markers.end(store, work.write_id)
    return published


@dataclass(frozen=True)
class _BaseVersion:
    """The version that is compacted, with its sidecars loaded."""

    manifest: Manifest
    added: tuple[Sequence[ShardInfo], ...]
    """For each entry of added columns, the shards aligned with those of the version."""
    sources: SourceRecord | None
    """The record of source files; None if there is none."""

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> "_BaseVersion":
        if not manifest.version:
            raise CatalogError(f"{store.url} is a plain MDS set without versions; write it anew with Smalti first")
        added = tuple(aligned_shards(store, entry, manifest.shards) for entry in columns_of(manifest.sidecars))
        return cls(manifest, added, _source_record(store, manifest))

    def knows_files_of(self, shard: ShardInfo) -> bool:
        """Return whether the source files of a shard are known."""
        return self.sources is not None and self.sources.table.covers(shard)


def _source_record(store: Store, manifest: Manifest) -> SourceRecord | None:
    entry = sources_of(manifest.sidecars)
    return None if entry is None else read_source_record(store, entry, manifest.shards)


def _limit(manifest: Manifest, size_limit: int | str | None) -> int:
    if size_limit is not None:
        return parse_byte_count(size_limit, what="`size_limit`")
    return max((shard.size_limit or 0 for shard in manifest.shards), default=0) or _DEFAULT_LIMIT


class _Compaction:
    """One compaction: its shards, tables and publication."""

    def __init__(
        self,
        store: Store,
        write_id: str,
        base: _BaseVersion,
        spans: Sequence[ShardSpan],
        on_shard: Callable[[int, int], None] | None = None,
    ) -> None:
        self.write_id = write_id
        self._store = store
        self._base = base
        self._spans = spans
        self._on_shard = on_shard
        self._copier = ShardCopier(store, write_id, self._count)
        self._done = 0
        self._total = sum(span.end - span.begin for span in spans) * (1 + len(base.added))
        self._merged: list[list[list[ShardInfo]]] = []
        """New shards by row (0: the version's shards, 1 and up: added columns) and by span."""
        self._tables: set[str] = set()
        """Keys of the objects that were put beside the shards."""

    def copy(self, limit: int) -> None:
        """Write the merged shards."""
        main, added = self._base.manifest.shards, self._base.added
        self._merged = [[] for _ in range(1 + len(added))]
        for number, span in enumerate(self._spans):
            self._merged[0].append(self._copier.merge(main[span.begin : span.end], f"{number:05d}", limit))
            for row, shards in enumerate(added, 1):
                merged = self._copier.merge(shards[span.begin : span.end], f"{number:05d}-{row}", None)
                self._merged[row].append(merged)
                if [shard.samples for shard in merged] != [shard.samples for shard in self._merged[0][-1]]:
                    raise SmaltiError(
                        f"shards {span.begin} to {span.end - 1} of {self._store.url} and those beside them were cut at "
                        "other samples; nothing was published. This is a fault of Smalti"
                    )

    def publish(self) -> Manifest:
        """Publish the merged shards in place of those of the base, followed by shards appended since."""
        store, base = self._store, self._base.manifest
        shards = self._rewritten(0, base.shards)
        columns = self._columns()
        newest, sources = base, self._base.sources
        for _ in range(_PUBLISH_ATTEMPTS):
            draft = newest.redraft(
                self.write_id,
                shards=(*shards, *newest.shards[len(base.shards) :]),
                sidecars=(*self._source_entries(sources), *columns),
            )
            try:
                return replace_content(store, draft, based_on=newest.version)
            except CommitConflict:
                newest = load_manifest(store)
                if not self._still_fits(newest):
                    raise
                sources = _source_record(store, newest)
        raise CommitConflict(
            f"{store.url}: a compaction was overtaken {_PUBLISH_ATTEMPTS} times; nothing of it is visible"
        )

    def abort(self) -> None:
        """Remove the written shards and tables, and the marker if nothing is left."""
        remaining = self._copier.abort()
        if markers.remove_written(self._store, self._tables) and not remaining:
            markers.end(self._store, self.write_id)

    def _still_fits(self, newest: Manifest) -> bool:
        """Return whether a version begins with the shards of the base, and has the same added columns."""
        base = self._base.manifest
        same_columns = columns_of(newest.sidecars) == columns_of(base.sidecars)
        return same_columns and tuple(newest.shards[: len(base.shards)]) == tuple(base.shards)

    def _rewritten(self, row: int, shards: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
        """Return the shards of a row with the merged shards in place of the spans."""
        found: list[ShardInfo] = []
        at = 0
        for span, merged in zip(self._spans, self._merged[row], strict=True):
            found += [*shards[at : span.begin], *merged]
            at = span.end
        return (*found, *shards[at:])

    def _columns(self) -> list[dict[str, Any]]:
        """Store the tables of added columns, and return their entries."""
        entries = columns_of(self._base.manifest.sidecars)
        found = []
        for row, (entry, shards) in enumerate(zip(entries, self._base.added, strict=True), 1):
            key = f"{self.write_id}/columns-{row}.arrow"
            self._tables.add(key)
            stored = store_columns(self._store, key, self._rewritten(row, shards), entry.columns, entry.logical)
            found.append(stored.to_json())
        return found

    def _source_entries(self, sources: SourceRecord | None) -> list[Mapping[str, Any]]:
        """Store the table of source files, and return its entry; an empty list if there is no record."""
        if sources is None:
            return []
        shards = self._base.manifest.shards
        spans = zip(self._spans, self._merged[0], strict=True)
        table = sources.table.moved((shards[span.begin : span.end], merged) for span, merged in spans)
        moved = SourceRecord(table, sources.recipe, sources.row_hash)
        self._tables.add(f"{self.write_id}/sources.arrow")
        return [store_sources(self._store, moved, self.write_id)]

    def _count(self) -> None:
        self._done += 1
        if self._on_shard is not None:
            self._on_shard(self._done, self._total)
