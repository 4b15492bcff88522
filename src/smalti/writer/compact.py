"""Small shards into full ones: the same samples in the same order, in a new version.

1. Shards that lie side by side, of one split and written alike, are put together where they are small; the others stay.
2. Each is verified while it is read, and its samples are copied as they lie there. In memory are shards on their way.
3. What lies beside shards with further columns is put together at the same places, so that it goes on lying beside.
4. The row hash of what was written must be that of what was read, or nothing is published.
5. What is known of source files is kept: shards of which it is known are put together with such ones alone.
6. Somebody who appended meanwhile keeps what was appended: the version is made anew after it. Any other version that
   came between and has not the same shards and columns ends it with `CommitConflict`, and what was written is removed.

Which shards of a version are put together: neighbours that are small, of one split and written alike.

Samples out of some shards into others as they lie there, verified before and after; nothing is decoded.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smalti.catalog import Draft, Manifest, load_manifest, new_write_id
from smalti.catalog.additions.columns import aligned_shards, columns_of, sources_of, store_columns
from smalti.catalog.additions.source_files import ToldSources, read_told, store_sources
from smalti.catalog.publishing.publish import replace_content
from smalti.catalog.retention import markers
from smalti.catalog.verify import open_checked
from smalti.errors import CatalogError, CommitConflict, SmaltiError
from smalti.format import FilledShard, ShardBuilder, ShardInfo, ShardOptions, TextShardBuilder, parse_byte_count
from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import MODULUS
from smalti.storage import Place, Store, open_store
from smalti.writer.uploader import SampleBuilder, ShardUploader, UploadOptions


@dataclass(frozen=True)
class Run:
    """Shards [begin, end) of a version, which become one run of full ones; with shards beside them, one full one."""

    begin: int
    end: int


@dataclass(frozen=True)
class SmallShards:
    """How small is small, and what full."""

    below: int
    """Shards of fewer bytes uncompressed are small."""
    limit: int
    """Bytes of a full one."""
    tells_apart: Callable[[ShardInfo], object]
    """Shards for which it gives other values are never put together."""

    def runs(self, shards: Sequence[ShardInfo], beside: Sequence[Sequence[ShardInfo]]) -> Iterator[Run]:
        """What to put together so that there are fewer shards afterwards.

        Args:
            shards: of the version.
            beside: shards with further columns of the same samples, place by place; several such rows. What lies beside
                each other stays so: whole shards are joined then, at the same places in every row.
        """
        rows = (shards, *beside)
        begin = 0
        for alike, group in itertools.groupby(zip(*rows, strict=True), key=self._alike):
            sizes = [[shard.raw.num_bytes for shard in column] for column in group]
            end = begin + len(sizes)
            if alike is not None and beside:
                yield from self._packed(begin, sizes)
            elif alike is not None and len(sizes) > 1 and -(-sum(map(sum, sizes)) // self.limit) < len(sizes):
                yield Run(begin, end)
            begin = end

    def _alike(self, column: Sequence[ShardInfo]) -> tuple[object, ...] | None:
        """Equal for small shards that can be put together; None for those that stay."""
        below = self.below if len(column) == 1 else min(self.below, self.limit)
        if any(shard.raw.num_bytes >= below for shard in column):
            return None
        main = column[0]
        kinds = tuple((shard.schema, shard.layout, shard.compression, shard.hash_names) for shard in column)
        return main.partition, kinds, self.tells_apart(main)

    def _packed(self, begin: int, sizes: Iterable[Sequence[int]]) -> Iterator[Run]:
        """Neighbours whose bytes together are within the limit, in each row; none that would stay alone."""
        at, totals = begin, [0]
        for place, column in enumerate(sizes, begin):
            grown = [total + size for total, size in itertools.zip_longest(totals, column, fillvalue=0)]
            if max(grown) > self.limit:
                if place - at > 1:
                    yield Run(at, place)
                at, grown = place, list(column)
            totals = grown
            last = place
        if last + 1 - at > 1:
            yield Run(at, last + 1)


class LineBuilder(TextShardBuilder):
    """Cuts lines of text into shards as they lie in others of the same dialect."""

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Take lines in with their ends, and return the shards that were completed; as `ShardBuilder.add_encoded`."""
        ends = np.concatenate(([0], np.cumsum(lengths))).tolist()
        return self._push([bytes(data[begin:end]) for begin, end in itertools.pairwise(ends)])


