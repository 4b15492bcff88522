"""The headers of encoded images: format, size and EXIF orientation; nothing here decodes or allocates pixels.

Headers are parsed by hand: opening a file with a decoder may already allocate its canvas (WebP does), and an excessive
size must be refused before that; Pillow's EXIF reader parses every tag and warns about those that do not matter here.
Pixels belong to `smalti.images.pixels`.
"""

import struct
from dataclasses import dataclass

import simplejpeg

from smalti.errors import BadImageError
from smalti.image_headers import FRAME_MARKERS, MAX_PIXELS, SIZE_OF, format_of, frame_size, is_exif, jpeg_segments

_MAX_SIDE = 1 << 17  # pixels; far above any camera, and keeps width * height a small integer for every format
_SIGNATURE_STARTS = frozenset({b"\xff\xd8", b"\x89P", b"GI", b"RI", b"BM"})
_ORIENTATION_TAG = 0x0112
_SHORT = 3  # EXIF's code of the type uint16


@dataclass(frozen=True)
class ImageHeader:
    """Format, size and colour space that the header of an image declares."""

    format: str
    """JPEG, PNG, GIF, BMP or WEBP."""
    width: int
    """In pixels as stored, before any EXIF rotation."""
    height: int
    """In pixels as stored, before any EXIF rotation."""
    color: str = "RGB"
    """Colour space of a JPEG as libjpeg names it (YCbCr, Gray, CMYK, YCCK, RGB); RGB for other formats."""


def probe_image(data: bytes) -> ImageHeader:
    """Parse the header of an encoded image, without decoding a pixel.

    Args:
        data: An encoded image, or its beginning with the whole header.

    Raises:
        BadImageError: no bytes, none of the five formats, a broken header, or more pixels than `MAX_PIXELS` (half as
            many for formats other than JPEG).

    Examples:
        >>> header = probe_image(Path("photos/cat/0.jpg").read_bytes())
        >>> header.width, header.height
        (64, 48)
    """
    if len(data) == 0:
        raise BadImageError("the image has zero bytes; its upload or copy was cut off: replace the file", num_bytes=0)
    head = bytes(data[:16])
    kind = format_of(head)
    if kind is None:
        raise BadImageError(
            f"expected an image (JPEG, PNG, WEBP, BMP or GIF), found {_describe(head)} ({len(data)} bytes)",
            num_bytes=len(data),
        )
    try:
        size, color = _jpeg_header(data) if kind == "JPEG" else (SIZE_OF[kind](data), "RGB")
    except (struct.error, IndexError) as error:
        raise BadImageError(
            f"{kind} file of {len(data)} bytes ends inside its header; it is truncated: replace the file",
            num_bytes=len(data),
        ) from error
    if size is None and kind == "PNG":
        raise BadImageError("PNG file does not begin with its IHDR chunk; it is damaged: replace the file")
    if size is None:
        raise BadImageError(
            f"WEBP file has an unknown first chunk {data[12:16]!r}; it is truncated or damaged: replace the file"
        )
    header = ImageHeader(kind, *size, color)
    if not (0 < header.width <= _MAX_SIDE and 0 < header.height <= _MAX_SIDE):
        raise BadImageError(f"{kind} header declares an impossible size of {header.width}x{header.height} pixels")
    limit = MAX_PIXELS if kind == "JPEG" else MAX_PIXELS // 2  # only a JPEG is scaled down while it is decoded
    if header.width * header.height > limit:
        raise BadImageError(
            f"{kind} header declares {header.width}x{header.height} = {header.width * header.height:,} pixels, "
            f"above the limit of {limit:,}: a decompression bomb, or a scan that should be scaled down first",
            width=header.width,
            height=header.height,
        )
    return header


def may_be_image(data: bytes) -> bool:
    """Return whether the first two bytes are those of one of the five formats."""
    return data[:2] in _SIGNATURE_STARTS


