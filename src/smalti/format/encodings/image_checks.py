"""Checks that bytes are a whole JPEG or PNG file: markers and sizes only, no pixel is decoded. Pure.

Files of one camera or program share their headers, byte for byte, so the result of the JPEG check is cached by header.
"""

from functools import lru_cache

from smalti.image_headers import (
    FRAME_MARKERS,
    MAX_PIXELS,
    NO_MARKER,
    START_OF_SCAN,
    frame_size,
    jpeg_segments,
    png_size,
)

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_PNG_HEADER_BYTES = 33  # signature and IHDR chunk

HEAD_BYTES = 1024
"""Bytes of a JPEG file that `has_good_head` looks at; a longer header, with a preview for example, is not cached."""
END_MARK = b"\xff\xd9"
_SCAN_MARK = bytes([0xFF, START_OF_SCAN])


def check_png(data: bytes) -> str | None:
    """Return what is wrong with a PNG file, or None: signature, a header with a size, and the end chunk."""
    if not data.startswith(_PNG_SIGNATURE):
        return "the signature is another" if data else "the bytes are empty"
    if len(data) < _PNG_HEADER_BYTES or (size := png_size(data)) is None:
        return "the header is missing"
    if not all(size):
        return "its width or height is 0"
    if fault := too_many_pixels(*size):
        return fault
    if data.rfind(_PNG_END) < _PNG_HEADER_BYTES:
        return "the end is missing: it was cut short"
    return None


def check_jpeg(data: bytes) -> str | None:
    """Return what is wrong with a JPEG file, or None: start mark, a frame with a size, a scan, and an end mark."""
    if not data.startswith(b"\xff\xd8\xff"):
        return "the start mark is missing" if data else "the bytes are empty"
    has_size = False
    for marker, begin, _ in jpeg_segments(data):
        if marker == NO_MARKER:
            return "a segment does not start with a mark"
        if marker == START_OF_SCAN:
            if not has_size:
                return "pixels come before the header with their size"
            return None if data.rfind(END_MARK) >= begin - 3 else "the end mark is missing: it was cut short"
        if marker in FRAME_MARKERS:
            width, height = frame_size(data, begin) if len(data) >= begin + 5 else (0, 0)
            if not width:  # a height of 0 is allowed: it follows the first scan
                return "its width is 0"
            if fault := too_many_pixels(width, height):
                return fault
            has_size = True
    return "it ends before any pixels"


def too_many_pixels(width: int, height: int) -> str | None:
    """Return what is wrong with an image of this size, or None."""
    if width * height <= MAX_PIXELS:
        return None
    return f"its {width} x {height} pixels are more than the {MAX_PIXELS} allowed"


def has_good_head(head: bytes) -> bool:
    """Return whether a JPEG file with this beginning, and with `END_MARK` as its end, is whole; False may be wrong.

    Args:
        head: The first `HEAD_BYTES` of the file, or all of it; the end mark is not among the bytes up to the scan.
    """
    scan = head.find(_SCAN_MARK)
    return scan >= 0 and _is_good(head[: scan + 4])


@lru_cache(maxsize=1024)
def _is_good(head: bytes) -> bool:
    # A scan mark inside another segment ends `head` too early for the check, which then finds no scan.
    return check_jpeg(head + END_MARK) is None
