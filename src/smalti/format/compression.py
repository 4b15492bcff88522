"""The compression algorithms of MDS, and the rule that no file unpacks to more than its limit.

To add an algorithm, write a subclass of `Compression` and add it to `_ALGORITHMS` at the end of this file. Zstandard
and Snappy files declare the size of their content; the decoders of Brotli, bzip2 and gzip return as much as the caller
requests. Shard layouts are not known here.
"""

import bz2
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import brotli
import cramjam
import zstandard

from smalti.errors import FormatError, SchemaError
from smalti.format.hashing import Buffer
from smalti.regular_files import open_regular

CHUNK_BYTES = 1 << 18
"""Bytes unpacked at a time: large enough that the overhead of Python is negligible, small against any shard."""
_MAX_HEADER_BYTES = 18  # of a zstd frame
_RLE_BLOCK = 1  # type of a zstd block that is one byte, repeated
_SNAPPY_MAX_COPY_BYTES = 64  # Snappy's best ratio: a copy of 64 bytes is stored in 3
_PIECE_BYTES = 1 << 16  # read at a time; a decoder that reaches the end of a member copies the remaining piece


class Compression(ABC):
    """One algorithm at one level; pure and thread-safe.

    Every algorithm releases the interpreter lock while it compresses and decompresses.
    """

    extension: ClassVar[str]
    """Extension of compressed files, without the dot; the algorithm's name as well."""
    levels: ClassVar[range] = range(0)
    """Levels that may be chosen; empty if the algorithm has none."""
    default_level: ClassVar[int] = 0

    def __init__(self, text: str, level: int) -> None:
        self.text = text
        """As written by the user and in the index file: `"zstd"` or `"zstd:7"`."""
        self.level = level

    @abstractmethod
    def compress(self, data: Buffer) -> bytes:
        """Return the content of a file that `decompress_file`, and MosaicML's reader, turn back into `data`.

        The same data and level give the same bytes, at any time and on any number of cores.
        """

    def decompress_file(self, src: Path, dst: BinaryIO, limit: int) -> int:
        """Write the content of `src` to `dst` and return its number of bytes.

        No more than `limit` bytes, the size that the index declares, are written. Memory is bounded by the sizes
        of the file and of its content, whatever its header declares.

        Raises:
            FormatError: Not such a file, truncated, followed by other data, or its content is longer than `limit`.
            OSError: `src` cannot be read, or `dst` cannot be written.
        """
        out = BoundedOutput(dst, limit, src)
        with open_regular(src) as file:
            self._unpack(file, out)
        return out.total

    def decompress(self, data: bytes, limit: int) -> bytes:
        """Return the content of the bytes of such a file, at most `limit` bytes.

        Raises:
            FormatError: As for `decompress_file`.
        """
        content = BytesIO()
        self._unpack(BytesIO(data), BoundedOutput(content, limit, Path(f"{len(data)} bytes of {self.extension}")))
        return content.getvalue()

    def decompress_start(self, src: BinaryIO, dst: BinaryIO, limit: int, *, name: str) -> None:
        """Write the content of `src` to `dst` in pieces as they are read, until `dst.write` raises an error to stop.

        For readers that need the beginning of a large file: the end of `src`, called `name` in messages, is read only
        if the content is. Snappy files are read whole.

        Raises:
            FormatError: As for `decompress_file`, for what was read.
        """
        self._unpack_start(src, BoundedOutput(dst, limit, Path(name)))

    def _unpack_start(self, file: BinaryIO, out: "BoundedOutput") -> None:
        self._unpack(file, out)

    @abstractmethod
    def _unpack(self, file: BinaryIO, out: "BoundedOutput") -> None:
        """Write the whole content of `file` to `out`, or raise FormatError."""


class BoundedOutput:
    """A writer that passes data on up to the limit, and makes the errors that name the file."""

    def __init__(self, dst: BinaryIO, limit: int, src: Path) -> None:
        self._dst = dst
        self._src = src
        self.limit = limit
        self.total = 0

    @property
    def max_parts(self) -> int:
        """Largest accepted number of blocks or members: a file of empty ones would take minutes to read."""
        return 1024 + self.limit // 512

    @property
    def next_read_bytes(self) -> int:
        """Bytes to request from the decoder: at most a chunk, and one byte beyond the limit, to detect more content."""
        return min(CHUNK_BYTES, self.limit - self.total + 1)

    def write(self, data: Buffer) -> None:
        """Pass `data` on.

        Raises:
            FormatError: It goes beyond the limit; nothing of it was passed on.
        """
        self.total += len(data)
        if self.total > self.limit:
            raise self.too_long()
        self._dst.write(data)

    def too_long(self) -> FormatError:
        """Return the error for content beyond the limit."""
        return FormatError(
            f"{self._src}: its content is longer than the {self.limit} bytes that the index declares; the file is "
            "damaged or hostile. Nothing beyond the limit was written.",
            path=str(self._src),
            limit=self.limit,
        )

    def damaged(self, algorithm: str, reason: object) -> FormatError:
        """Return the error for a file that is not in the format that the index declares."""
        return FormatError(
            f"{self._src}: not a readable {algorithm} file ({reason}); it was cut short, damaged or is another file. "
            "Fetch it again, or run the writer again.",
            path=str(self._src),
        )


