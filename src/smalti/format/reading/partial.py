"""Shards of which only some blocks are in memory, each verified before any byte of it is used."""

import mmap

import numpy as np

from smalti.errors import FormatError
from smalti.format.blocks import BlockHashes, num_blocks
from smalti.format.encodings.encoding import Array, Int64s
from smalti.format.hashing import Buffer
from smalti.format.index import ShardInfo
from smalti.format.layout import Offsets, compare_config, num_bytes_of_empty, read_offsets
from smalti.format.reading.batch import ReadPlan, RowSelection, read_plan
from smalti.format.reading.files import MappedFile
from smalti.format.reading.gather import StoredSamples
from smalti.format.reading.shard import Shard


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
    def open_parts(
        cls,
        parts: PartialFile,
        info: ShardInfo,
        *,
        allow_unsafe_types: bool = False,
        check_config: bool = False,
        names: tuple[str, ...] | None = None,
    ) -> "PartialShard":
        """Check the header, whose blocks were added, and return the shard; the arguments are those of `Shard.open`.

        Raises:
            FormatError: The header or the offsets contradict the index.
            SchemaError: A column whose encoding is refused.
        """
        plan = read_plan(info.schema, allow_unsafe_types=allow_unsafe_types, names=names)
        file, table_end = parts.file, 8 + 4 * info.samples
        head = memoryview(file.map)[:table_end]
        offsets = read_offsets(head, samples=info.samples, what=file.name, num_bytes=file.size)
        if check_config:
            compare_config(file.map[table_end : int(offsets[0])], info.to_json(), what=file.name)
        return cls(parts, info, plan, offsets)

    def missing(self, rows: Array | None, max_bytes: int) -> list[tuple[int, int]]:
        """Return the byte ranges that must be added before these samples can be read; None stands for all."""
        begins, ends = self._spans(rows)
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

    def _pick(self, indices: Array) -> RowSelection:
        found = super()._pick(indices)
        self._check(np.asarray(indices))
        return found

    def _check(self, rows: Array | None) -> None:
        if self.missing(rows, 1):
            raise FormatError(
                f"{self.info.raw.basename}: some of the samples lie in blocks that were not fetched.",
                shard=self.info.raw.basename,
            )

    def _spans(self, rows: Array | None) -> tuple[Int64s, Int64s]:
        if rows is None:
            return np.array([0]), np.array([self.mapped().size])
        return self._offsets[rows].astype(np.int64), self._offsets[rows + 1].astype(np.int64)


def header_bytes(info: ShardInfo) -> int:
    """Return the number of bytes in front of the samples of a shard that Smalti wrote."""
    return num_bytes_of_empty(info) + 4 * info.samples
