"""Reading one uncompressed MDS shard through a memory map: samples, and batches by column.

Of a `PartialShard` only some blocks are in memory, each verified before any byte of it is used.
"""

import mmap
import operator
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import BadImageError, ClosedError, FormatError, SampleIndexError
from smalti.format.encodings.encoding import Array, Int64s
from smalti.format.encodings.registry import is_unsafe
from smalti.format.hashing import BlockHashes, Buffer, num_blocks
from smalti.format.index import ShardInfo
from smalti.format.layout import Offsets, compare_config, head_bytes, num_bytes_of_empty, read_offsets
from smalti.format.reading.batch import (
    DECODER_ERRORS,
    DEFAULTS,
    OpenOptions,
    ReadPlan,
    check_rows,
    damaged,
    gather_batch,
    read_batch,
    read_plan,
)
from smalti.format.reading.files import MappedFile, MappedRows, StoredSamples

_BEGIN_AND_END = struct.Struct("<2I").unpack_from


class Shard:
    """The samples of one shard file; read-only and thread-safe.

    Results never refer to the file: it may be unlinked, and the shard closed, at any time.
    """

    __slots__ = ("_file", "_len", "info", "plan")

    def __init__(self, file: MappedFile, info: ShardInfo, plan: ReadPlan) -> None:
        """Use `Shard.open`."""
        self.info = info
        self.plan = plan
        """The schema prepared for reading; the same object for shards of equal schemas."""
        self._file: MappedFile | None = file
        self._len = info.samples

    @classmethod
    def open(cls, path: Path, info: ShardInfo, options: OpenOptions = DEFAULTS) -> "Shard":
        """Map the uncompressed file and check its header and its table of offsets against the index.

        Args:
            path: The file as `info.raw` describes it.
            info: The shard's entry in the index.
            options: The columns to read, and what is allowed and checked.

        Raises:
            ChecksumMismatch: The size is not the declared one.
            FormatError: The header or the offsets are damaged or contradict the index.
            SchemaError: A column whose encoding is refused.
            OSError: The file cannot be opened.
        """
        plan = read_plan(info.schema, allow_unsafe_types=options.allow_unsafe_types, names=options.names)
        file = MappedFile.open(path, num_bytes=info.raw.num_bytes, name=info.raw.basename)
        _check_head(file, info, options, str(path))
        return cls(file, info, plan)

    @property
    def names(self) -> tuple[str, ...] | None:
        """Columns that are read, in the order of the result; None for all."""
        return self.plan.names

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return sample `index` as column to value; negative numbers count from the end.

        Raises:
            IndexError: No such sample.
            FormatError: Its bytes are damaged.
            ValueError: The shard is closed.
        """
        number = operator.index(index)
        if number < 0:
            number += self._len
        if not 0 <= number < self._len:
            raise SampleIndexError(f"sample {index} of {self._len} in shard {self.info.raw.basename}")
        file, plan = self.mapped(), self.plan
        data = file.map
        begin, end = _BEGIN_AND_END(data, 4 + 4 * number)
        if end > file.size or begin + plan.min_bytes > end:
            raise self._too_short(number)
        if plan.names is not None:
            return self._some_columns(file, number, begin, end)
        lengths = iter(plan.lengths(data, begin))
        begin += plan.head_bytes
        sample: dict[str, Any] = {}
        for name, codec, decode, size in plan.steps:
            after = begin + (next(lengths) if size is None else size)
            if after > end:
                raise self._too_short(number)
            try:
                sample[name] = decode(data[begin:after])
            except DECODER_ERRORS as error:
                where = f"{file.name}, sample {number}"
                raise damaged(name, codec, where, error, sample=number) from error
            begin = after
        return sample

    def _some_columns(self, file: MappedFile, number: int, begin: int, end: int) -> dict[str, Any]:
        """Return the columns that are read of a sample, whose bytes are [begin, end); the others are not decoded."""
        data, plan = file.map, self.plan
        lengths = plan.lengths(data, begin)
        begin += plan.head_bytes
        sample: dict[str, Any] = {}
        for (name, codec, decode, size), (fixed_bytes, num_lengths) in zip(plan.steps, plan.places, strict=True):
            first = begin + fixed_bytes + sum(lengths[:num_lengths])
            after = first + (lengths[num_lengths] if size is None else size)
            if after > end:
                raise self._too_short(number)
            try:
                sample[name] = decode(data[first:after])
            except DECODER_ERRORS as error:
                raise damaged(name, codec, f"{file.name}, sample {number}", error, sample=number) from error
        return sample

    def batch(self, indices: Array) -> dict[str, Any]:
        """Return the samples at `indices`, by column, in that order.

        Args:
            indices: Integers, shape (n,), each in [0, len); repeats are allowed.

        Returns:
            Column to values: a fresh array of shape (n,) for numbers (`int` is int64), of shape (n, *shape) for
                `ndarray:DTYPE:SHAPE`, else a list of n decoded values; for `jpeg` and `png` a list of undecoded bytes.

        Raises:
            IndexError: A number outside the shard.
            FormatError: Bytes of one of the samples are damaged.
            ValueError: The shard is closed.
        """
        return read_batch(self._pick(indices), self.plan)

    def gather(self, indices: Array, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the samples at `indices`, by column, undecoded: the form in which processes exchange them.

        `indices` are as in `batch`; None stands for all columns.

        Returns:
            Column to values: arrays as in `batch`, and a `Ragged` for every other column.

        Raises:
            IndexError: A number outside the shard.
            FormatError: One of the samples is damaged.
            SchemaError: No such column.
            ValueError: The shard is closed.
        """
        return gather_batch(self._pick(indices), self.plan, columns)

    def stored_samples(self) -> StoredSamples:
        """Return the samples as stored, to be copied or hashed without decoding; keeps the file mapped.

        Raises:
            FormatError: The table of offsets was damaged after the shard was opened.
            ValueError: The shard is closed.
        """
        file = self.mapped()
        data = memoryview(file.map)
        return StoredSamples(data, read_offsets(data, samples=self._len, what=file.name).astype(np.int64))

    def close(self) -> None:
        """Release the file; concurrent reads finish."""
        self._file = None

    def mapped(self) -> MappedFile:
        """Return the file's map, which lives as long as the result is referenced.

        Raises:
            ValueError: The shard is closed.
        """
        file = self._file
        if file is None:
            raise ClosedError(f"shard {self.info.raw.basename} is closed")
        return file

    def _pick(self, indices: Array) -> MappedRows:
        rows = check_rows(indices, self._len, self.info.raw.basename)
        return MappedRows([self.mapped()], np.zeros(len(rows), np.int64), rows.astype(np.int64))

    def _too_short(self, number: int) -> FormatError:
        return FormatError(
            f"{self.info.raw.basename}, sample {number}: its columns need more bytes than it has; the shard is "
            "damaged. Fetch it again, or run the writer again.",
            sample=number,
        )


