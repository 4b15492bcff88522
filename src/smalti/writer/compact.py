"""Small shards into full ones: the same samples in the same order, in a new version.

1. Shards that lie side by side, of one split and written alike, are put together where they are small; the others stay.
2. Each is verified while it is read, and its samples are copied as they lie there. In memory are shards on their way.
3. The row hash of what was written must be that of what was read, or nothing is published.
4. Somebody who appended meanwhile keeps what was appended: the version is made anew after it. Any other version that
   came between ends it with `CommitConflict`, and what was written is removed.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from smalti.catalog import Draft, Manifest, in_progress, load_manifest, new_write_id
from smalti.catalog.checked_shards import open_checked
from smalti.catalog.publishing import replace_content
from smalti.catalog.sidecars import after_compaction
from smalti.errors import CatalogError, CommitConflict
from smalti.format import ShardBuilder, ShardInfo, ShardOptions, parse_byte_count
from smalti.format.row_hash import MODULUS
from smalti.storage import Place, Store, open_store
from smalti.writer.queue import UploadOptions
from smalti.writer.uploader import ShardUploader

_REBASES = 10
_DEFAULT_LIMIT = 1 << 26


@dataclass(frozen=True)
class _Run:
    """Shards [begin, end) of a version, which become one run of full ones."""

    begin: int
    end: int


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
        CatalogError: the set has no versions, is of a text format, or has added columns beside its shards; or what was
            written is not what was read.
        ChecksumMismatch: a shard is damaged; nothing was published.
        CommitConflict: somebody replaced the content meanwhile; nothing of ours is visible.
        CommitUnknown: the store stopped answering while publishing; nothing was removed.
        StoreError: the store failed; nothing was published.
    """
    store = open_store(place)
    manifest = load_manifest(store)
    _check_compactable(store, manifest)
    limit = _limit(manifest, size_limit)
    small = limit // 2 if below is None else parse_byte_count(below, what="`below`")
    runs = list(_runs(manifest.shards, small, limit))
    if not runs:
        return manifest
    work = _Compaction(store, new_write_id(), limit, on_shard)
    in_progress.begin(store, work.write_id)
    try:
        shards = work.rewritten(manifest, runs)
    except BaseException:
        work.abort()
        raise
    try:
        published = _publish(store, work.write_id, manifest, shards)
    except CommitConflict:  # after any other fault a version may name what was written; else a vacuum removes it
        work.abort()
        raise
    in_progress.end(store, work.write_id)
    return published


def _check_compactable(store: Store, manifest: Manifest) -> None:
    if not manifest.version:
        raise CatalogError(f"{store.url} is a plain MDS set without versions; write it anew with Smalti first")
    if any(kind.meta is not None for kind in manifest.shards[:1]):
        raise CatalogError(f"{store.url} has shards of text; only MDS shards can be put together")
    after_compaction(manifest)


def _limit(manifest: Manifest, size_limit: int | str | None) -> int:
    if size_limit is not None:
        return parse_byte_count(size_limit, what="`size_limit`")
    return max((shard.size_limit or 0 for shard in manifest.shards), default=0) or _DEFAULT_LIMIT


def _runs(shards: Sequence[ShardInfo], small: int, limit: int) -> Iterator[_Run]:
    """Neighbours that are small, and that are fewer shards afterwards."""
    begin = 0
    for alike, group in itertools.groupby(shards, key=lambda shard: _alike(shard, small)):
        sizes = [shard.raw.num_bytes for shard in group]
        if alike is not None and len(sizes) > 1 and -(-sum(sizes) // limit) < len(sizes):
            yield _Run(begin, begin + len(sizes))
        begin += len(sizes)


def _alike(shard: ShardInfo, small: int) -> tuple[object, ...] | None:
    """Equal for small shards that can be put together; None for those that stay."""
    if shard.raw.num_bytes >= small:
        return None
    return shard.partition, shard.schema, shard.compression, shard.hash_names


class _Compaction:
    """What one compaction writes."""

    def __init__(
        self, store: Store, write_id: str, limit: int, on_shard: Callable[[int, int], None] | None = None
    ) -> None:
        self.write_id = write_id
        self._store = store
        self._limit = limit
        self._on_shard = on_shard
        self._uploaders: list[ShardUploader] = []
        self._done = 0

    def rewritten(self, manifest: Manifest, runs: Sequence[_Run]) -> tuple[ShardInfo, ...]:
        """The shards of the version with full ones in place of the runs."""
        total = sum(run.end - run.begin for run in runs)
        shards: list[ShardInfo] = []
        at = 0
        for number, run in enumerate(runs):
            shards += manifest.shards[at : run.begin]
            shards += self._joined(manifest.shards[run.begin : run.end], number, total)
            at = run.end
        return (*shards, *manifest.shards[at:])

    def abort(self) -> None:
        """Remove what was written, and the marker if nothing is left."""
        left = [key for uploader in self._uploaders for key in uploader.abort()]
        if not left:
            in_progress.end(self._store, self.write_id)

    def _joined(self, shards: Sequence[ShardInfo], number: int, total: int) -> list[ShardInfo]:
        first = shards[0]
        prefix = f"{self.write_id}/{number:05d}"
        options = ShardOptions(first.compression, first.hash_names, self._limit)
        uploader = ShardUploader(
            self._store,
            prefix if first.partition is None else f"{first.partition}/{prefix}",
            ShardBuilder(first.schema, options, allow_unsafe_types=True),
            partition=first.partition,
            uploads=UploadOptions(hash_rows=True),
        )
        self._uploaders.append(uploader)
        read = 0
        for shard in shards:
            with open_checked(self._store, shard) as opened:
                samples = opened.stored_samples()
                read += samples.row_hash()
                uploader.write_encoded(samples.lengths, samples.content)
                del samples
            self._done += 1
            if self._on_shard is not None:
                self._on_shard(self._done, total)
        made = uploader.finish()
        found = sum(shard.samples for shard in made), (uploader.row_hash or 0) % MODULUS
        if found != (sum(shard.samples for shard in shards), read % MODULUS):
            raise CatalogError(
                f"{self._store.locate(prefix)}: the samples that were written are not those that were read from "
                f"{first.raw.basename} and the {len(shards) - 1} shards after it; nothing was published. This is a "
                "fault of Smalti or of this machine's memory"
            )
        return made


def _publish(store: Store, write_id: str, base: Manifest, shards: tuple[ShardInfo, ...]) -> Manifest:
    """The version with these shards in place of those of `base`, and with what was appended since."""
    newest = base
    for _ in range(_REBASES):
        draft = Draft(
            write_id=write_id,
            schema=newest.schema,
            shards=(*shards, *newest.shards[len(base.shards) :]),
            lineage=newest.lineage,
            metadata=newest.metadata,
            logical=newest.logical,
            row_hash=newest.row_hash,
            sidecars=after_compaction(newest),
        )
        try:
            return replace_content(store, draft, based_on=newest.version)
        except CommitConflict:
            newest = load_manifest(store)
            if tuple(newest.shards[: len(base.shards)]) != tuple(base.shards):
                raise
    raise CommitConflict(f"{store.url}: a compaction was overtaken {_REBASES} times; nothing of it is visible")
