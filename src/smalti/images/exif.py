"""The orientation that a camera wrote into an image, and turning pixels upright; nothing else of EXIF.

It is read by hand: Pillow's reader parses every tag and warns about those that do not matter here.
"""

import struct

import numpy as np
import numpy.typing as npt

from smalti.images.header import jpeg_segments

_ORIENTATION = 0x0112


def exif_orientation(data: bytes) -> int:
    """EXIF orientation of an encoded JPEG, PNG or WEBP, 1 to 8; 1 (upright) when absent or unreadable."""
    tiff = _tiff_block(data)
    if tiff is None or len(tiff) < 8 or tiff[:2] not in (b"II", b"MM"):
        return 1
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(entries):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
            if tag == _ORIENTATION:
                return int(value) if kind == 3 and count == 1 and 1 <= value <= 8 else 1
    except struct.error:  # damaged EXIF says nothing about the pixels; they are taken as stored
        return 1
    return 1


def _tiff_block(data: bytes) -> bytes | None:
    if data[:2] == b"\xff\xd8":
        if data.find(b"Exif\0\0", 0, 1 << 16) < 0:  # nearly always decided here, without walking segments
            return None
        for marker, begin, end in jpeg_segments(data):
            if marker == 0xE1 and data[begin : begin + 6] == b"Exif\0\0":
                return data[begin + 6 : end]
        return None
    if data[:4] == b"\x89PNG":
        return _find_chunk(data, b"eXIf", begin=8, order=">", name_first=False)
    if data[:4] == b"RIFF":
        block = _find_chunk(data, b"EXIF", begin=12, order="<", name_first=True)
        return block[6:] if block is not None and block.startswith(b"Exif\0\0") else block
    return None


def _find_chunk(data: bytes, name: bytes, *, begin: int, order: str, name_first: bool) -> bytes | None:
    """Payload of the first such chunk of a PNG (size, name, payload, crc) or RIFF (name, size, payload)."""
    at = begin
    while at + 8 <= len(data):
        first, second = data[at : at + 4], data[at + 4 : at + 8]
        (size,) = struct.unpack(order + "I", second if name_first else first)
        if (first if name_first else second) == name:
            return data[at + 8 : at + 8 + size]
        at += 8 + size + (size % 2 if name_first else 4)
    return None


def turn_upright(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Pixels, shape (height, width, 3), turned and mirrored as the EXIF orientation asks; a view."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
