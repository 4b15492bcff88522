"""Brotli, bzip2 and gzip: algorithms whose decoders take a stream in and give as much out as they are asked for."""

import bz2
import zlib
from collections.abc import Callable
from typing import BinaryIO, ClassVar, Protocol

import brotli

from smalti.format.compression_base import BoundedOutput, Compression
from smalti.format.hashing import Buffer

# Short, because a decoder that meets the end of a member copies what is left of the piece.
_PIECE_BYTES = 1 << 16


class _Decoder(Protocol):
    """What `bz2.BZ2Decompressor` offers."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Stream(Compression):
    """A file of one member, or of several end to end where the algorithm's own tools write such files."""

    many_members: ClassVar[bool] = True
    new_decoder: Callable[[], _Decoder]
    faults: ClassVar[tuple[type[Exception], ...]]
    """What the decoder raises for damaged data."""

    def _unpack(self, file: BinaryIO, out: BoundedOutput) -> None:
        decoder, num_members = self.new_decoder(), 1
        while True:
            data = b""
            if decoder.eof:
                data = decoder.unused_data or file.read(_PIECE_BYTES)
                if not data:
                    return
                if num_members >= (out.most_parts if self.many_members else 1):
                    raise out.damaged(self.extension, "something follows its end")
                decoder, num_members = self.new_decoder(), num_members + 1
            elif decoder.needs_input:
                data = file.read(_PIECE_BYTES)
                if not data:
                    raise out.damaged(self.extension, "its end is missing")
            try:
                content = decoder.decompress(data, out.room)
            except self.faults as error:
                raise out.damaged(self.extension, error) from error
            out.write(content)


class Bzip2(_Stream):
    """bzip2, levels 1 to 9."""

    extension = "bz2"
    levels = range(1, 10)
    default_level = 9
    new_decoder = bz2.BZ2Decompressor
    faults = (OSError, ValueError)

    def compress(self, data: Buffer) -> bytes:
        """One bzip2 stream."""
        return bz2.compress(data, self.level)


class _Inflate:
    """zlib's decoder of gzip members, which checks their length and CRC-32, under the names of `_Decoder`."""

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
        # A full answer may have more behind it, even when all input was taken.
        self.needs_input = len(content) < max_length
        return content


class Gzip(_Stream):
    """gzip, levels 0 (no compression) to 9."""

    extension = "gz"
    levels = range(10)
    default_level = 9
    new_decoder = _Inflate
    faults = (zlib.error,)

    def compress(self, data: Buffer) -> bytes:
        """One gzip member with the time of writing left out.

        The header is made here and not by `gzip`, whose bytes differ from one Python version to the next. MosaicML's
        writer puts the clock into it; apart from those four bytes the files are equal.
        """
        deflate = zlib.compressobj(self.level, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = (deflate.compress(data), deflate.flush())
        effort = {9: 2, 1: 4}.get(self.level, 0)
        head = bytes([0x1F, 0x8B, 8, 0, 0, 0, 0, 0, effort, 0xFF])
        tail = zlib.crc32(data).to_bytes(4, "little") + (len(data) & 0xFFFFFFFF).to_bytes(4, "little")
        return b"".join([head, *body, tail])


class _Unbrotli:
    """Brotli's decoder under the names of `_Decoder`; what follows the end is an error to it, or never asked for."""

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
        # It may answer with a little more than asked for: whole blocks of 32 KiB and up.
        content: bytes = self._brotli.process(data, output_buffer_limit=max_length)
        self._full = len(content) >= max_length  # as for gzip
        return content


class Brotli(_Stream):
    """Brotli, levels 0 to 11."""

    extension = "br"
    levels = range(12)
    default_level = 11
    many_members = False
    new_decoder = _Unbrotli
    faults = (brotli.error,)

    def compress(self, data: Buffer) -> bytes:
        """One Brotli stream."""
        packed: bytes = brotli.compress(data, quality=self.level)
        return packed
