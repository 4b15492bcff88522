"""The headers of JPEG and PNG files, parsed by hand: segments, sizes, and the limit on pixels.

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
