"""Whole-file compression of shards: which algorithms there are, and bounded decompression. Knows no shard layout."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import zstandard

from smalti.errors import FormatError, SchemaError

_CHUNK_BYTES = 1 << 18
_NAME = re.compile(r"(?P<family>[a-z0-9]+)(?::(?P<level>\d{1,3}))?", re.ASCII)
_NOT_YET = {"br", "bz2", "gz", "snappy"}


@dataclass(frozen=True)
class Compression:
    """One algorithm at one level; pure and thread-safe."""

    text: str
    """As written by the user and in the index file: `"zstd"` or `"zstd:7"`."""
    level: int
    extension: str = "zstd"

    def compress(self, data: bytes | bytearray | memoryview) -> bytes:
        """`data` as one frame that declares its content size and carries no checksum, as MosaicML writes it."""
        # Single-threaded on purpose: the bytes must not depend on how many cores there are.
        return zstandard.ZstdCompressor(level=self.level, write_checksum=False).compress(data)

    def decompress_file(self, src: Path, dst: BinaryIO, limit: int) -> int:
        """Write the content of `src` to `dst`, in chunks, and return its number of bytes.

        Args:
            src: A compressed local file.
            dst: Where the content goes.
            limit: The most bytes that may come out: the size that the index declares. Never is more written.

        Raises:
            FormatError: Not such a file, cut short, or its content is longer than `limit`.
        """
        try:
            with src.open("rb") as file:
                declared = _declared_size(file, src)
                if declared is not None and declared > limit:
                    raise _too_long(src, limit)
                total = _stream(file, dst, limit, src)
        except zstandard.ZstdError as error:
            raise FormatError(f"{src}: not a readable zstd file ({error}); fetch it again.", path=str(src)) from error
        if declared is not None and total != declared:
            raise FormatError(
                f"{src}: expected {declared} bytes after decompression, found {total}; the file was cut short. "
                "Fetch it again.",
                path=str(src),
            )
        return total


def _declared_size(file: BinaryIO, src: Path) -> int | None:
    head = file.read(zstandard.FRAME_HEADER_SIZE_MAX if hasattr(zstandard, "FRAME_HEADER_SIZE_MAX") else 18)
    file.seek(0)
    if not head:
        raise FormatError(f"{src}: the file is empty; fetch it again.", path=str(src))
    size = zstandard.get_frame_parameters(head).content_size
    return None if size == zstandard.CONTENTSIZE_UNKNOWN else int(size)


def _stream(file: BinaryIO, dst: BinaryIO, limit: int, src: Path) -> int:
    total = 0
    # stream_reader gives at most what is asked for, so a bomb cannot inflate in memory.
    with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as reader:
        while chunk := reader.read(min(_CHUNK_BYTES, limit - total + 1)):
            total += len(chunk)
            if total > limit:
                raise _too_long(src, limit)
            dst.write(chunk)
    return total


def _too_long(src: Path, limit: int) -> FormatError:
    return FormatError(
        f"{src}: its content is longer than the {limit} bytes that the index declares; the file is damaged or "
        "hostile. Nothing beyond the limit was written.",
        path=str(src),
        limit=limit,
    )


@lru_cache(maxsize=64)
def parse_compression(text: str | None) -> Compression | None:
    """The compression called `text`; None for None and the empty text.

    Args:
        text: `"zstd"` (level 3) or `"zstd:1"` to `"zstd:22"`.

    Raises:
        SchemaError: Unknown, or known to MDS but not to this version.
    """
    if not text:
        return None
    match = _NAME.fullmatch(text)
    if match is None or match["family"] != "zstd":
        known = match is not None and match["family"] in _NOT_YET
        raise SchemaError(
            f"compression {text!r} is {'not supported by this version' if known else 'unknown'}: expected "
            '"zstd", "zstd:1" ... "zstd:22", or none.',
            compression=text,
        )
    level = int(match["level"] or 3)
    if not 1 <= level <= 22:
        raise SchemaError(f"compression {text!r}: the level of zstd is 1 to 22.", compression=text)
    return Compression(text, level)
