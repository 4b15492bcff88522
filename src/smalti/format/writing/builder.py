"""`ShardBuilder`, from samples or Arrow batches to filled shards in memory, and `ShardPacker`, from stored samples.

`ShardCutter` decides where shards end.

A shard ends where MosaicML's writer ends it, but MosaicML's empty first shard is left out. Stores and files are not
known here.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from smalti.errors import ArgumentError, SchemaError
from smalti.format.encodings.encoding import Int64s
from smalti.format.layout import OFFSET
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text import TextLayout
from smalti.format.writing.rows import RowBlock, fixed_bytes, make_checked_encoder, make_row_block
from smalti.format.writing.sealing import (
    FileOptions,
    FilledSamples,
    FilledShard,
    FillingShard,
    ShardOptions,
    SpareMemory,
)

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 1 << 20  # of single samples: makes the cost per block negligible; larger blocks gain nothing
Deliver: TypeAlias = Callable[[FilledShard], None]
Strips: TypeAlias = Callable[[int, int], Iterable[memoryview]]


class ShardCutter:
    """Decides where shards end for samples of given lengths, in any number of calls; pure arithmetic.

    A shard takes samples while its file stays within the limit; a sample that alone exceeds it gets a shard of its own.
    No shard is empty.
    """

    def __init__(self, overhead: int, limit: int | None, offset_bytes: int = OFFSET.itemsize) -> None:
        self._overhead = overhead  # bytes of a shard without samples
        self._offset_bytes = offset_bytes  # of each sample in the same file, beside its own
        self._limit = limit
        self._size = overhead
        self._count = 0

    @property
    def room(self) -> int:
        """Bytes of samples and their offsets that the open shard still takes; negative after a large sample."""
        return (self._limit or MAX_FILE_BYTES) - self._size

    def push(self, lengths: Int64s, *, first_row: int = 0) -> list[int]:
        """Return the rows of this batch before which a shard ends, in order; 0 ends the shard that was open.

        `lengths` are the bytes of each new sample, int64, shape (n,).

        Raises:
            SchemaError: A shard file would exceed 4 GiB; the state is unchanged.
        """
        if len(lengths) and int(lengths.max()) + self._offset_bytes + self._overhead > MAX_FILE_BYTES:
            row = first_row + int(lengths.argmax())
            raise SchemaError(
                f"sample {row} of {int(lengths.max())} bytes does not fit a shard, whose offsets are 32 bit: "
                f"{MAX_FILE_BYTES} bytes at most. Split the sample.",
                row=row,
            )
        ends = np.concatenate([[0], np.cumsum(lengths + self._offset_bytes)])
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
                if self._limit is None:
                    raise SchemaError(
                        f"with sample {first_row + row}, one shard for everything would exceed {MAX_FILE_BYTES} bytes, "
                        'which 32 bit offsets cannot address; give a `size_limit` such as "64mb".',
                        row=first_row + row,
                    )
                cuts.append(row)
                size, count = self._overhead, 0
        self._size, self._count = size, count
        return cuts

    def close(self) -> None:
        """Start a new shard with the next sample."""
        self._size, self._count = self._overhead, 0


class ShardBuilder:
    """Encodes samples, and packs them into shards, as `ShardPacker` does; not thread-safe.

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
        if not schema.names:
            raise SchemaError("`columns`: a shard needs at least one column; none is given.")
        self.schema = schema
        self._codecs = schema.codecs(allow_unsafe_types=allow_unsafe_types)
        self._packer = ShardPacker(schema, options, spare)
        self._block: RowBlock | None = None

    def add(self, sample: Mapping[str, Any]) -> list[FilledShard]:
        """Add one sample, and return the shard that it completed, if any.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row`, the number of the
                sample in this builder, are attributes. The sample is not added.
        """
        (self._block or self._rows()).write(sample)
        return self._packer.pop_ready()

    def row_writer(self, deliver: Deliver, on_error: Callable[[BaseException], None]) -> RowBlock:
        """Return the functions to add single samples with in place of `add`.

        `deliver` gets every completed shard, and `on_error` every error that a call ends with. Called before the first
        sample, once.
        """
        self._packer.deliver = deliver
        return self._rows(on_error)

    def add_batch(self, batch: "pa.RecordBatch") -> list[FilledShard]:
        """Add every row of a batch, column by column, and return the shards that were completed.

        Raises:
            SchemaError: As in `add`; no row of the batch is added.
        """
        from smalti.format.writing.arrow import encode_batch

        if batch.num_rows == 0:
            return []
        encoded = encode_batch(self.schema, self._codecs, batch, first_row=self._packer.next_row)
        return self._between_blocks(self._packer.add_strips, *encoded)

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add samples as stored; see `ShardPacker.add_encoded`."""
        return self._between_blocks(self._packer.add_encoded, lengths, data)

    def finish(self) -> list[FilledShard]:
        """Return the last shard, if it has samples; the builder can be used afterwards, for the next shard."""
        return self._between_blocks(self._packer.finish)

    def _rows(self, on_error: Callable[[BaseException], None] = lambda _: None) -> RowBlock:
        if self._block is None:
            packer, encode = self._packer, make_checked_encoder(self.schema, self._codecs)
            self._block = make_row_block(
                self.schema,
                self._codecs,
                take=packer.take,
                lengths=packer.variable_lengths,
                fallback=lambda sample: encode(sample, packer.next_row),
                on_error=on_error,
            )
        return self._block

    def _between_blocks(self, add: Callable[..., list[FilledShard]], *samples: Any) -> list[FilledShard]:
        """Move the samples of the block to the shard, call a method of the packer, and start a block that fits."""
        if self._block is None:
            return add(*samples)
        self._block.flush()
        try:
            return add(*samples)
        finally:
            self._block.flush()


class ShardPacker:
    """Packs samples as they are stored into shards called `shard.00000.mds`, `shard.00001.mds`, ...; not thread-safe.

    Nothing is encoded here. With a layout of lines the shards are text shards (JSONL, CSV, TSV, XSV), whose samples are
    lines with their ends. The same samples and options give the same bytes, however they are split into calls.

    Not the builder: the functions that fill the blocks of single samples would then refer back to it, and delay the
    release of its memory.
    """

    def __init__(
        self,
        columns: Schema | TextLayout,
        options: ShardOptions,
        spare: SpareMemory | None = None,
    ) -> None:
        """Check the options and start with an empty shard.

        Args:
            columns: The columns of MDS shards; of text shards, with the layout of their lines.
            options: The user's choices.
            spare: Memory that packers use in turn, in a process that makes many of them.

        Raises:
            SchemaError: An option that cannot be used.
        """
        self._columns, self._files, self._spare = columns, FileOptions.of(options), spare or SpareMemory()
        limit = self._files.size_limit
        if isinstance(columns, Schema):
            self._least_bytes, offset_bytes = fixed_bytes(columns), OFFSET.itemsize  # of a sample
            overhead = 8 + len(self._files.config_of(columns))
            most_samples = (limit or MAX_FILE_BYTES) // (self._least_bytes + offset_bytes) + 1
            self._front = overhead + offset_bytes * most_samples
        else:
            # The offsets are in another file; and MosaicML does not count the header.
            self._least_bytes, offset_bytes = 0, 0
            self._front = overhead = len(columns.header)
            limit = limit and min(limit + overhead, MAX_FILE_BYTES)
        self._cutter = ShardCutter(overhead, limit, offset_bytes)
        self._filling: FillingShard | None = None
        self._lengths = array("q")
        self._num_samples = self._num_shards = 0
        self._ready: list[FilledShard] = []
        self._is_incomplete = False
        self.variable_lengths: list[int] = []
        """Bytes of each sample of the block in variable columns, without the four of each length."""
        self.deliver: Deliver | None = None
        """The recipient of completed shards; without one they stay until `pop_ready`."""

    @property
    def next_row(self) -> int:
        """The number of the next sample."""
        return self._num_samples + len(self.variable_lengths)

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add samples as stored in a shard of the same columns, and return the shards that were completed.

        Nothing is decoded or checked: the shard was checked when it was opened (`Shard.stored_samples`).

        `lengths` are the bytes of each sample, int64, shape (n,); `data` holds the samples back to back, and is copied.

        Raises:
            SchemaError: The lengths are not those of the data, or a shard file would exceed 4 GiB; nothing was added.
        """
        if (total := int(lengths.sum())) != len(data):
            raise SchemaError(f"the samples' lengths add up to {total} bytes, found {len(data)}")
        return self.add_strips(lengths, _strips_of(lengths, data)) if len(lengths) else self.pop_ready()

    def add_strips(self, lengths: Int64s, strips: Strips) -> list[FilledShard]:
        """Do the same for samples [begin, end) of which `strips(begin, end)` returns the bytes, in pieces."""
        self._push(lengths, strips)
        return self.pop_ready()

    def take(self, data: bytearray) -> int:
        """Add the samples of a block to the shard, and return the size at which the next block is full."""
        if self.variable_lengths or data:
            self._push_block(memoryview(data))
            if self.deliver is not None:
                for shard in self.pop_ready():
                    self.deliver(shard)
        # So many bytes fit the shard whatever their samples are, so only the last sample of a block can end a shard.
        least = self._least_bytes
        return min(_BLOCK_BYTES, self._cutter.room * least // (least + OFFSET.itemsize)) if least else -1

    def _push_block(self, data: memoryview) -> None:
        count = len(self.variable_lengths)
        lengths = np.fromiter(self.variable_lengths, np.int64, count) + self._least_bytes
        if int(lengths.sum()) != len(data):
            self._is_incomplete = True
            self._check_complete()
        begin = len(data) - int(lengths[-1])
        try:
            if len(data) + OFFSET.itemsize * count <= self._cutter.room:
                self._push(lengths, lambda *_: (data,))
            else:
                # The last sample is pushed alone: it may end the shard, or be refused because it exceeds any shard.
                if count > 1:  # they fit, unless an interrupt has let the block grow
                    self._push(lengths[:-1], _strips_of(lengths, data))
                self._push(lengths[-1:], lambda *_: (data[begin:],))
        except SchemaError:  # the last sample is refused; all others were added
            self.variable_lengths.clear()
            raise
        # Last: after an interrupt anywhere above, the lengths are not those of the next block, and it is refused.
        self.variable_lengths.clear()

    def _push(self, lengths: Int64s, strips: Strips) -> None:
        self._check_complete()
        self._is_incomplete = True  # before the cutter counts them: an interrupt may come between any two bytecodes
        try:
            cuts = self._cutter.push(lengths, first_row=self._num_samples)
        except SchemaError:  # nothing was added
            self._is_incomplete = False
            raise
        self._num_samples += len(lengths)
        begin = 0
        for number, end in enumerate([*cuts, len(lengths)]):
            if end > begin:
                if self._filling is None:
                    self._filling = FillingShard(self._front, self._files.size_limit, self._spare)
                for data in strips(begin, end):
                    self._filling.append(data)
                self._lengths.frombytes(lengths[begin:end].tobytes())
            if number < len(cuts):
                self._finish_shard()
            begin = end
        self._is_incomplete = False

    def finish(self) -> list[FilledShard]:
        """Return the last shard, if it has samples; the packer can be used afterwards, for the next shard."""
        self._check_complete()
        self._cutter.close()
        self._finish_shard()
        return self.pop_ready()

    def pop_ready(self) -> list[FilledShard]:
        """Return the completed shards."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, []
        return ready

    def _check_complete(self) -> None:
        if self._is_incomplete:
            raise ArgumentError(
                "adding samples to this builder was interrupted, or ran out of memory, and its shard has lost some of "
                "them; make a new builder, and write again."
            )

    def _finish_shard(self) -> None:
        if self._filling is not None:
            lengths = np.frombuffer(self._lengths, np.int64)
            self._ready.append(FilledSamples(self._columns, self._files, self._num_shards, lengths, self._filling))
            self._filling, self._lengths = None, array("q")
            self._num_shards += 1


def _strips_of(lengths: Int64s, data: memoryview) -> Strips:
    """Return the bytes of samples of these lengths, back to back in `data`, as `ShardPacker.add_strips` takes them."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return lambda begin, end: (data[int(ends[begin]) : int(ends[end])],)