_FOREIGN: tuple[tuple[bytes | tuple[bytes, ...], str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    ((b"II*\x00", b"MM\x00*"), "a TIFF image, which is not supported: convert it to PNG or JPEG"),
    ((b"<!DOCTYPE", b"<!doctype", b"<html"), "an HTML page, as a failed download leaves"),
    (b"<?xml", "XML text, as a failed download leaves"),
    (b"<svg", "an SVG drawing, which is not supported: render it to PNG first"),
    (b"version https://", "a Git LFS pointer instead of the file: run `git lfs pull`"),
)


def _describe(head: bytes) -> str:
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            return what
    if head[4:8] == b"ftyp":
        return "a HEIC/AVIF image or a video, which is not supported: convert it to JPEG"
    # The bytes are not shown: a link in the folder may lead to a file with secrets.
    if all(32 <= byte < 127 or byte in (9, 10, 13) for byte in head):
        return "text"
    return "bytes of no known kind"


def _jpeg_header(data: bytes) -> tuple[tuple[int, int], str]:
    """Return width and height, and the colour space."""
    try:
        height, width, color, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError) as error:  # KeyError: the wrapper has no name for this colour space
        # A JPEG that libjpeg-turbo's wrapper refuses may still be one for Pillow: it has a whole frame segment.
        for marker, begin, end in jpeg_segments(data):
            if marker in FRAME_MARKERS and begin + 5 <= end <= len(data):
                return frame_size(data, begin), "other"
        raise BadImageError(
            f"JPEG file of {len(data)} bytes has no complete header; it is truncated or damaged: replace the file",
            num_bytes=len(data),
        ) from error
    return (width, height), color


def exif_orientation(data: bytes) -> int:
    """Return the EXIF orientation of an encoded JPEG, PNG or WEBP, 1 to 8; 1 (upright) if absent or unreadable."""
    tiff = _tiff_block(data)
    if tiff is None or len(tiff) < 8 or tiff[:2] not in (b"II", b"MM"):
        return 1
    order = "<" if tiff[:2] == b"II" else ">"
    try:
        (directory,) = struct.unpack_from(order + "I", tiff, 4)
        (entries,) = struct.unpack_from(order + "H", tiff, directory)
        for entry in range(entries):
            tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, directory + 2 + 12 * entry)
            if tag == _ORIENTATION_TAG:
                return int(value) if kind == _SHORT and count == 1 and 1 <= value <= 8 else 1
    except struct.error:  # damaged EXIF does not make the pixels unusable: they are taken as stored
        return 1
    return 1


def _tiff_block(data: bytes) -> bytes | None:
    """Return the TIFF block that holds the EXIF tags, None if there is none."""
    if data[:2] == b"\xff\xd8":
        if data.find(b"Exif\0\0", 0, 1 << 16) < 0:  # fast pre-check: most files have no EXIF
            return None
        for marker, begin, end in jpeg_segments(data):
            if is_exif(data, marker, begin) and end <= len(data):
                return data[begin + 6 : end]
        return None
    if data[:4] == b"\x89PNG":
        return _find_chunk(data, b"eXIf", begin=8, order=">", name_first=False)
    if data[:4] == b"RIFF":
        block = _find_chunk(data, b"EXIF", begin=12, order="<", name_first=True)
        return block[6:] if block is not None and block.startswith(b"Exif\0\0") else block
    return None


def _find_chunk(data: bytes, name: bytes, *, begin: int, order: str, name_first: bool) -> bytes | None:
    """Return the payload of the first such chunk of a PNG (size, name, payload, crc) or RIFF (name, size, payload)."""
    at = begin
    while at + 8 <= len(data):
        first, second = data[at : at + 4], data[at + 4 : at + 8]
        (size,) = struct.unpack(order + "I", second if name_first else first)
        if (first if name_first else second) == name:
            return data[at + 8 : at + 8 + size]
        at += 8 + size + (size % 2 if name_first else 4)
    return None
