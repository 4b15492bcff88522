"""Cheap checks that bytes are a whole JPEG or PNG file: marks and sizes only, no pixel is decoded. Pure."""

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
