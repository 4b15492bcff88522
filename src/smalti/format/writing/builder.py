"""`ShardBuilder` and `TextShardBuilder`, from samples or Arrow batches to filled shards in memory.

`ShardCutter` decides where MDS shards end. `TextShardBuilder` makes JSONL, CSV, TSV and XSV shards.

A shard ends where MosaicML's writer ends it, but MosaicML's empty first shard is left out. Stores and files are not
known here.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from smalti.errors import ArgumentError, SchemaError
from smalti.format.encodings.encoding import Encoding, Int64s
from smalti.format.hashing import hash_each
from smalti.format.index import ShardInfo
from smalti.format.layout import OFFSET
from smalti.format.schema import Schema
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text import TextLayout, encode_config, make_lines
from smalti.format.writing.rows import RowBlock, fixed_bytes, make_checked_encoder, make_row_block
from smalti.format.writing.sealing import (
    BuiltShard,
    FileOptions,
    FilledMds,
    FilledShard,
    FillingShard,
    ShardOptions,
    SpareMemory,
)

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET_BYTES = 4  # entry of each sample in the table of offsets
_BLOCK_BYTES = 1 << 20  # of single samples: makes the cost per block negligible; larger blocks gain nothing
Deliver: TypeAlias = Callable[[FilledShard], None]
Strips: TypeAlias = Callable[[int, int], Iterable[memoryview]]


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
        if not schema.names:
            raise SchemaError("`columns`: a shard needs at least one column; none is given.")
        self.schema = schema
        self._codecs = schema.codecs(allow_unsafe_types=allow_unsafe_types)
        self._shards = _Shards(schema, self._codecs, FileOptions.of(options), spare or SpareMemory())
        self._block: RowBlock | None = None

    def add(self, sample: Mapping[str, Any]) -> list[FilledShard]:
        """Add one sample, and return the shard that it completed, if any.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row`, the number of the
                sample in this builder, are attributes. The sample is not added.
        """
        self._rows().write(sample)
        return self._shards.pop_ready()

    def row_writer(self, deliver: Deliver, on_error: Callable[[BaseException], None]) -> RowBlock:
        """Return the functions to add single samples with in place of `add`.

        `deliver` gets every completed shard, and `on_error` every error that a call ends with. Called before the first
        sample, once.
        """
        self._shards.deliver = deliver
        return self._rows(on_error)

    def add_batch(self, batch: "pa.RecordBatch") -> list[FilledShard]:
        """Add every row of a batch, column by column, and return the shards that were completed.

        Raises:
            SchemaError: As in `add`; no row of the batch is added.
        """
        from smalti.format.writing.arrow import encode_batch

        if batch.num_rows == 0:
            return []
        return self._push(*encode_batch(self.schema, self._codecs, batch, first_row=self._shards.next_row))

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add samples as stored in a shard of the same schema, and return the shards that were completed.

        Nothing is decoded or checked: the shard was checked when it was opened (`Shard.stored_samples`).

        `lengths` are the bytes of each sample, int64, shape (n,); `data` holds the samples back to back, and is copied.

        Raises:
            SchemaError: The lengths are not those of the data, or a shard file would exceed 4 GiB; nothing was added.
        """
        if (total := int(lengths.sum())) != len(data):
            raise SchemaError(f"the samples' lengths add up to {total} bytes, found {len(data)}")
        return self._push(lengths, _strips_of(lengths, data)) if len(lengths) else self._shards.pop_ready()

    def finish(self) -> list[FilledShard]:
        """Return the last shard, if it has samples; the builder can be used afterwards, for the next shard."""
        self._end_block()
        self._shards.finish()
        self._end_block()
        return self._shards.pop_ready()

    def _rows(self, on_error: Callable[[BaseException], None] = lambda _: None) -> RowBlock:
        if self._block is None:
            shards = self._shards
            self._block = make_row_block(
                self.schema,
                self._codecs,
                take=shards.take,
                lengths=shards.variable_lengths,
                fallback=shards.fallback,
                on_error=on_error,
            )
        return self._block

    def _push(self, lengths: Int64s, strips: Strips) -> list[FilledShard]:
        self._end_block()
        try:
            self._shards.push(lengths, strips)
        finally:
            self._end_block()
        return self._shards.pop_ready()

    def _end_block(self) -> None:
        """Move the samples of the block to the shard, and start one that fits the room in the shard."""
        if self._block is not None:
            self._block.flush()


def _strips_of(lengths: Int64s, data: memoryview) -> Strips:
    """Return the bytes of samples of these lengths, back to back in `data`, as `_Shards.push` takes them."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return lambda begin, end: (data[int(ends[begin]) : int(ends[end])],)


class _Shards:
    """The shard that is being filled, also from blocks of single samples; and the completed ones until `pop_ready`.

    Not the builder: the functions that fill the blocks would then refer back to it, and delay the release of its
    memory.
    """

    def __init__(self, schema: Schema, codecs: tuple[Encoding, ...], files: FileOptions, spare: SpareMemory) -> None:
        self._schema, self._files, self._spare = schema, files, spare
        self._encode = make_checked_encoder(schema, codecs)
        self._least_bytes = fixed_bytes(schema)  # of a sample
        overhead, limit = 8 + len(files.config_of(schema)), files.size_limit
        self._cutter = ShardCutter(overhead, limit)
        most_samples = (limit or MAX_FILE_BYTES) // (self._least_bytes + _OFFSET_BYTES) + 1
        self._front = overhead + _OFFSET_BYTES * most_samples
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

    def fallback(self, sample: Mapping[str, Any]) -> bytes:
        """Return the stored bytes of a sample that the fast path declines."""
        return self._encode(sample, self.next_row)

    def take(self, data: bytearray) -> int:
        """Add the samples of a block to the shard, and return the size at which the next block is full."""
        if self.variable_lengths or data:
            self._push_block(memoryview(data))
            if self.deliver is not None:
                for shard in self.pop_ready():
                    self.deliver(shard)
        # So many bytes fit the shard whatever their samples are, so only the last sample of a block can end a shard.
        least = self._least_bytes
        return min(_BLOCK_BYTES, self._cutter.room * least // (least + _OFFSET_BYTES)) if least else -1

    def _push_block(self, data: memoryview) -> None:
        count = len(self.variable_lengths)
        lengths = np.fromiter(self.variable_lengths, np.int64, count) + self._least_bytes
        if int(lengths.sum()) != len(data):
            self._is_incomplete = True
            self._check_complete()
        begin = len(data) - int(lengths[-1])
        try:
            if len(data) + _OFFSET_BYTES * count <= self._cutter.room:
                self.push(lengths, lambda *_: (data,))
            else:
                # The last sample is pushed alone: it may end the shard, or be refused because it exceeds any shard.
                if count > 1:  # they fit, unless an interrupt has let the block grow
                    self.push(lengths[:-1], _strips_of(lengths, data))
                self.push(lengths[-1:], lambda *_: (data[begin:],))
        except SchemaError:  # the last sample is refused; all others were added
            self.variable_lengths.clear()
            raise
        # Last: after an interrupt anywhere above, the lengths are not those of the next block, and it is refused.
        self.variable_lengths.clear()

    def push(self, lengths: Int64s, strips: Strips) -> None:
        """Add samples of these lengths; `strips(begin, end)` are the bytes of those [begin, end).

        Raises:
            SchemaError: A shard file would exceed 4 GiB; nothing was added.
        """
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

    def finish(self) -> None:
        """Complete the last shard, if it has samples."""
        self._check_complete()
        self._cutter.close()
        self._finish_shard()

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
            self._ready.append(FilledMds(self._schema, self._files, self._num_shards, lengths, self._filling))
            self._filling, self._lengths = None, array("q")
            self._num_shards += 1


class TextShardBuilder:
    """Cuts samples into shards called `shard.00000.csv`, `shard.00001.csv`, ...; not thread-safe.

    The same samples and options give the same bytes, those of MosaicML's writer; only its empty first shard, written if
    the very first sample exceeds the size limit, is left out.
    """

    def __init__(self, layout: TextLayout, options: ShardOptions) -> None:
        """Check the options and start with an empty shard.

        Raises:
            SchemaError: A layout or an option that cannot be used.
        """
        layout.check_writable()
        self.schema = layout.schema
        self._lines = make_lines(layout)
        self._layout = layout
        self._files = FileOptions.of(options)
        self._room = MAX_FILE_BYTES - len(layout.header)
        self._limit = min(self._files.size_limit or MAX_FILE_BYTES, self._room)
        self._pending: list[bytes] = []
        self._size = 0
        self._num_shards = 0
        self._num_samples = 0

    def add(self, sample: Mapping[str, Any]) -> list[FilledShard]:
        """Add one sample, and return the shard that it completed, if any.

        Raises:
            SchemaError: A column is missing or unknown, or a value does not fit; `column` and `row`, the number of the
                sample in this builder, are attributes. The sample is not added.
        """
        return self._push([self._lines.encode(sample, self._num_samples)])

    def add_batch(self, batch: "pa.RecordBatch | pa.Table") -> list[FilledShard]:
        """Add every row of a batch, and return the shards that it completed.

        Raises:
            SchemaError: As in `add`; no row of the batch is added.
        """
        names = batch.schema.names
        if len(set(names)) != len(names):
            raise SchemaError(f"batch at row {self._num_samples}: a column stands twice; name each once.")
        encode, first = self._lines.encode, self._num_samples
        return self._push([encode(sample, row) for row, sample in enumerate(batch.to_pylist(), start=first)])

    def add_encoded(self, lengths: Int64s, data: memoryview) -> list[FilledShard]:
        """Add lines with their ends, as stored in a shard of the same dialect; as `ShardBuilder.add_encoded`."""
        ends = np.concatenate(([0], np.cumsum(lengths))).tolist()
        return self._push([bytes(data[begin:end]) for begin, end in pairwise(ends)])

    def finish(self) -> list[FilledShard]:
        """Return the last shard, if it has samples; the builder can be used afterwards, for the next shard."""
        return [self._take()] if self._pending else []

    def _push(self, lines: list[bytes]) -> list[FilledShard]:
        # Before anything is added: a data file has at most 4 GiB.
        if max(map(len, lines), default=0) > self._room:
            raise SchemaError(
                f"one sample of more than {self._room} bytes does not fit a shard, whose offsets are 32 bit. Split it.",
                row=self._num_samples,
            )
        if self._files.size_limit is None and self._size + sum(map(len, lines)) > self._room:
            raise SchemaError(
                f"one shard for everything would exceed {MAX_FILE_BYTES} bytes, which 32 bit offsets cannot address; "
                'give a `size_limit` such as "64mb".'
            )
        filled: list[FilledShard] = []
        for line in lines:
            # MosaicML's rule: neither the header nor the meta file counts, and an open shard has at least one sample.
            if self._pending and self._size + len(line) > self._limit:
                filled.append(self._take())
            self._pending.append(line)
            self._size += len(line)
        self._num_samples += len(lines)
        return filled

    def _take(self) -> FilledShard:
        shard = FilledText(self._layout, self._files, self._num_shards, self._pending)
        self._pending, self._size = [], 0
        self._num_shards += 1
        return shard


@dataclass(frozen=True)
class FilledText:
    """The lines of one shard."""

    layout: TextLayout
    files: FileOptions
    number: int
    """Counts the shards of one builder from 0."""
    lines: list[bytes]

    def row_hash(self) -> int:
        """Return the sum of the hashes of its lines, with their ends."""
        return hash_each(self.lines)

    def seal(self) -> BuiltShard:
        """Return the finished shard: data file and meta file."""
        layout, lines = self.layout, self.lines
        body = b"".join([layout.header, *lines])
        files = self.files.decide(memoryview(body))
        begins = np.zeros(len(lines) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, lines), np.int64, len(lines)), out=begins[1:])
        table = (begins + len(layout.header)).astype(OFFSET).tobytes()
        config = layout.config(compression=files.compression_name, hashes=files.hashes, size_limit=files.size_limit)
        name = f"shard.{self.number:05}.{layout.format}"
        raw, zipped, data = files.finish(name, body)
        meta, zip_meta, stored_meta = files.finish(
            f"{name}.meta", len(lines).to_bytes(4, "little") + table + encode_config(config)
        )
        info = ShardInfo(
            layout.schema,
            len(lines),
            raw,
            zipped,
            files.compression_name,
            files.hashes,
            files.size_limit,
            format=layout.format,
            meta=meta,
            zip_meta=zip_meta,
            newline=layout.newline,
            separator=layout.separator,
        )
        return BuiltShard(info, (data, stored_meta))
