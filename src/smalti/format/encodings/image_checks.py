"""Cheap checks that bytes are a whole JPEG or PNG file: marks and sizes only, no pixel is decoded. Pure.

A quick yes for JPEG files that begin like others: files of one camera or program share their headers, byte for byte.

The rules themselves are those of `picture_headers`; a header is held against them once.
"""

from functools import lru_cache

MAX_PIXELS = 178_956_970
"""Where Pillow itself refuses: twice a quarter of a gigabyte of RGB."""

_JPEG_SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # start of frame, all processes
_JPEG_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD8)})  # no length follows
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"


def check_png(data: bytes) -> str | None:
    """What is wrong with a PNG file, or None: signature, a header with a size, and the end chunk."""
    if not data.startswith(_PNG_SIGNATURE):
        return "the bytes are empty" if not data else "the signature is another"
    if data[12:16] != b"IHDR" or len(data) < 33:
        return "the header is missing"
    if not any(data[16:20]) or not any(data[20:24]):
        return "its width or height is 0"
    if fault := too_many_pixels(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")):
        return fault
    if data.rfind(_PNG_END) < 33:
        return "the end is missing: it was cut short"
    return None


def check_jpeg(data: bytes) -> str | None:
    """What is wrong with a JPEG file, or None: start mark, a frame with a size, a scan, and an end mark after it."""
    if not data.startswith(b"\xff\xd8\xff"):
        return "the bytes are empty" if not data else "the start mark is missing"
    at, has_size = 2, False
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return "a segment does not start with a mark"
        marker = data[at + 1]
        if marker == 0xFF:  # fill bytes before a mark are allowed
            at += 1
            continue
        if marker in _JPEG_BARE_MARKERS:
            at += 2
            continue
        if marker == 0xDA:
            if not has_size:
                return "pixels come before the header with their size"
            return None if data.rfind(b"\xff\xd9") > at else "the end mark is missing: it was cut short"
        if marker in _JPEG_SIZE_MARKERS:
            if len(data) < at + 9 or not any(data[at + 7 : at + 9]):
                return "its width is 0"
            if fault := too_many_pixels(_number(data, at + 7), _number(data, at + 5)):
                return fault
            has_size = True
        at += 2 + max(2, _number(data, at + 2))
    return "it ends before any pixels"


def too_many_pixels(width: int, height: int) -> str | None:
    """What is wrong with an image of this size, or None."""
    if width * height <= MAX_PIXELS:
        return None
    return f"its {width} x {height} pixels are more than the {MAX_PIXELS} allowed"


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big")


HEAD_BYTES = 1024
"""How much of a file is looked at; a longer header, with a preview in it for example, gets no quick yes."""
END_MARK = b"\xff\xd9"
_SCAN_MARK = b"\xff\xda"


def begins_well(head: bytes) -> bool:
    """Whether a file with this beginning, and with `END_MARK` as its end, is whole; a no may be wrong.

    Args:
        head: The first `HEAD_BYTES` of the file, or all of it; the end mark is not among the bytes up to the scan.
    """
    scan = head.find(_SCAN_MARK)
    return scan >= 0 and _is_good(head[: scan + 4])


@lru_cache(maxsize=1024)
def _is_good(head: bytes) -> bool:
    # A scan mark inside another segment ends `head` too early for the check, which then finds no scan.
    return check_jpeg(head + END_MARK) is None
