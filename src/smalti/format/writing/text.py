"""`TextShardBuilder`: from samples to whole JSONL, CSV, TSV or XSV shards in memory, each with its meta file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import SchemaError
from smalti.format.hashing import hash_each
from smalti.format.index import ShardInfo
from smalti.format.layout import OFFSET
from smalti.format.sizes import MAX_FILE_BYTES
from smalti.format.text import TextLayout, encode_config, make_lines
from smalti.format.writing.sealing import BuiltShard, FileOptions, FilledShard, ShardOptions

if TYPE_CHECKING:
    import pyarrow as pa


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
