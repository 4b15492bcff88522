"""Zstandard and Snappy: algorithms whose files say at the start how much comes out of them."""

from typing import BinaryIO

import cramjam
import zstandard

from smalti.format.compression_base import CHUNK_BYTES, BoundedOutput, Compression
from smalti.format.hashing import Buffer

_MAX_HEADER_BYTES = 18  # of a zstd frame
_RUN = 1  # the kind of zstd block that is one byte, repeated
# Snappy's best case is a copy of 64 bytes that takes 3.
_SNAPPY_MOST_FROM_3_BYTES = 64


class Zstandard(Compression):
    """Zstandard, levels 1 to 22."""

    extension = "zstd"
    levels = range(1, 23)
    default_level = 3

    def compress(self, data: Buffer) -> bytes:
        """One frame that declares its content size and carries no checksum, as MosaicML writes it."""
        # Single-threaded on purpose: the bytes must not depend on how many cores there are.
        return zstandard.ZstdCompressor(level=self.level, write_checksum=False).compress(data)

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        try:
            self._check_frame(file, out)
            # This reader gives at most what is asked for, so a bomb cannot inflate in memory; frames that need a
            # window of more than 128 MiB are refused.
            with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
                while content := reader.read(out.room):
                    out.write(content)
        except zstandard.ZstdError as error:
            raise out.damaged(self.extension, error) from error

    def _check_frame(self, file: BinaryIO, out: BoundedOutput) -> None:
        """Return only if the file is one frame, whole, and nothing else, and declares no more than the limit."""
        head = file.read(_MAX_HEADER_BYTES)
        parameters = zstandard.get_frame_parameters(head)
        if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > out.limit:
            raise out.too_long()
        # The decoder stops without a word where a frame is cut off, so its blocks are counted first.
        place = zstandard.frame_header_size(head)
        for _ in range(out.most_parts):
            file.seek(place)
            block = file.read(3)
            if len(block) < 3:
                raise out.damaged(self.extension, "its end is missing")
            kind, size = block[0] >> 1 & 3, int.from_bytes(block, "little") >> 3
            place += 3 + (1 if kind == _RUN else size)
            if block[0] & 1:
                break
        else:
            raise out.damaged(self.extension, "it has more blocks than its content needs")
        place += 4 if parameters.has_checksum else 0
        found = file.seek(0, 2)
        if found != place:
            raise out.damaged(self.extension, f"its blocks take {place} bytes, and the file has {found}")
        file.seek(0)


class Snappy(Compression):
    """Snappy's raw block, without framing; it has no levels."""

    extension = "snappy"

    def compress(self, data: Buffer) -> bytes:
        """One block."""
        return bytes(cramjam.snappy.compress_raw(data))

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        size = file.seek(0, 2)
        file.seek(0)
        # A block cannot be unpacked in pieces: so nothing is read or allocated before its sizes are plausible.
        declared = _declared_length(file.read(5))
        if declared is None:
            raise out.damaged(self.extension, "it does not start with a length")
        if declared > out.limit:
            raise out.too_long()
        if not declared <= size * _SNAPPY_MOST_FROM_3_BYTES // 3 or size > 32 + declared + declared // 6:
            raise out.damaged(self.extension, f"{size} bytes cannot hold the {declared} that it declares")
        file.seek(0)
        try:
            content = memoryview(cramjam.snappy.decompress_raw(file.read()))
        except cramjam.DecompressionError as error:
            raise out.damaged(self.extension, error) from error
        for begin in range(0, len(content), CHUNK_BYTES):
            out.write(content[begin : begin + CHUNK_BYTES])


def _declared_length(head: bytes) -> int | None:
    """The number that a block starts with: seven bits in each byte, the lowest first, the last one below 128."""
    length = 0
    for place, byte in enumerate(head):
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return length if length < 1 << 32 else None
    return None
