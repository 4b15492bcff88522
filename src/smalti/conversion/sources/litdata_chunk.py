"""One chunk of LitData: its bytes, decompressed, and where its items or its table of rows are.

a chunk       uint32 N | uint32 offset of each item, and of the end | items | perhaps a table of rows
a table       an Arrow file or stream | uint32 size of it | LDARW01 and a zero byte
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from smalti.conversion.sources.source_file import SourceFile, read_some
from smalti.errors import FormatError

ADVICE = "write the set again without it with litdata.optimize, or read it with litdata and write rows with MDSWriter"
_MAX_CHUNK = 1 << 32
_MAX_UNPACKED = 1 << 30
"""Most bytes that a compressed chunk may unpack to: a small file can claim all memory."""
_PIECE_BYTES = 1 << 24
_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 4 + len(_MAGIC)


@dataclass(frozen=True)
class Chunk:
    """A chunk that the index names."""

    file: SourceFile
    compression: str | None
    num_items: int | None
    """Number of samples, by the index; None if it does not say."""

    def damaged(self, reason: str) -> FormatError:
        """Return the error that the chunk cannot be read."""
        return FormatError(
            f"{self.file.url}: the chunk is damaged, or of another form than litdata writes as far as is known: "
            f"{reason}; compare it with the original, or read it with litdata and write rows with MDSWriter",
            key=self.file.key,
        )

    def read(self) -> "ChunkData":
        """Return the content.

        Raises:
            FormatError: It is damaged, too large, or has another number of samples than the index says.
        """
        data = self._content()
        count = int.from_bytes(data[:4], "little")
        begin = 4 + 4 * (count + 1)
        if len(data) < 4 or begin > len(data):
            raise self.damaged(f"{count} items do not fit its {len(data)} bytes")
        if self.num_items not in (None, count):
            raise self.damaged(f"it has {count} samples, and the index says {self.num_items}")
        offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
        if int(offsets[0]) < begin or int(offsets[-1]) > len(data) or (np.diff(offsets) < 0).any():
            raise self.damaged("its offsets do not rise within it")
        return ChunkData(self, data, offsets.tolist())

    def _content(self) -> memoryview:
        """Return the content, which is in memory once."""
        file, content = self.file, bytearray()
        if file.num_bytes > _MAX_CHUNK:
            raise FormatError(f"{file.url}: a chunk of {file.num_bytes} bytes; at most {_MAX_CHUNK} are read")
        with file.open_stored() as stream:
            reader: Any = stream
            if self.compression is not None:
                reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            try:
                while piece := read_some(reader, _PIECE_BYTES, file.url):
                    content += piece
                    if self.compression is not None and len(content) > _MAX_UNPACKED:
                        raise FormatError(
                            f"{file.url}: it unpacks to more than {_MAX_UNPACKED:,} bytes; write the set again with "
                            "smaller chunks, or without compression"
                        )
            except zstandard.ZstdError as error:
                raise self.damaged(f"it cannot be unpacked ({error})") from error
        if self.compression is None and len(content) != file.num_bytes:
            raise self.damaged(f"it has {len(content)} bytes, and had {file.num_bytes}")
        return memoryview(content)


@dataclass(frozen=True)
class ChunkData:
    """The content of a chunk."""

    chunk: Chunk
    data: memoryview
    offsets: Sequence[int]
    """Begin of each item, and the end of the last one."""

    @property
    def num_items(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1

    def table(self) -> memoryview | None:
        """Return the Arrow file of the rows, if the samples are stored there and not as items.

        Raises:
            FormatError: Its size does not fit the chunk.
        """
        has_items = self.num_items == 0 or self.offsets[0] != self.offsets[-1]
        if has_items or bytes(self.data[-len(_MAGIC) :]) != _MAGIC:
            return None
        end = len(self.data) - _TAIL_BYTES
        begin = end - int.from_bytes(self.data[end : end + 4], "little")
        if begin < self.offsets[-1]:
            raise self.chunk.damaged("its table of rows does not fit it")
        return self.data[begin:end]