@dataclass
class ShardCopier:
    """Copies runs of shards below one write id."""

    store: Store
    write_id: str
    on_shard: Callable[[], None]
    """Called after each shard that was read."""
    _uploaders: list[ShardUploader] = field(default_factory=list)

    def joined(self, shards: Sequence[ShardInfo], name: str, limit: int | None) -> list[ShardInfo]:
        """The same samples in full shards of at most `limit` bytes; those given are of one split and written alike.

        Raises:
            CatalogError: What was written is not what was read.
            ChecksumMismatch: A shard is damaged.
            StoreError: One could not be read or stored.
        """
        first = shards[0]
        prefix = f"{self.write_id}/{name}"
        uploader = ShardUploader(
            self.store,
            prefix if first.partition is None else f"{first.partition}/{prefix}",
            builder_like(first, limit),
            partition=first.partition,
            uploads=UploadOptions(hash_rows=True),
        )
        self._uploaders.append(uploader)
        read = 0
        for shard in shards:
            with open_checked(self.store, shard) as opened:
                samples = opened.stored_samples()
                read += samples.row_hash()
                uploader.write_encoded(samples.lengths, samples.content)
                del samples
            self.on_shard()
        made = uploader.finish()
        found = sum(shard.samples for shard in made), (uploader.row_hash or 0) % MODULUS
        if found != (sum(shard.samples for shard in shards), read % MODULUS):
            raise CatalogError(
                f"{self.store.locate(prefix)}: the samples that were written are not those that were read from "
                f"{first.raw.basename} and the {len(shards) - 1} shards after it; nothing was published. This is a "
                "fault of Smalti or of this machine's memory"
            )
        return made

    def abort(self) -> tuple[str, ...]:
        """Remove what was written; the addresses that could not be removed."""
        return tuple(key for uploader in self._uploaders for key in uploader.abort())


def builder_like(shard: ShardInfo, limit: int | None) -> SampleBuilder:
    """A builder of shards that are written as this one."""
    options = ShardOptions(shard.compression, shard.hash_names, limit)
    if shard.layout is None:
        return ShardBuilder(shard.schema, options, allow_unsafe_types=True)
    return LineBuilder(shard.layout, options)


_REBASES = 10
_DEFAULT_LIMIT = 1 << 26


def compact(
    place: Place,
    *,
    below: int | str | None = None,
    size_limit: int | str | None = None,
    on_shard: Callable[[int, int], None] | None = None,
) -> Manifest:
    """A new version in which small shards are put together; the newest version itself where none are.

    Args:
        place: The root of the set: a URL, folder or store.
        below: Shards of fewer bytes uncompressed are small, in bytes or as "32mb"; by default half of `size_limit`.
        size_limit: The largest shard to make, before compression; by default what the shards themselves say, or 64 MiB.
        on_shard: Called with (done, total) after each shard that was read.

    Raises:
        StoreNotFound: there is no set.
        CatalogError: the set has no versions; or what was written is not what was read.
        IndexFileError: the tables of added columns or of source files cannot be trusted.
        ChecksumMismatch: a shard is damaged; nothing was published.
        CommitConflict: somebody replaced the content meanwhile; nothing of ours is visible.
        CommitUnknown: the store stopped answering while publishing; nothing was removed.
        StoreError: the store failed; nothing was published.
    """
    store = open_store(place)
    base = _Base.of(store, load_manifest(store))
    limit = _limit(base.manifest, size_limit)
    small = SmallShards(
        limit // 2 if below is None else parse_byte_count(below, what="`below`"), limit, base.knows_files_of
    )
    runs = list(small.runs(base.manifest.shards, base.beside))
    if not runs:
        return base.manifest
    work = _Compaction(store, new_write_id(), base, runs, on_shard)
    markers.begin(store, work.write_id)
    try:
        work.copy(limit)
    except BaseException:
        work.abort()
        raise
    try:
        published = work.publish()
    except CommitConflict:  # after any other fault a version may name what was written; else a vacuum removes it
        work.abort()
        raise
    markers.end(store, work.write_id)
    return published


@dataclass(frozen=True)
class _Base:
    """The version that is compacted, with all that lies beside its shards."""

    manifest: Manifest
    beside: tuple[Sequence[ShardInfo], ...]
    """Of each entry of added columns, a shard for each of the version's."""
    told: ToldSources | None
    """What is known of its source files."""

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> "_Base":
        if not manifest.version:
            raise CatalogError(f"{store.url} is a plain MDS set without versions; write it anew with Smalti first")
        beside = tuple(aligned_shards(store, entry, manifest.shards) for entry in columns_of(manifest.sidecars))
        return cls(manifest, beside, _told(store, manifest))

    def knows_files_of(self, shard: ShardInfo) -> bool:
        """Whether it is known which source files the samples of a shard came from."""
        return self.told is not None and self.told.table.tells_of(shard)


def _told(store: Store, manifest: Manifest) -> ToldSources | None:
    entry = sources_of(manifest.sidecars)
    return None if entry is None else read_told(store, entry, manifest.shards)