class Zstandard(Compression):
    """Zstandard, levels 1 to 22."""

    extension = "zstd"
    levels = range(1, 23)
    default_level = 3

    def compress(self, data: Buffer) -> bytes:
        """Return one frame that declares its content size and carries no checksum, as MosaicML writes it."""
        # Single-threaded on purpose: the bytes must not depend on the number of cores.
        return zstandard.ZstdCompressor(level=self.level, write_checksum=False).compress(data)

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        # The file is one whole frame, nothing follows it, and it declares no more than the limit.
        head = file.read(_MAX_HEADER_BYTES)
        try:
            parameters, place = zstandard.get_frame_parameters(head), zstandard.frame_header_size(head)
        except zstandard.ZstdError as error:
            raise out.damaged(self.extension, error) from error
        if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > out.limit:
            raise out.too_long()
        # The decoder stops without an error at the end of a truncated frame, so the blocks are walked first.
        for _ in range(out.max_parts):
            file.seek(place)
            block = file.read(3)
            if len(block) < 3:
                raise out.damaged(self.extension, "its end is missing")
            kind, size = block[0] >> 1 & 3, int.from_bytes(block, "little") >> 3
            place += 3 + (1 if kind == _RLE_BLOCK else size)
            if block[0] & 1:
                break
        else:
            raise out.damaged(self.extension, "it has more blocks than its content needs")
        place += 4 if parameters.has_checksum else 0
        found = file.seek(0, 2)
        if found != place:
            raise out.damaged(self.extension, f"its blocks take {place} bytes, and the file has {found}")
        file.seek(0)
        self._unpack_start(file, out)

    def _unpack_start(self, file: BinaryIO, out: BoundedOutput) -> None:
        try:
            # This reader returns at most the requested bytes, so a decompression bomb cannot fill the memory; frames
            # that need a window of more than 128 MiB are refused.
            with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
                while content := reader.read(out.next_read_bytes):
                    out.write(content)
        except zstandard.ZstdError as error:
            raise out.damaged(self.extension, error) from error


class Snappy(Compression):
    """Snappy's raw block, without framing; it has no levels."""

    extension = "snappy"

    def compress(self, data: Buffer) -> bytes:
        """Return one block."""
        return bytes(cramjam.snappy.compress_raw(data))

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        size = file.seek(0, 2)
        file.seek(0)
        # A block cannot be unpacked in pieces, so nothing is read or allocated before its sizes are plausible.
        try:
            declared = cramjam.snappy.decompress_raw_len(file.read(5)) if size else None
        except cramjam.DecompressionError:
            declared = None
        if declared is None:
            raise out.damaged(self.extension, "it does not start with a length")
        if declared > out.limit:
            raise out.too_long()
        if not declared <= size * _SNAPPY_MAX_COPY_BYTES // 3 or size > 32 + declared + declared // 6:
            raise out.damaged(self.extension, f"{size} bytes cannot hold the {declared} that it declares")
        file.seek(0)
        try:
            content = memoryview(cramjam.snappy.decompress_raw(file.read()))
        except cramjam.DecompressionError as error:
            raise out.damaged(self.extension, error) from error
        for begin in range(0, len(content), CHUNK_BYTES):
            out.write(content[begin : begin + CHUNK_BYTES])


class _StreamCompression(Compression):
    """A file of one member, or of several end to end if the algorithm's own tools write such files."""

    many_members: ClassVar[bool] = True
    new_decoder: Callable[[], Any]
    """Returns a decoder with the interface of `bz2.BZ2Decompressor`."""
    decoder_errors: ClassVar[tuple[type[Exception], ...]]
    """Errors that the decoder raises for damaged data."""

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        decoder, num_members = self.new_decoder(), 1
        while True:
            data = b""
            if decoder.eof:
                data = decoder.unused_data or file.read(_PIECE_BYTES)
                if not data:
                    return
                if num_members >= (out.max_parts if self.many_members else 1):
                    raise out.damaged(self.extension, "something follows its end")
                decoder, num_members = self.new_decoder(), num_members + 1
            elif decoder.needs_input:
                data = file.read(_PIECE_BYTES)
                if not data:
                    raise out.damaged(self.extension, "its end is missing")
            try:
                content = decoder.decompress(data, out.next_read_bytes)
            except self.decoder_errors as error:
                raise out.damaged(self.extension, error) from error
            out.write(content)


