"""The headers of image files, parsed by hand: segments of JPEG files, sizes, and the limit on pixels.

Nothing here decodes or allocates pixels, and nothing raises errors of the library: `smalti.format` checks the files
that a shard stores, and `smalti.images` the images that it decodes, each with messages of its own.
"""

import struct
from collections.abc import Iterator

MAX_PIXELS = 178_956_970
"""Largest image in pixels, half a GiB as RGB: the size from which Pillow itself refuses to open an image."""

START_OF_SCAN = 0xDA
"""Marker of the JPEG segment that the compressed pixels follow."""
FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segments that hold the size in pixels, one for each coding process."""
NO_MARKER = -1
"""Yielded in place of a marker where a JPEG segment does not begin with one; it is the last item."""
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})  # no length and no payload follow


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the payload of each JPEG segment, up to the start of scan, which is the last.

    `end` follows from the declared length and exceeds `len(data)` where the file is cut off.
    """
    at, num_bytes = 2, len(data)
    while at + 4 <= num_bytes:
        if data[at] != 0xFF:
            yield NO_MARKER, at, at
            return
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes before a marker are allowed
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        else:
            begin = at + 4
            at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
            yield marker, begin, at
            if marker == START_OF_SCAN:
                return


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