def _check_head(file: MappedFile, info: ShardInfo, options: OpenOptions, what: str) -> Offsets:
    """Return the table of offsets after a check of what stands in front of the samples."""
    offsets = read_offsets(memoryview(file.map), samples=info.samples, what=what)
    if options.check_config:
        compare_config(file.map[8 + 4 * info.samples : int(offsets[0])], info.to_json(), what=file.name)
    return offsets


def check_written(data: memoryview, info: ShardInfo, *, check_config: bool = True) -> None:
    """Check that a reader of the uncompressed file `data`, which was just written, can read it: header and last sample.

    Images are not decoded by force: bytes that are no usable image are the fault of that sample, and readers report it.
    Columns that run code when they are read are left out. `check_config` is as for `Shard.open`.

    Raises:
        FormatError: A reader would refuse the file or the sample.
    """
    where = info.raw.basename
    offsets = read_offsets(data, samples=info.samples, what=where)
    config = bytes(data[8 + 4 * info.samples : int(offsets[0])])
    if check_config:
        compare_config(config, info.to_json(), what=where)
    if not info.samples:
        return
    begin, end = offsets[-2:].tolist()
    single: Any = head_bytes(config, np.array([end - begin])) + bytes(data[begin:end])
    names = tuple(name for name, encoding in info.schema.columns().items() if not is_unsafe(encoding))
    plan = read_plan(info.schema, allow_unsafe_types=True, names=None if names == info.schema.names else names)
    with suppress(BadImageError):  # bytes do for a map here
        Shard(MappedFile(single, where), replace(info, samples=1), plan)[0]


