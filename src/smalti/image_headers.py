"""The headers of image files, parsed by hand: segments of JPEG files, sizes, and the limit on pixels.

Nothing here decodes or allocates pixels, and nothing raises errors of the library: `smalti.format` checks the files
that a shard stores, and `smalti.images` the images that it decodes, each with messages of its own.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping

MAX_PIXELS = 178_956_970
"""Largest image in pixels, half a GiB as RGB: the size from which Pillow itself refuses to open an image."""

START_OF_SCAN = 0xDA
"""Marker of the JPEG segment that the compressed pixels follow."""
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segments that hold the size in pixels, one for each coding process."""
EXIF_MARKER = 0xE1
"""Marker of the JPEG segment that holds EXIF, or other data: see `is_exif`."""
UNKNOWN_MARKER = -1
"""Yielded in place of a marker that decoders refuse before the pixels; it is the last item."""
_SEGMENT_MARKERS = FRAME_MARKERS | {0xC4, 0xCC, *range(0xDA, 0xDE), *range(0xE0, 0xF0), 0xFE}
"""Markers that a length and a payload follow: frames, tables, scans, restart intervals, applications, comments."""
_MAX_SEGMENTS = 10_000
"""Segments before the pixels that are looked at; the longest colour profile has 255."""
CUT_SHORT = "the end is missing: it was cut short"
"""Fault of a file that ends too early."""
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)  # bytes
_BMP_BITS = (1, 4, 8, 16, 24, 32)
_BMP_BITFIELDS = 3  # the last compression that decoders take
_BMP_RUN_LENGTHS = (1, 2)
_MARKER = re.compile(rb"\xff[^\xff\x00\xd0-\xd7]")  # not of restarts, which have no payload: decoders skip them


def format_of(head: bytes) -> str | None:
    """Return the format that the first 16 bytes of a file declare: JPEG, PNG, GIF, WEBP or BMP; None for others."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    return "BMP" if head[:2] == b"BM" else None


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the payload of each JPEG segment, up to the start of scan, which is the last.

    Bytes between two segments that are no marker are skipped, as libjpeg (`next_marker`) and Pillow skip them; old
    programs wrote such files. `end` follows from the declared length and exceeds `len(data)` where the file is cut off.
    """
    at = 2
    for _ in range(_MAX_SEGMENTS):
        match = _MARKER.search(data, at)
        if match is None:
            return
        marker, at = data[match.end() - 1], match.end()
        if marker not in _SEGMENT_MARKERS:
            yield UNKNOWN_MARKER, match.start(), match.start()
            return
        if at + 2 > len(data):
            return
        begin = at + 2
        at += max(2, data[at] << 8 | data[at + 1])
        yield marker, begin, at
        if marker == START_OF_SCAN:
            return


def is_exif(data: bytes, marker: int, begin: int) -> bool:
    """Return whether the JPEG segment with this marker, whose payload starts at byte `begin`, holds EXIF."""
    return marker == EXIF_MARKER and data.startswith(b"Exif\0\0", begin)


def frame_size(data: bytes, begin: int) -> tuple[int, int]:
    """Return width and height from the frame segment whose payload starts at byte `begin`.

    Raises:
        struct.error: the file ends before.
    """
    height, width = struct.unpack_from(">HH", data, begin + 1)
    return width, height


def png_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG file; None if it does not begin with an IHDR chunk.

    Raises:
        struct.error: the file ends before.
    """
    size: tuple[int, int] = struct.unpack_from(">II", data, 16)
    return size if data[12:16] == b"IHDR" else None


def gif_size(data: bytes) -> tuple[int, int]:
    """Return width and height of the screen of a GIF file.

    Raises:
        struct.error: the file ends before.
    """
    size: tuple[int, int] = struct.unpack_from("<HH", data, 6)
    return size


def bmp_size(data: bytes) -> tuple[int, int]:
    """Return width and height of a BMP file.

    Raises:
        struct.error: the file ends before.
    """
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if header_bytes == 12 else "<ii", data, 18)
    return width, abs(height)  # a negative height means rows from the top


def find_fault(kind: str, data: bytes) -> str | None:
    """Return what is wrong with a GIF, BMP or WEBP file whose size could be read, or None; decodes no pixel.

    Args:
        kind: format, as Pillow names it; files of other formats are not looked at.
        data: the file. The first frame of a GIF counts.
    """
    try:
        return _FAULTS[kind](data) if kind in _FAULTS else None
    except (struct.error, IndexError):
        return CUT_SHORT


def _webp_fault(data: bytes) -> str | None:
    return CUT_SHORT if struct.unpack_from("<I", data, 4)[0] + 8 > len(data) else None


def _bmp_fault(data: bytes) -> str | None:
    offset, header_bytes = struct.unpack_from("<I", data, 10)[0], struct.unpack_from("<I", data, 14)[0]
    width, height = bmp_size(data)
    is_old = header_bytes == 12
    bits, compression = (*struct.unpack_from("<H", data, 24), 0) if is_old else struct.unpack_from("<HI", data, 28)
    if header_bytes not in _BMP_HEADERS or bits not in _BMP_BITS or compression > _BMP_BITFIELDS:
        return "its header is damaged, or of a kind that no decoder takes"
    if compression in _BMP_RUN_LENGTHS:
        return None  # a missing end shows while they are decoded
    row_bytes = (width * bits + 31) // 32 * 4
    last = offset + row_bytes * (height - 1) + (width * bits + 7) // 8  # the last row may end without its padding
    return CUT_SHORT if last > len(data) else None


def _gif_fault(data: bytes) -> str | None:
    at = 13 + _table_bytes(data[10])
    while data[at] != 0x3B:  # trailer
        kind = data[at]
        if kind == 0x21:  # extension
            at = _after_blocks(data, at + 2)
        elif kind == 0x2C:  # frame
            left, top, width, height = struct.unpack_from("<4H", data, at + 1)
            screen_width, screen_height = gif_size(data)
            if left + width > screen_width or top + height > screen_height:
                return "its first frame is larger than its screen"
            _after_blocks(data, at + 11 + _table_bytes(data[at + 9]))
            return None
        else:
            at += 1
    return "it has no frame"


def _table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += data[at] + 1
    return at + 1


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP file; None if its first chunk is unknown.

    Raises:
        struct.error: the file ends before.
    """
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        width, high_width, height, high_height = struct.unpack_from("<HBHB", data, 24)
        return (width | high_width << 16) + 1, (height | high_height << 16) + 1
    return None


SIZE_OF: Mapping[str, Callable[[bytes], tuple[int, int] | None]] = {
    "PNG": png_size, "WEBP": webp_size, "GIF": gif_size, "BMP": bmp_size,
}  # fmt: skip
"""The functions that return width and height of the formats beside JPEG, by their names."""
_FAULTS: Mapping[str, Callable[[bytes], str | None]] = {"GIF": _gif_fault, "BMP": _bmp_fault, "WEBP": _webp_fault}
