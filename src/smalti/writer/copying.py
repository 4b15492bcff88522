"""Samples out of some shards into others as they lie there, verified before and after; nothing is decoded."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from smalti.catalog.checked_shards import open_checked
from smalti.errors import CatalogError
from smalti.format import FilledShard, ShardBuilder, ShardInfo, ShardOptions, TextShardBuilder
from smalti.format.row_hash import MODULUS
from smalti.format.sealing import Lengths
from smalti.storage import Store
from smalti.writer.queue import UploadOptions
from smalti.writer.uploader import SampleBuilder, ShardUploader


class LineBuilder(TextShardBuilder):
    """Cuts lines of text into shards as they lie in others of the same dialect."""

    def add_encoded(self, lengths: Lengths, data: memoryview) -> list[FilledShard]:
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