class Bzip2(_StreamCompression):
    """bzip2, levels 1 to 9."""

    extension = "bz2"
    levels = range(1, 10)
    default_level = 9
    new_decoder = bz2.BZ2Decompressor
    decoder_errors = (OSError, ValueError)

    def compress(self, data: Buffer) -> bytes:
        """Return one bzip2 stream."""
        return bz2.compress(data, self.level)


class _GzipDecoder:
    """zlib's decoder of gzip members, as `_StreamCompression` calls it; it checks their length and CRC-32."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        content = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        # After a full result more may follow, even if all input was consumed.
        self.needs_input = len(content) < max_length
        return content


class Gzip(_StreamCompression):
    """gzip, levels 0 (no compression) to 9."""

    extension = "gz"
    levels = range(10)
    default_level = 9
    new_decoder = _GzipDecoder
    decoder_errors = (zlib.error,)

    def compress(self, data: Buffer) -> bytes:
        """Return one gzip member whose time of writing is 0.

        The header is written here and not by `gzip`, whose bytes differ between Python versions. MosaicML's writer
        stores the current time in it; apart from those four bytes the files are equal.
        """
        deflate = zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = (deflate.compress(data), deflate.flush())
        effort = {9: 2, 1: 4}.get(self.level, 0)
        head = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, effort, 0xFF])
        tail = zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")
        return b"".join([head, *body, tail])


class _BrotliDecoder:
    """Brotli's decoder with the interface of `bz2.BZ2Decompressor`; it raises for data after the end."""

    unused_data = b""

    def __init__(self) -> None:
        self._brotli = brotli.Decompressor()
        self._full = False

    @property
    def eof(self) -> bool:
        return bool(self._brotli.is_finished())

    @property
    def needs_input(self) -> bool:
        return bool(self._brotli.can_accept_more_data()) and not self._full

    def decompress(self, data: bytes, max_length: int) -> bytes:
        # The result may be longer than requested: whole blocks of 32 KiB and more.
        content: bytes = self._brotli.process(data, output_buffer_limit=max_length)
        self._full = len(content) >= max_length  # then more may follow
        return content


class Brotli(_StreamCompression):
    """Brotli, levels 0 to 11."""

    extension = "br"
    levels = range(12)
    default_level = 11
    many_members = False
    new_decoder = _BrotliDecoder
    decoder_errors = (brotli.error,)

    def compress(self, data: Buffer) -> bytes:
        """Return one Brotli stream."""
        packed: bytes = brotli.compress(data, quality=self.level)
        return packed


_ALGORITHMS: tuple[type[Compression], ...] = (Brotli, Bzip2, Gzip, Snappy, Zstandard)
_BY_NAME: dict[str, Compression] = {
    **{kind.extension: kind(kind.extension, kind.default_level) for kind in _ALGORITHMS},
    **{
        f"{kind.extension}:{level}": kind(f"{kind.extension}:{level}", level)
        for kind in _ALGORITHMS
        for level in kind.levels
    },
}

COMPRESSION_NAMES = frozenset(_BY_NAME)
"""Every compression that can stand in an index file."""


def parse_compression(text: str | None) -> Compression | None:
    """Return the compression called `text`; None for None and the empty text.

    Args:
        text: `"br"` (level 11), `"bz2"` (9), `"gz"` (9), `"snappy"` or `"zstd"` (3), or with a level: `"br:0"` to
            `"br:11"`, `"bz2:1"` to `"bz2:9"`, `"gz:0"` to `"gz:9"`, `"zstd:1"` to `"zstd:22"`.

    Raises:
        SchemaError: Any other text.
    """
    if not text:
        return None
    found = _BY_NAME.get(text)
    if found is None:
        raise SchemaError(
            f"unknown compression {text!r:.80}: expected one of {', '.join(map(_describe, _ALGORITHMS))}, or none.",
            compression=text,
        )
    return found


def _describe(kind: type[Compression]) -> str:
    name = f'"{kind.extension}"'
    return f'{name} with a level from ":{kind.levels[0]}" to ":{kind.levels[-1]}" or none' if kind.levels else name
