"""Filled shards: the memory in which they grow, and the finished files with checksums and compression.

Space for the head of the file is reserved in front of the samples, so a finished shard needs no assembly. Memory of
stored shards is reused: the first touch of fresh memory costs more than the copy into it. Knows no encodings.
"""

import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from smalti.errors import ClosedError
from smalti.format.compression import Compression, parse_compression
from smalti.format.encodings.encoding import Bytes1d, Int64s
from smalti.format.hashing import (
    BLOCK_BYTES,
    Buffer,
    check_hash_names,
    digest_bytes,
    has_block_hash,
    hash_blocks,
    hash_rows,
)
from smalti.format.index import FileInfo, ShardInfo
from smalti.format.layout import encode_config, head_bytes
from smalti.format.reading.shard import check_written
from smalti.format.schema import Schema
from smalti.format.sizes import parse_size_limit
from smalti.format.text import TextLayout

_START_BYTES = 1 << 27  # of address space, most of it never touched; larger shards grow by doubling
_MAX_FRONT_BYTES = 1 << 25  # reserved for the head; a longer head costs one copy of the shard
_MAX_SPARE = 2  # pieces of memory
AUTOMATIC = "auto"
"""The compression that is decided for each shard: zstd where it makes the shard smaller, else none."""
_AUTOMATIC_CODEC = "zstd"
AUTOMATIC_OUTCOMES = (None, _AUTOMATIC_CODEC)
_LEAST_SAVED = 0.1  # of the shard; JPEG pictures of 14 KB save 4 %, and then have to be unpacked by every reader
_NUM_PIECES, _MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 32, 1 << 12, 1 << 14  # of a shard, compressed to decide: 1 ms
_SAMPLED = 16  # one byte in so many


class SpareMemory:
    """Memory of stored shards, reused for later ones; for one builder, or several in turn."""

    def __init__(self) -> None:
        self._pieces: deque[Bytes1d] = deque(maxlen=_MAX_SPARE)

    def keep(self, memory: Bytes1d) -> None:
        """Store a piece that is no longer referenced; on any thread."""
        self._pieces.append(memory)

    def take(self, num_bytes: int) -> Bytes1d:
        """Return at least `num_bytes` of memory, a reused piece if there is one."""
        while True:
            try:
                memory = self._pieces.pop()
            except IndexError:
                return np.empty(num_bytes, np.uint8)
            if len(memory) >= num_bytes:
                return memory


class FillingShard:
    """The bytes of the samples of one shard, in order, with room for the head of the file before them."""

    def __init__(self, front: int, limit: int | None, spare: SpareMemory) -> None:
        """Take the memory.

        Args:
            front: Most bytes that will stand in front of the samples.
            limit: The largest shard file in bytes; None for no limit.
            spare: Memory of earlier shards, which gets this one's back.
        """
        self._spare = spare
        self._front = self._end = min(front, _MAX_FRONT_BYTES)
        self._reusable_bytes = min(self._front + (limit or _START_BYTES), _START_BYTES)
        self._memory = spare.take(self._reusable_bytes)
        self._is_closed = False

    def append(self, data: Buffer) -> None:
        """Copy `data` to the end."""
        begin, end = self._end, self._end + len(data)
        if begin == end:  # numpy refuses an empty buffer
            return
        if end > len(self._memory):
            larger = np.empty(max(end, 2 * len(self._memory)), np.uint8)
            larger[:begin] = self._memory[:begin]
            self._memory = larger
        self._memory[begin:end] = np.frombuffer(data, np.uint8)
        self._end = end

    @property
    def content(self) -> memoryview:
        """The samples so far.

        Raises:
            ValueError: Closed already; the memory may be in use for another shard.
        """
        if self._is_closed:
            raise ClosedError("a shard can be sealed once; keep what `seal` returned")
        return memoryview(self._memory[self._front : self._end])

    def close(self, head: bytes) -> memoryview:
        """Return the file, `head` and samples, read-only; its memory is reused when the last view of it is gone.

        Raises:
            ValueError: Closed already; the memory may be in use for another shard.
        """
        samples, memory, begin = self.content, self._memory, self._front - len(head)
        self._is_closed = True
        if begin < 0:  # many samples, whose number no size limit bounds
            content: Bytes1d = np.concatenate([np.frombuffer(head, np.uint8), np.frombuffer(samples, np.uint8)])
        else:
            memory[begin : self._front] = np.frombuffer(head, np.uint8)
            content = memory[begin : self._end]
        if len(memory) <= self._reusable_bytes:
            # Every view, however derived, keeps `content` alive: it is the object behind the memoryview.
            weakref.finalize(content, self._spare.keep, memory).atexit = False
        return memoryview(content).toreadonly()


@dataclass(frozen=True)
class BuiltShard:
    """A finished shard: its index entry, and the bytes to store."""

    info: ShardInfo
    payloads: tuple[Buffer, ...]
    """The content of each of `info.stored_files`, in the same order."""
    block_hashes: bytes | None = None
    """The block list of the shard (`smalti.format.hashing`); None for a shard that has none."""


