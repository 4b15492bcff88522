"""Filled shards to finished files: the bytes around the samples, checksums, compression. Knows no encodings."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.compression import Compression, parse_compression
from smalti.format.hashing import Buffer, check_hash_names, digest_bytes, hash_first, hash_rows
from smalti.format.info import FileInfo, ShardInfo
from smalti.format.layout import config_bytes, head_bytes
from smalti.format.schema import Schema
from smalti.format.sizes import parse_size_limit
from smalti.format.writing.memory import BuiltShard, FillingShard, ShardMemory

Lengths = np.ndarray[Any, "np.dtype[np.int64]"]


@dataclass(frozen=True)
class ShardOptions:
    """What the user chooses about shard files."""

    compression: str | None = None
    """`"zstd"`, `"zstd:7"`, or another name that MDS has, such as `"br:5"`; None stores shards as they are, ready to be
    mapped."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums to record for every file."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression, in bytes or as `"64mb"`; None puts everything in one shard."""


@dataclass(frozen=True)
class Sealer:
    """Everything about finished files that does not change from shard to shard; pure and thread-safe."""

    schema: Schema
    compression: Compression | None
    hashes: tuple[str, ...]
    size_limit: int | None
    config: bytes

    @classmethod
    def of(cls, schema: Schema, options: ShardOptions) -> "Sealer":
        """The sealer of a builder.

        Raises:
            SchemaError: No columns, or an option that cannot be used.
        """
        if not schema.names:
            raise SchemaError("`columns`: a shard needs at least one column; none is given.")
        compression = parse_compression(options.compression)
        hashes, limit = check_hash_names(options.hashes), parse_size_limit(options.size_limit)
        text = compression.text if compression else None
        config = config_bytes(schema, compression=text, hashes=hashes, size_limit=limit)
        return cls(schema, compression, hashes, limit, config)

    def seal(self, number: int, samples: int, data: memoryview) -> BuiltShard:
        """The finished shard called `shard.<number>.mds`.

        Args:
            number: Counts the shards of one writer from 0.
            samples: How many are in it.
            data: The uncompressed file.
        """
        raw = self._describe(f"shard.{number:05}.mds", data)
        if self.compression is None:
            raw = replace(raw, first_hash=hash_first(data, self.hashes))
        stored: Buffer = data
        zipped, text = None, None
        if self.compression is not None:
            stored, text = self.compression.compress(data), self.compression.text
            zipped = self._describe(f"{raw.basename}.{self.compression.extension}", stored)
        info = ShardInfo(self.schema, samples, raw, zipped, text, self.hashes, self.size_limit)
        return BuiltShard(info, (stored,))

    def _describe(self, basename: str, data: Buffer) -> FileInfo:
        return FileInfo(basename, len(data), digest_bytes(data, self.hashes))


@dataclass(frozen=True)
class FilledMds:
    """The encoded samples of one shard."""

    sealer: Sealer
    number: int
    lengths: Lengths
    """Bytes of each sample, int64, shape (N,)."""
    samples: FillingShard
    memory: ShardMemory
    """Where the samples lie."""

    def row_hash(self) -> int:
        """The sum of the hashes of its samples; before `seal`."""
        ends = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        return hash_rows(self.samples.content, ends)

    def seal(self) -> BuiltShard:
        """The finished shard; called once."""
        head = head_bytes(self.sealer.config, self.lengths)
        return self.sealer.seal(self.number, len(self.lengths), self.memory.close(self.samples, head))
