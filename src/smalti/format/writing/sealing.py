"""Filled shards to finished files: the bytes around the samples, checksums, compression. Knows no encodings."""

from dataclasses import dataclass, replace

import numpy as np

from smalti.errors import SchemaError
from smalti.format.compression import Compression, parse_compression
from smalti.format.encodings.encoding import Int64s
from smalti.format.hashing import Buffer, check_hash_names, digest_bytes, hash_first, hash_rows
from smalti.format.info import FileInfo, ShardInfo
from smalti.format.layout import config_bytes, head_bytes
from smalti.format.schema import Schema
from smalti.format.sizes import parse_size_limit
from smalti.format.writing.memory import BuiltShard, FillingShard, ShardMemory


@dataclass(frozen=True)
class ShardOptions:
    """The user's choices about shard files."""

    compression: str | None = None
    """`"zstd"`, `"zstd:7"`, or another name that MDS has, such as `"br:5"`; None stores shards uncompressed, ready to
    be mapped."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums to record for every file."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression, in bytes or as `"64mb"`; None puts everything in one shard."""


@dataclass(frozen=True)
class FileOptions:
    """The checked `ShardOptions`, and how a file is described and compressed by them; pure and thread-safe."""

    compression: Compression | None
    hashes: tuple[str, ...]
    size_limit: int | None

    @classmethod
    def of(cls, options: ShardOptions) -> "FileOptions":
        """Check the user's options.

        Raises:
            SchemaError: One of them cannot be used.
        """
        return cls(
            parse_compression(options.compression),
            check_hash_names(options.hashes),
            parse_size_limit(options.size_limit),
        )

    @property
    def compression_name(self) -> str | None:
        """The compression as written in an index file."""
        return self.compression.text if self.compression else None

    def finish(self, name: str, data: Buffer) -> tuple[FileInfo, FileInfo | None, Buffer]:
        """Describe and compress the uncompressed file `name`.

        Returns:
            The index entries of the uncompressed and of the compressed file, and the bytes to store.
        """
        raw = self._describe(name, data)
        if self.compression is None:
            return raw, None, data
        stored = self.compression.compress(data)
        return raw, self._describe(f"{name}.{self.compression.extension}", stored), stored

    def _describe(self, basename: str, data: Buffer) -> FileInfo:
        return FileInfo(basename, len(data), digest_bytes(data, self.hashes))


@dataclass(frozen=True)
class MdsSealer:
    """Everything about the finished shards of one builder that does not change from shard to shard."""

    schema: Schema
    files: FileOptions
    config: bytes
    """The description of the columns that stands inside every shard."""

    @classmethod
    def of(cls, schema: Schema, options: ShardOptions) -> "MdsSealer":
        """Return the sealer of a builder.

        Raises:
            SchemaError: No columns, or an option that cannot be used.
        """
        if not schema.names:
            raise SchemaError("`columns`: a shard needs at least one column; none is given.")
        files = FileOptions.of(options)
        config = config_bytes(
            schema, compression=files.compression_name, hashes=files.hashes, size_limit=files.size_limit
        )
        return cls(schema, files, config)

    def seal(self, number: int, samples: int, data: memoryview) -> BuiltShard:
        """Return the finished shard called `shard.<number>.mds`.

        Args:
            number: Counts the shards of one writer from 0.
            samples: Number of samples in it.
            data: The uncompressed file.
        """
        files = self.files
        raw, zipped, stored = files.finish(f"shard.{number:05}.mds", data)
        if zipped is None:
            raw = replace(raw, first_hash=hash_first(data, files.hashes))
        info = ShardInfo(self.schema, samples, raw, zipped, files.compression_name, files.hashes, files.size_limit)
        return BuiltShard(info, (stored,))


@dataclass(frozen=True)
class FilledMds:
    """The encoded samples of one shard."""

    sealer: MdsSealer
    number: int
    lengths: Int64s
    """Bytes of each sample, int64, shape (N,)."""
    samples: FillingShard
    memory: ShardMemory
    """The memory that the samples lie in."""

    def row_hash(self) -> int:
        """Return the sum of the hashes of its samples; before `seal`."""
        ends = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        return hash_rows(self.samples.content, ends)

    def seal(self) -> BuiltShard:
        """Return the finished shard; called once."""
        head = head_bytes(self.sealer.config, self.lengths)
        return self.sealer.seal(self.number, len(self.lengths), self.memory.close(self.samples, head))
