"""From samples or Arrow batches to whole shards in memory; knows no store and no files."""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.compression import Compression, parse_compression
from smalti.format.cutting import ShardCutter
from smalti.format.hashing import Buffer, check_hash_names, digest_bytes
from smalti.format.info import FileInfo, ShardInfo
from smalti.format.layout import assemble, config_bytes
from smalti.format.schema import Schema
from smalti.format.sizes import parse_size_limit

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ShardOptions:
    """What the user chooses about shard files."""

    compression: str | None = None
    """`"zstd"` or `"zstd:1"` ... `"zstd:22"`; None stores shards as they are, ready to be mapped."""
    hashes: tuple[str, ...] = ("xxh3_64",)
    """Checksums to record for every file."""
    size_limit: int | str | None = 1 << 26
    """Largest shard before compression, in bytes or as `"64mb"`; None puts everything in one shard."""


@dataclass(frozen=True)
class BuiltShard:
    """A finished shard: what the index will say, and the bytes to store under `info.stored.basename`."""

    info: ShardInfo
    payload: Buffer


class ShardBuilder:
    """Cuts samples into shards called `shard.00000.mds`, `shard.00001.mds`, ...; not thread-safe.

    The same samples and options give the same bytes, in whatever calls and batches they arrive.
    """

    def __init__(self, schema: Schema, options: ShardOptions) -> None:
        """Check the options and start with an empty shard.

        Raises:
            SchemaError: No columns, or an option or encoding that cannot be used.
        """
        if not schema.names:
            raise SchemaError("`columns`: a shard needs at least one column; none is given.")
        self.schema = schema
        self._codecs = schema.codecs()
        self._columns = list(zip(schema.names, self._codecs, strict=True))
        self._names = frozenset(schema.names)
        self._pack_head = struct.Struct(f"<{schema.sizes.count(None)}I").pack
        self._seal = _Sealer.of(schema, options)
        self._cutter = ShardCutter(8 + len(self._seal.config), self._seal.size_limit)
        self._pieces: list[Buffer] = []
        self._lengths = array("q")
        self._num_shards = 0
        self._num_samples = 0

    def add(self, sample: Mapping[str, Any]) -> list[BuiltShard]:
        """Take one sample in, and return the shard that it completed, if any.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row`, the number of the
                sample in this builder, say where. The sample is not taken in.
        """
        data = self._encode(sample)
        built = [self._take()] if self._cutter.push_one(len(data)) else []
        self._pieces.append(data)
        self._lengths.append(len(data))
        self._num_samples += 1
        return built

    def add_batch(self, batch: "pa.RecordBatch") -> list[BuiltShard]:
        """Take every row of a batch in, column by column, and return the shards that it completed.

        Raises:
            SchemaError: As in `add`; no row of the batch is taken in.
        """
        from smalti.format.columnar import encode_batch

        if batch.num_rows == 0:
            return []
        data, lengths = encode_batch(self.schema, batch, first_row=self._num_samples)
        return self._push(lengths, data)

    def finish(self) -> list[BuiltShard]:
        """The last shard, if any sample waits for it; the builder can go on afterwards, with the next shard."""
        self._cutter.close()
        return [self._take()] if self._lengths else []

    def _push(self, sizes: np.ndarray[Any, Any], data: memoryview) -> list[BuiltShard]:
        cuts = self._cutter.push(sizes)
        self._num_samples += len(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)])
        built: list[BuiltShard] = []
        begin = 0
        for end in [*cuts, len(sizes)]:
            if end > begin:
                self._pieces.append(data[int(starts[begin]) : int(starts[end])])
                self._lengths.frombytes(sizes[begin:end].tobytes())
            if len(built) < len(cuts):
                built.append(self._take())
            begin = end
        return built

    def _take(self) -> BuiltShard:
        lengths = np.frombuffer(self._lengths.tobytes(), np.int64)
        shard = self._seal(self._num_shards, lengths, self._pieces)
        self._pieces, self._lengths = [], array("q")
        self._num_shards += 1
        return shard

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        if sample.keys() != self._names:
            missing, extra = sorted(self._names - sample.keys()), sorted(map(str, sample.keys() - self._names))
            raise SchemaError(
                f"sample {self._num_samples}: missing columns {missing}, unknown columns {extra}; a sample has exactly "
                "the columns of the data set.",
                row=self._num_samples,
                column=(missing or extra)[0],
            )
        head: list[int] = []
        body: list[bytes] = []
        try:
            for name, codec in self._columns:
                data = codec.encode(sample[name])
                if codec.size is None:
                    head.append(len(data))
                body.append(data)
        except SchemaError as error:
            name, codec = self._columns[len(body)]  # the number of columns done is the place of the one that failed
            raise SchemaError(
                f"column {name!r} ({codec.name}), sample {self._num_samples}: {error.message}",
                **{**error.facts, "column": name, "row": self._num_samples},
            ) from error
        if head and max(head) >= 1 << 32:
            raise SchemaError(f"sample {self._num_samples}: a value of 4 GiB and more does not fit a shard.")
        return b"".join([self._pack_head(*head), *body])


@dataclass(frozen=True)
class _Sealer:
    """Everything about finished files that does not change from shard to shard."""

    schema: Schema
    compression: Compression | None
    hashes: tuple[str, ...]
    size_limit: int | None
    config: bytes

    @classmethod
    def of(cls, schema: Schema, options: ShardOptions) -> "_Sealer":
        compression = parse_compression(options.compression)
        hashes, limit = check_hash_names(options.hashes), parse_size_limit(options.size_limit)
        text = compression.text if compression else None
        config = config_bytes(schema, compression=text, hashes=hashes, size_limit=limit)
        return cls(schema, compression, hashes, limit, config)

    def __call__(self, number: int, lengths: np.ndarray[Any, Any], pieces: Sequence[Buffer]) -> BuiltShard:
        data = assemble(self.config, lengths, pieces)
        raw = self._describe(f"shard.{number:05}.mds", data)
        info = ShardInfo(self.schema, len(lengths), raw, None, None, self.hashes, self.size_limit)
        if self.compression is None:
            return BuiltShard(info, data)
        small = self.compression.compress(data)
        zipped = self._describe(f"{raw.basename}.{self.compression.extension}", small)
        info = ShardInfo(self.schema, len(lengths), raw, zipped, self.compression.text, self.hashes, self.size_limit)
        return BuiltShard(info, small)

    def _describe(self, basename: str, data: Buffer) -> FileInfo:
        return FileInfo(basename, len(data), digest_bytes(data, self.hashes))