class PartialFile:
    """Memory for all bytes of a file, of which only the blocks that were added take space; thread-safe."""

    def __init__(self, hashes: BlockHashes, name: str) -> None:
        """Reserve the address range; `name` is the file's, for messages."""
        memory = mmap.mmap(-1, hashes.num_bytes)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a huge page would take 2 MiB of memory for each block
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.file = MappedFile(memory, name)
        self._hashes = hashes
        self._is_loaded = np.zeros(num_blocks(hashes.num_bytes, hashes.block_bytes), np.bool_)
        self.num_loaded_bytes = 0
        """Bytes of the blocks that were added."""

    def add(self, data: Buffer, begin: int) -> None:
        """Verify and add whole blocks, the first of which begins at byte `begin`.

        Raises:
            ChecksumMismatch: a block is damaged or too short; none was added.
        """
        size = self._hashes.block_bytes
        self._hashes.verify(data, begin // size)
        self.file.map[begin : begin + len(data)] = bytes(data)
        self._is_loaded[begin // size : num_blocks(begin + len(data), size)] = True
        self.num_loaded_bytes = min(int(np.count_nonzero(self._is_loaded)) * size, self._hashes.num_bytes)

    def missing(self, begins: Int64s, ends: Int64s, max_bytes: int) -> list[tuple[int, int]]:
        """Return the byte ranges of the blocks that [begin, end) of each pair needs and that were not added yet.

        Blocks side by side form one range, of at most `max_bytes`.
        """
        size, is_needed = self._hashes.block_bytes, np.zeros(len(self._is_loaded) + 1, np.int64)
        filled = ends > begins
        np.add.at(is_needed, begins[filled] // size, 1)
        np.add.at(is_needed, -(-ends[filled] // size), -1)
        places = np.flatnonzero((np.cumsum(is_needed)[:-1] > 0) & ~self._is_loaded)
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if places.size else []
        most = max(1, max_bytes // size)
        parts = (run[at : at + most] for run in runs for at in range(0, len(run), most))
        return [(int(part[0]) * size, min((int(part[-1]) + 1) * size, self._hashes.num_bytes)) for part in parts]


class PartialShard(Shard):
    """A shard in a `PartialFile`; reading a sample whose blocks were not added raises `FormatError`."""

    __slots__ = ("_offsets", "parts")

    def __init__(self, parts: PartialFile, info: ShardInfo, plan: ReadPlan, offsets: Offsets) -> None:
        """Use `open_parts`."""
        super().__init__(parts.file, info, plan)
        self.parts = parts
        self._offsets = offsets

    @classmethod
    def open_parts(cls, parts: PartialFile, info: ShardInfo, options: OpenOptions = DEFAULTS) -> "PartialShard":
        """Check the header, whose blocks were added, and return the shard; the arguments are those of `Shard.open`.

        Raises:
            FormatError: The header or the offsets contradict the index.
            SchemaError: A column whose encoding is refused.
        """
        plan = read_plan(info.schema, allow_unsafe_types=options.allow_unsafe_types, names=options.names)
        return cls(parts, info, plan, _check_head(parts.file, info, options, parts.file.name))

    def missing(self, rows: Array | None, max_bytes: int) -> list[tuple[int, int]]:
        """Return the byte ranges that must be added before these samples can be read; None stands for all."""
        if rows is None:
            return self.parts.missing(np.array([0]), np.array([self.mapped().size]), max_bytes)
        begins, ends = self._offsets[rows].astype(np.int64), self._offsets[rows + 1].astype(np.int64)
        return self.parts.missing(begins, ends, max_bytes)

    def stored_samples(self) -> StoredSamples:
        """As `Shard.stored_samples`.

        Raises:
            FormatError: not all blocks were added.
        """
        self._check(None)
        return super().stored_samples()

    def __getitem__(self, index: int) -> dict[str, object]:
        """As `Shard.__getitem__`; raises `FormatError` if its blocks were not added."""
        number = index + len(self) if index < 0 else index
        if 0 <= number < len(self):
            self._check(np.array([number]))
        return super().__getitem__(index)

    def _pick(self, indices: Array) -> MappedRows:
        found = super()._pick(indices)
        self._check(np.asarray(indices))
        return found

    def _check(self, rows: Array | None) -> None:
        if self.missing(rows, 1):
            raise FormatError(
                f"{self.info.raw.basename}: some of the samples lie in blocks that were not fetched.",
                shard=self.info.raw.basename,
            )


def header_bytes(info: ShardInfo) -> int:
    """Return the number of bytes in front of the samples of a shard that Smalti wrote."""
    return num_bytes_of_empty(info) + 4 * info.samples