def _limit(manifest: Manifest, size_limit: int | str | None) -> int:
    if size_limit is not None:
        return parse_byte_count(size_limit, what="`size_limit`")
    return max((shard.size_limit or 0 for shard in manifest.shards), default=0) or _DEFAULT_LIMIT


class _Compaction:
    """What one compaction writes."""

    def __init__(
        self,
        store: Store,
        write_id: str,
        base: _Base,
        runs: Sequence[Run],
        on_shard: Callable[[int, int], None] | None = None,
    ) -> None:
        self.write_id = write_id
        self._store = store
        self._base = base
        self._runs = runs
        self._on_shard = on_shard
        self._copier = ShardCopier(store, write_id, self._count)
        self._done = 0
        self._total = sum(run.end - run.begin for run in runs) * (1 + len(base.beside))
        self._made: list[list[list[ShardInfo]]] = []
        """Of the version's shards, and of each row beside them: what was made of each run."""

    def copy(self, limit: int) -> None:
        """Write the full shards."""
        main, beside = self._base.manifest.shards, self._base.beside
        self._made = [[] for _ in range(1 + len(beside))]
        for number, run in enumerate(self._runs):
            self._made[0].append(self._copier.joined(main[run.begin : run.end], f"{number:05d}", limit))
            for row, shards in enumerate(beside, 1):
                some = self._copier.joined(shards[run.begin : run.end], f"{number:05d}-{row}", None)
                self._made[row].append(some)
                if [shard.samples for shard in some] != [shard.samples for shard in self._made[0][-1]]:
                    raise SmaltiError(
                        f"shards {run.begin} to {run.end - 1} of {self._store.url} and those beside them were cut at "
                        "other samples; nothing was published. This is a fault of Smalti"
                    )

    def publish(self) -> Manifest:
        """The version with these shards in place of those of the base, and with what was appended since."""
        store, base = self._store, self._base.manifest
        shards = self._rewritten(0, base.shards)
        columns = self._columns()
        newest, told = base, self._base.told
        for _ in range(_REBASES):
            draft = Draft(
                write_id=self.write_id,
                schema=newest.schema,
                shards=(*shards, *newest.shards[len(base.shards) :]),
                lineage=newest.lineage,
                metadata=newest.metadata,
                logical=newest.logical,
                row_hash=newest.row_hash,
                sidecars=(*self._sources(told), *columns),
            )
            try:
                return replace_content(store, draft, based_on=newest.version)
            except CommitConflict:
                newest = load_manifest(store)
                if not self._still_fits(newest):
                    raise
                told = _told(store, newest)
        raise CommitConflict(f"{store.url}: a compaction was overtaken {_REBASES} times; nothing of it is visible")

    def abort(self) -> None:
        """Remove what was written, and the marker if nothing is left."""
        if not self._copier.abort():
            markers.end(self._store, self.write_id)

    def _still_fits(self, newest: Manifest) -> bool:
        """Whether a version begins with the shards that were put together, and has the same columns beside them."""
        base = self._base.manifest
        same_columns = columns_of(newest.sidecars) == columns_of(base.sidecars)
        return same_columns and tuple(newest.shards[: len(base.shards)]) == tuple(base.shards)

    def _rewritten(self, row: int, shards: Sequence[ShardInfo]) -> tuple[ShardInfo, ...]:
        """The shards of a row with full ones in place of the runs."""
        found: list[ShardInfo] = []
        at = 0
        for run, made in zip(self._runs, self._made[row], strict=True):
            found += [*shards[at : run.begin], *made]
            at = run.end
        return (*found, *shards[at:])

    def _columns(self) -> list[dict[str, Any]]:
        """The entries of added columns, whose tables are in the store."""
        entries = columns_of(self._base.manifest.sidecars)
        found = []
        for row, (entry, shards) in enumerate(zip(entries, self._base.beside, strict=True), 1):
            key = f"{self.write_id}/columns-{row}.arrow"
            made = store_columns(self._store, key, self._rewritten(row, shards), entry.columns, entry.logical)
            found.append(made.to_json())
        return found

    def _sources(self, told: ToldSources | None) -> list[Mapping[str, Any]]:
        """The entry of source files, whose table is in the store; none where nothing is known."""
        if told is None:
            return []
        shards = self._base.manifest.shards
        groups = ((shards[run.begin : run.end], made) for run, made in zip(self._runs, self._made[0], strict=True))
        moved = ToldSources(told.table.moved(groups), told.recipe, told.row_hash)
        return [store_sources(self._store, moved, self.write_id)]

    def _count(self) -> None:
        self._done += 1
        if self._on_shard is not None:
            self._on_shard(self._done, self._total)