class FilledShard(Protocol):
    """The encoded samples of one shard, complete but not yet a file."""

    def row_hash(self) -> int:
        """Return the sum of the hashes of its samples (`smalti.format.hashing`); before `seal`, on the same thread."""

    def seal(self) -> BuiltShard:
        """Return the finished shard: assembled, hashed, compressed, and checked as a reader would open it.

        Called once, on any thread, and expensive: meant for the threads that store it, while the builder fills the next
        one. The bytes depend neither on the thread nor on the number of cores.

        Raises:
            FormatError: A reader could not read it.
        """


@dataclass(frozen=True)
class ShardOptions:
    """The user's choices about shard files."""

    compression: str | None = None
    """`"zstd"`, `"zstd:7"`, or another name that MDS has, such as `"br:5"`; None stores shards uncompressed, ready to
    be mapped. `"auto"` is zstd for each shard that it makes at least a tenth smaller, by a sample of it, else None."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums to record for every file."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression, in bytes or as `"64mb"`; None puts everything in one shard."""
    unlisted_hashes: tuple[str, ...] = ()
    """Checksums to record in the shard table of the version only: neither in the shard nor in index files."""


@dataclass(frozen=True)
class FileOptions:
    """The checked `ShardOptions`, and how a file is described and compressed by them; pure and thread-safe."""

    compression: Compression | None
    hashes: tuple[str, ...]
    """Those that the shard declares."""
    size_limit: int | None
    recorded_hashes: tuple[str, ...]
    """All hashes of each file, with the unlisted ones."""
    is_automatic: bool = False
    """True if `compression` is for those shards only that it makes smaller; see `decide`."""

    @classmethod
    def of(cls, options: ShardOptions) -> "FileOptions":
        """Check the user's options.

        Raises:
            SchemaError: One of them cannot be used.
        """
        listed = check_hash_names(options.hashes)
        is_automatic = options.compression == AUTOMATIC
        return cls(
            parse_compression(_AUTOMATIC_CODEC if is_automatic else options.compression),
            listed,
            parse_size_limit(options.size_limit),
            check_hash_names({*listed, *options.unlisted_hashes}),
            is_automatic,
        )

    def decide(self, content: memoryview) -> "FileOptions":
        """Return the options for a shard with these samples, whose compression is no longer open.

        Pieces from all parts of the shard are compressed together: columns count as much as they have bytes.
        """
        if not self.is_automatic:
            return self
        piece = min(max(len(content) // (_SAMPLED * _NUM_PIECES), _MIN_PIECE_BYTES), _MAX_PIECE_BYTES)
        step = max(piece, (len(content) - piece) // (_NUM_PIECES - 1))
        sample = b"".join(content[begin : begin + piece] for begin in range(0, len(content), step)[:_NUM_PIECES])
        codec = self.compression
        is_worth_it = codec is not None and len(codec.compress(sample)) <= (1 - _LEAST_SAVED) * len(sample)
        return replace(self, compression=codec if is_worth_it else None, is_automatic=False)

    @property
    def compression_name(self) -> str | None:
        """The compression as written in an index file."""
        return self.compression.text if self.compression else None

    def config_of(self, columns: Schema | TextLayout) -> bytes:
        """Return the description of the columns that stands inside every shard, or in its meta file."""
        return encode_config(
            columns.config(compression=self.compression_name, hashes=self.hashes, size_limit=self.size_limit)
        )

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
        return FileInfo(basename, len(data), digest_bytes(data, self.recorded_hashes))


@dataclass(frozen=True)
class FilledSamples:
    """The stored samples of one shard."""

    columns: Schema | TextLayout
    files: FileOptions
    number: int
    """Counts the shards of one packer from 0."""
    lengths: Int64s
    """Bytes of each sample, int64, shape (N,)."""
    samples: FillingShard

    def row_hash(self) -> int:
        """Return the sum of the hashes of its samples, lines with their ends; before `seal`."""
        ends = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=ends[1:])
        return hash_rows(self.samples.content, ends)

    def seal(self) -> BuiltShard:
        """Return the finished shard, called `shard.<number>.<format>`; called once."""
        files = self.files.decide(self.samples.content)
        options = files.compression_name, files.hashes, files.size_limit
        config, count, name = files.config_of(self.columns), len(self.lengths), f"shard.{self.number:05}"
        if isinstance(self.columns, TextLayout):
            layout, header = self.columns, self.columns.header
            name = f"{name}.{layout.format}"
            raw, zipped, stored = files.finish(name, self.samples.close(header))
            table = head_bytes(config, self.lengths, len(header))
            meta, zip_meta, stored_meta = files.finish(f"{name}.meta", table)
            info = ShardInfo(
                layout.schema, count, raw, zipped, *options, format=layout.format, meta=meta, zip_meta=zip_meta,
                newline=layout.newline, separator=layout.separator,
            )  # fmt: skip
            return BuiltShard(info, (stored, stored_meta))
        data = self.samples.close(head_bytes(config, self.lengths))
        raw, zipped, stored = files.finish(f"{name}.mds", data)
        # A file of one block needs no list: the hash of the file is that of the block.
        has_list = zipped is None and len(data) > BLOCK_BYTES and has_block_hash(files.recorded_hashes)
        info = ShardInfo(self.columns, count, raw, zipped, *options)
        check_written(data, info)
        return BuiltShard(info, (stored,), hash_blocks(data) if has_list else None)
