"""`ShardBuilder`, from samples or Arrow batches to filled shards in memory, and `ShardCutter`, which cuts them.

A shard ends where MosaicML's writer ends it, but MosaicML's empty first shard is left out. Stores and files are not
known here.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.encodings.encoding import Int64s
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.writing.rows import CheckedEncoder, make_fast_encoder
from smalti.format.writing.sealing import (
    FilledMds,
    FilledShard,
    FillingShard,
    MdsSealer,
    ShardMemory,
    ShardOptions,
    SpareMemory,
)

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET_BYTES = 4  # entry of each sample in the table of offsets
_BLOCK_BYTES = 1 << 20  # of single samples: makes the cost per block negligible, and stays in a core's cache


class ShardCutter:
    """Decides where shards end for samples of given lengths, in any number of calls; pure arithmetic.

    A shard takes samples while its file stays within the limit; a sample that alone exceeds it gets a shard of its own.
    No shard is empty.
    """

    def __init__(self, overhead: int, limit: int | None) -> None:
        self._overhead = overhead  # bytes of a shard without samples
        self._limit = limit
        self._size = overhead
        self._count = 0

    @property
    def room(self) -> int:
        """Bytes, counting 4 more for every sample, that the open shard still takes; negative after a large sample."""
        return (self._limit or MAX_FILE_BYTES) - self._size

    def push(self, lengths: Int64s, *, first_row: int = 0) -> list[int]:
        """Return the rows of this batch before which a shard ends, in order; 0 ends the shard that was open.

        `lengths` are the bytes of each new sample, int64, shape (n,).

        Raises:
            SchemaError: A shard file would exceed 4 GiB; the state is unchanged.
        """
        if len(lengths) and int(lengths.max()) + _OFFSET_BYTES + self._overhead > MAX_FILE_BYTES:
            row = first_row + int(lengths.argmax())
            raise SchemaError(
                f"sample {row} of {int(lengths.max())} bytes does not fit a shard, whose offsets are 32 bit: "
                f"{MAX_FILE_BYTES} bytes at most. Split the sample.",
                row=row,
            )
        ends = np.concatenate([[0], np.cumsum(lengths + _OFFSET_BYTES)])
        size, count, row = self._size, self._count, 0
        cuts: list[int] = []
        while row < len(lengths):
            room = (self._limit or MAX_FILE_BYTES) - size
            fitting = int(np.searchsorted(ends, room + ends[row], side="right")) - 1
            # An empty shard takes one sample of any size; an open one may take none at all.
            stop = max(fitting, row + 1 if count == 0 else row)
            size, count = size + int(ends[stop] - ends[row]), count + stop - row
            row = stop
            if row < len(lengths):
                self._check_cuttable(first_row + row)
                cuts.append(row)
                size, count = self._overhead, 0
        self._size, self._count = size, count
        return cuts

    def close(self) -> None:
        """Start a new shard with the next sample."""
        self._size, self._count = self._overhead, 0

    def _check_cuttable(self, row: int) -> None:
        if self._limit is None:
            raise SchemaError(
                f"with sample {row}, one shard for everything would exceed {MAX_FILE_BYTES} bytes, which 32 bit "
                'offsets cannot address; give a `size_limit` such as "64mb".',
                row=row,
            )


class ShardBuilder:
    """Cuts samples into shards called `shard.00000.mds`, `shard.00001.mds`, ...; not thread-safe.

    The same samples and options give the same bytes, however they are split into calls and batches.
    """

    def __init__(
        self,
        schema: Schema,
        options: ShardOptions,
        *,
        allow_unsafe_types: bool = False,
        spare: SpareMemory | None = None,
    ) -> None:
        """Check the options and start with an empty shard.

        `spare` is memory that builders use in turn, in a process that makes many of them.

        Raises:
            SchemaError: No columns, or an option or encoding that cannot be used.
        """
        self._sealer = MdsSealer.of(schema, options)
        self.schema = schema
        self._codecs = schema.codecs(allow_unsafe_types=allow_unsafe_types)
        # Encoded single samples, copied into the shard when they fill a block.
        self._block: list[bytes] = []
        self._block_room = 0
        self._fallback = _Fallback(CheckedEncoder(schema, self._codecs), self._block)
        self._encode = make_fast_encoder(schema, self._codecs, self._fallback)
        overhead, limit = 8 + len(self._sealer.config), self._sealer.files.size_limit
        self._cutter = ShardCutter(overhead, limit)
        min_sample_bytes = sum(4 if size is None else size for size in schema.sizes)
        self._memory = ShardMemory(
            overhead + 4 * ((limit or MAX_FILE_BYTES) // (min_sample_bytes + 4) + 1), limit, spare
        )
        self._filling: FillingShard | None = None
        self._lengths = array("q")
        self._num_shards = 0
        self._ready: list[FilledShard] = []
        self._is_incomplete = False
        self._open_block()

    def add(self, sample: Mapping[str, Any]) -> list[FilledShard]:
        """Add one sample, and return the shard that it completed, if any.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row`, the number of the
                sample in this builder, are attributes. The sample is not added.
        """
        data = self._encode(sample)
        room = self._block_room - len(data) - 4
        if room < 0:
            return self._add_to_next_block(data)
        self._block_room = room
        self._block.append(data)
        return []

    def add_batch(self, batch: "pa.RecordBatch") -> list[FilledShard]:
        """Add every row of a batch, column by column, and return the shards that were completed.

        Raises:
            SchemaError: As in `add`; no row of the batch is added.
        """
        from smalti.format.writing.arrow import encode_batch

        if batch.num_rows == 0:
            return []
        rows = encode_batch(self.schema, self._codecs, batch, first_row=self._fallback.next_row)
        self._end_block()
        self._push(rows.lengths, rows.strips)
        return self._pop_ready()

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add samples as stored in a shard of the same schema, and return the shards that were completed.

        Nothing is decoded or checked: the shard was checked when it was opened (`Shard.stored_samples`).

        `lengths` are the bytes of each sample, int64, shape (n,); `data` holds the samples back to back, and is copied.

        Raises:
            SchemaError: The lengths are not those of the data, or a shard file would exceed 4 GiB; nothing was added.
        """
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        if ends[-1] != len(data):
            raise SchemaError(f"the samples' lengths add up to {ends[-1]} bytes, found {len(data)}")
        if len(lengths):
            self._end_block()
            self._push(lengths, lambda begin, end: (data[int(ends[begin]) : int(ends[end])],))
        return self._pop_ready()

    def finish(self) -> list[FilledShard]:
        """Return the last shard, if it has samples; the builder can be used afterwards, for the next shard."""
        self._end_block()
        self._check_complete()
        self._cutter.close()
        self._finish_shard()
        self._open_block()
        return self._pop_ready()

    def _add_to_next_block(self, data: bytes) -> list[FilledShard]:
        self._end_block()
        if len(data) + 4 <= self._block_room:
            self._block_room -= len(data) + 4
            self._block.append(data)
        else:
            # It ends the shard, or is large, or exceeds any shard: then the error is raised by its own call.
            self._push(np.array([len(data)], np.int64), lambda *_: (memoryview(data),))
        return self._pop_ready()

    def _end_block(self) -> None:
        if self._block:
            data = memoryview(b"".join(self._block))
            lengths = np.fromiter(map(len, self._block), np.int64, len(self._block))
            self._push(lengths, lambda *_: (data,))
            self._block.clear()

    def _open_block(self) -> None:
        # A block fits the open shard, so only a sample pushed alone, or a batch, ends a shard.
        self._block_room = min(_BLOCK_BYTES, self._cutter.room)

    def _check_complete(self) -> None:
        if self._is_incomplete:
            raise ValueError(
                "adding samples to this builder was interrupted, or ran out of memory, and its shard has lost some of "
                "them; make a new builder, and write again."
            )

    def _push(self, lengths: Int64s, strips: Callable[[int, int], Iterable[memoryview]]) -> None:
        self._check_complete()
        cuts = self._cutter.push(lengths, first_row=self._fallback.samples)
        self._is_incomplete = True
        self._fill(lengths, cuts, strips)
        self._is_incomplete = False

    def _fill(self, lengths: Int64s, cuts: list[int], strips: Callable[[int, int], Iterable[memoryview]]) -> None:
        self._fallback.samples += len(lengths)
        begin = 0
        for number, end in enumerate([*cuts, len(lengths)]):
            if end > begin:
                self._filling = self._filling or self._memory.lend()
                for data in strips(begin, end):
                    self._filling.append(data)
                self._lengths.frombytes(lengths[begin:end].tobytes())
            if number < len(cuts):
                self._finish_shard()
            begin = end
        self._open_block()

    def _finish_shard(self) -> None:
        if self._filling is not None:
            lengths = np.frombuffer(self._lengths, np.int64)
            self._ready.append(FilledMds(self._sealer, self._num_shards, lengths, self._filling, self._memory))
            self._filling, self._lengths = None, array("q")
            self._num_shards += 1

    def _pop_ready(self) -> list[FilledShard]:
        ready, self._ready = self._ready, []
        return ready


class _Fallback:
    """Encoder of the samples that the fast path declines; knows their numbers.

    Not a method of the builder: the fast path would then refer back to it, and delay the release of its memory.
    """

    def __init__(self, checked_encoder: CheckedEncoder, block: list[bytes]) -> None:
        self._checked_encoder = checked_encoder
        self._block = block
        self.samples = 0
        """Number of samples before those of the block."""

    @property
    def next_row(self) -> int:
        return self.samples + len(self._block)

    def __call__(self, sample: Mapping[str, Any]) -> bytes:
        return self._checked_encoder.encode(sample, row=self.next_row)
