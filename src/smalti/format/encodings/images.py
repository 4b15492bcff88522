"""The image encodings: `pil` (raw pixels), `jpeg` and `png` (files), lists of them, and checks of whole files.

    list[...]     [uint32 0] [uint32 n] [n x uint32 sizes] [images]
    jpeg_array               [uint32 n] [n x uint32 sizes] [JPEG files], n at least 1

Values decode to PIL images; fast decoding for training stands in `smalti.images`. Files are checked by their markers
and sizes, no pixel is decoded. MosaicML's writer does not check files, so WebP, GIF and BMP files in `jpeg` and `png`
columns can be read, too; they are not written. Files of one camera or program share their headers, byte for byte, or
but for sizes, comments and Huffman tables, so the results of the JPEG check are cached by both.
"""

import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import (
    Image,
    UnidentifiedImageError,
)
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from smalti.errors import BadImageError, SchemaError
from smalti.format.encodings.encoding import Encoding, kind_of
from smalti.image_headers import (
    CUT_SHORT,
    EXIF_MARKER,
    FRAME_MARKERS,
    MAX_PIXELS,
    SIZE_OF,
    START_OF_SCAN,
    UNKNOWN_MARKER,
    find_fault,
    format_of,
    frame_size,
    is_exif,
    jpeg_segments,
    png_size,
)
from smalti.regular_files import read_regular

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_PNG_HEADER_BYTES = 33  # signature and IHDR chunk
HEAD_BYTES = 1024
"""Bytes of a JPEG file that `has_good_head` looks at; a longer header, with a preview for example, is not cached."""
END_MARK = b"\xff\xd9"
_SCAN_MARK = bytes([0xFF, START_OF_SCAN])
_EMPTY_SCAN = b"\0\2"  # the length of a scan header without content
_UNPARSED = frozenset({0xC4, 0xCC, 0xDC, 0xDD, EXIF_MARKER, *range(0xE3, 0xED), 0xEF, 0xFE})
"""Markers of the JPEG segments that Pillow skips, or stores as they are, unless they hold EXIF."""
_ANY_SIZE = b"\0\1\0\1"
_LONG_HEAD = 8192  # bytes
# Bits per pixel of the modes whose raw bytes are the whole image; the palette of P and PA would be lost. MosaicML's
# writer stores those as well, masks for example, so they can be read: the palette indices are there.
_MODE_BITS = {
    "1": 1, "L": 8, "LA": 16, "La": 16, "RGB": 24, "RGBA": 32, "RGBa": 32, "RGBX": 32, "CMYK": 32, "YCbCr": 24,
    "LAB": 24, "HSV": 24, "I": 32, "F": 32, "I;16": 16, "I;16L": 16, "I;16B": 16,
}  # fmt: skip
_READ_BITS = {**_MODE_BITS, "P": 8, "PA": 16, "I;16N": 16}
_OPENERS: Mapping[str, Callable[[BytesIO], Image.Image]] = {
    "JPEG": JpegImageFile, "PNG": PngImageFile, "GIF": GifImageFile, "BMP": BmpImageFile, "WEBP": WebPImageFile,
}  # fmt: skip
"""Pillow's classes, which register their formats; it would import the plugins of all formats to find that of WebP."""
_SIZE = np.dtype("<u4")


class UnreadableImage(BadImageError, UnidentifiedImageError):  # noqa: N818 - named as those of `smalti.errors`
    """An image file that cannot be decoded; also an OSError and Pillow's error, which MosaicML Streaming raises."""


def check_png(data: bytes) -> str | None:
    """Return what is wrong with a PNG file, or None: signature, a header with a size, and the end chunk."""
    if not data.startswith(_PNG_SIGNATURE):
        return _other_format(data) or ("the signature is another" if data else "the bytes are empty")
    if len(data) < _PNG_HEADER_BYTES or (size := png_size(data)) is None:
        return "the header is missing"
    if not all(size):
        return "its width or height is 0"
    if fault := too_many_pixels(*size):
        return fault
    if zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        return "its header is damaged"
    if data.rfind(_PNG_END) < _PNG_HEADER_BYTES:
        return CUT_SHORT
    return _refusal("PNG", data)


def check_jpeg(data: bytes) -> str | None:
    """Return what is wrong with a JPEG file, or None: start mark, a frame with a size, a scan, and an end mark."""
    if not data.startswith(b"\xff\xd8\xff"):
        return _other_format(data) or ("the start mark is missing" if data else "the bytes are empty")
    has_size, parsed = False, [data[:2]]
    for marker, begin, end in jpeg_segments(data):
        if marker == UNKNOWN_MARKER:
            return f"a segment has the mark 0x{data[begin + 1]:02x}, which no decoder takes"
        if marker == START_OF_SCAN:
            if not has_size:
                return "pixels come before the header with their size"
            if data.rfind(END_MARK) < begin - 3 or end > len(data):
                return "the end mark is missing: it was cut short"
            head = b"".join([*parsed, _SCAN_MARK, _EMPTY_SCAN])  # without what Pillow does not parse
            return _refusal("JPEG", head) if len(head) > _LONG_HEAD else _cached_refusal("JPEG", head)
        if marker in FRAME_MARKERS:
            width, height = frame_size(data, begin) if len(data) >= begin + 5 else (0, 0)
            if not width:  # a height of 0 is allowed: it follows the first scan
                return "its width is 0"
            if fault := too_many_pixels(width, height):
                return fault
            has_size = True
            parsed += data[begin - 4 : begin + 1], _ANY_SIZE, data[begin + 5 : end]
        elif marker not in _UNPARSED or is_exif(data, marker, begin):
            parsed.append(data[begin - 4 : end])
    return "it ends before any pixels"


def _refusal(kind: str, data: bytes) -> str | None:
    """Return why Pillow's class for a format, which datasets open a file with, refuses it; None if it does not.

    It parses what comes before the pixels: JPEG files of 12 bits a colour are refused, for example, and PNG files with
    colour profiles of more than 1 MiB.
    """
    try:
        _OPENERS[kind](BytesIO(data))
    except Exception as error:  # noqa: BLE001  Pillow raises errors of many classes
        return f"the decoder refuses it ({str(error)[:200]}); save it again, without its colour profile and comments"
    return None


_cached_refusal = lru_cache(maxsize=1024)(_refusal)


def _other_format(data: bytes) -> str | None:
    kind = format_of(bytes(data[:16]))
    return kind and f"it is a {kind} file; convert it, or store the column with the encoding `bytes`"


def check_image_file(kind: str, data: bytes) -> str | None:
    """Return what is wrong with an image file whose header declares this format, as Pillow names it; None if nothing.

    No pixel is decoded. A file is refused whose header decoders refuse, or whose end is missing.
    """
    if kind == "JPEG":
        return check_jpeg(data)
    return check_png(data) if kind == "PNG" else find_fault(kind, data) or _refusal(kind, data)


def too_many_pixels(width: int, height: int) -> str | None:
    """Return what is wrong with an image of this size, or None."""
    if width * height <= MAX_PIXELS:
        return None
    return f"its {width} x {height} pixels are more than the {MAX_PIXELS} allowed"


def has_good_head(head: bytes) -> bool:
    """Return whether a JPEG file with this beginning, and with `END_MARK` as its end, is whole; False may be wrong.

    `head` is the first `HEAD_BYTES` of the file, or all of it; the end mark is not among the bytes up to the scan.
    """
    scan = head.find(_SCAN_MARK)
    begin = scan + len(_SCAN_MARK)
    end = begin + int.from_bytes(head[begin : begin + 2], "big")
    return scan >= 0 and begin + 2 <= end <= len(head) and _is_good(head[:begin])


@lru_cache(maxsize=1024)
def _is_good(head: bytes) -> bool:
    # A scan mark inside another segment ends `head` too early for the check, which then finds no scan.
    return check_jpeg(head + _EMPTY_SCAN + END_MARK) is None


class Pil(Encoding):
    """Raw pixels: uint32 width, height and length of the mode, the mode, then the pixels."""

    def encode(self, value: Any) -> bytes:
        """Encode a PIL image; bytes are accepted if they are such a value already."""
        if isinstance(value, bytes):
            return _check_raw(value)
        if not isinstance(value, Image.Image):
            raise SchemaError(f"expected a PIL image, found {kind_of(value)}.")
        if value.mode not in _MODE_BITS:
            raise SchemaError(f"raw pixels of mode {value.mode!r} do not hold the whole image; convert it first.")
        mode = value.mode.encode("ascii")
        head = b"".join(n.to_bytes(4, "little") for n in (*value.size, len(mode))) + mode
        return _check_raw(head + value.tobytes())

    def decode(self, data: bytes) -> Image.Image:
        """Return a PIL image; one of mode P or PA has the palette indices, without the palette."""
        mode, size, begin = _parse_pil(data, _READ_BITS)
        return Image.frombytes(mode, size, data[begin:])


def _check_raw(data: bytes) -> bytes:
    try:
        _parse_pil(data, _MODE_BITS)
    except BadImageError as error:
        raise SchemaError(f"expected a raw image: {error}") from error
    return data


def _parse_pil(data: bytes, mode_bits: Mapping[str, int]) -> tuple[str, tuple[int, int], int]:
    width, height, num_chars = (int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8))
    mode = data[12 : 12 + min(num_chars, 16)].decode("ascii", "replace")
    if len(data) < 12 or num_chars > 16 or mode not in mode_bits:
        raise BadImageError("no header of a raw image.")
    expected = (width * mode_bits[mode] + 7) // 8 * height
    # Size checks come before any allocation: a damaged header could demand gigabytes.
    if fault := too_many_pixels(width, height):
        raise BadImageError(f"{fault}.")
    if len(data) - 12 - num_chars != expected:
        raise BadImageError(
            f"{width} x {height} pixels of {mode} take {expected} bytes, found {len(data) - 12 - num_chars}."
        )
    return mode, (width, height), 12 + num_chars


class ImageFileEncoding(Encoding):
    """An image file as it is; decodes to a PIL image whose pixels are read when first used."""

    is_image: ClassVar[bool] = True
    format: ClassVar[str]

    def encode(self, value: Any) -> bytes:
        """Return the file's bytes, checked from header to end mark; a PIL image is saved by PIL."""
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
        elif isinstance(value, Image.Image):
            data = _original(value) if self.format == "JPEG" else b""
            if not data:
                out = BytesIO()
                try:
                    value.save(out, format=self.format)
                except (OSError, ValueError, KeyError) as error:
                    raise SchemaError(
                        f"an image of mode {value.mode} cannot be saved as {self.format}: {error}."
                    ) from error
                data = out.getvalue()
        else:
            raise SchemaError(f"expected a {self.format} file's bytes or a PIL image, found {kind_of(value)}.")
        self.check(data)
        return data

    def check(self, data: bytes) -> None:
        """Return only if `data` looks like a whole file of this format.

        Raises:
            SchemaError: It does not.
        """
        if fault := check_image_file(self.format, data):
            raise SchemaError(f"expected a {self.format} file: {fault}.")

    def decode(self, data: bytes) -> Image.Image:
        """Return a lazy PIL image; only the decoders of JPEG, PNG, WebP, GIF and BMP are tried."""
        try:
            kind = format_of(bytes(data[:16]))
            if kind not in (None, "JPEG", "PNG"):
                # Opening a WebP file allocates its canvas, so the sizes of other formats are checked before.
                size = SIZE_OF[kind](data)
                if size is None:
                    raise UnreadableImage(f"a {kind} file without a size.")
                if fault := too_many_pixels(*size):
                    raise UnreadableImage(f"{fault}.")
            image = Image.open(BytesIO(data), formats=("JPEG", "PNG") if kind in (None, "JPEG", "PNG") else (kind,))
        except BadImageError:
            raise
        except Exception as error:
            raise UnreadableImage(f"not a readable JPEG, PNG, WebP, GIF or BMP file: {error}") from error
        if fault := too_many_pixels(image.width, image.height):
            raise UnreadableImage(f"{fault}.")
        return image


def _original(image: Image.Image) -> bytes:
    """Return the JPEG file that an image was opened from; no bytes if there is none, or the image was changed.

    It is stored as that file, as MosaicML does: saving again would lose quality.
    """
    name = image.filename if isinstance(image, JpegImageFile) else ""
    if not name:
        return b""
    path = Path(os.fsdecode(name))
    data = read_regular(path) if path.is_file() else b""
    # Only if the image still equals the file: PIL modifies images in place (thumbnails, drawings).
    with suppress(OSError, SyntaxError, ValueError), Image.open(BytesIO(data), formats=("JPEG",)) as file:
        if (file.size, file.mode) == (image.size, image.mode):
            is_loaded = not getattr(image, "tile", None)
            return data if not is_loaded or file.tobytes() == image.tobytes() else b""
    return b""


class Jpeg(ImageFileEncoding):
    """A JPEG file."""

    format: ClassVar[str] = "JPEG"


class Png(ImageFileEncoding):
    """A PNG file."""

    format: ClassVar[str] = "PNG"


class ImageList(Encoding):
    """Any number of images, each stored as the encoding `element` stores one; decodes to a list of PIL images."""

    def __init__(self, name: str, element: Encoding, *, reserved: bytes = bytes(4), min_images: int = 0) -> None:
        """Take the encoding of each image, the bytes in front of the count, and the fewest images of a value.

        MosaicML reserves the four bytes for later use.
        """
        self._element = element
        self._reserved = reserved
        self._min_images = min_images
        super().__init__(name)

    def encode(self, value: Any) -> bytes:
        """Encode a list or tuple of images, each a PIL image or stored bytes.

        Bytes are accepted if they are a whole value already. An image file may also be a uint8 array of shape (bytes,).
        """
        if isinstance(value, bytes):
            try:
                images = self.files(value)
            except BadImageError as error:
                raise SchemaError(f"expected a list of images, found bytes that are not one: {error}") from error
            for place, image in enumerate(images):
                self._image(image, place)
            return value
        if not isinstance(value, list | tuple):
            raise SchemaError(f"expected a list of images, found {kind_of(value)}.")
        if len(value) < self._min_images:
            raise SchemaError("expected at least one image, found an empty list, which no reader takes.")
        images = [self._image(item, place) for place, item in enumerate(value)]
        sizes = [len(image) for image in images]
        if max([len(images), *sizes]) >= 1 << 32:
            raise SchemaError("an image of 4 GiB and more does not fit a shard.")
        head = len(images).to_bytes(4, "little") + np.array(sizes, _SIZE).tobytes()
        return b"".join([self._reserved, head, *images])

    def _image(self, item: Any, place: int) -> bytes:
        if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 1:
            item = item.tobytes()
        try:
            return self._element.encode(bytes(item) if isinstance(item, bytearray | memoryview) else item)
        except SchemaError as error:
            raise SchemaError(f"image {place} of a list: {error.message}") from error

    def decode(self, data: bytes) -> list[Image.Image]:
        """Return a list of PIL images, whose pixels are read when first used, except raw ones."""
        return [self._element.decode(image) for image in self.files(data)]

    def files(self, data: bytes) -> list[bytes]:
        """Return the stored bytes of each image.

        Raises:
            BadImageError: `data` is damaged.
        """
        at = len(self._reserved)
        if len(data) < at + 4 or data[:at] != self._reserved:
            raise BadImageError("no header of a list of images.")
        count = int.from_bytes(data[at : at + 4], "little")
        begin = at + 4 + 4 * count
        # Python's integers do not wrap, so a huge count is caught here: `begin` exceeds the number of bytes.
        if count < self._min_images or begin > len(data):
            raise BadImageError(
                f"a list of {count} images, at least {self._min_images}, does not fit {len(data)} bytes."
            )
        sizes = np.frombuffer(data, _SIZE, count, at + 4)
        ends = [begin, *(begin + np.cumsum(sizes, dtype=np.int64)).tolist()]
        if ends[-1] != len(data):
            raise BadImageError(f"a list of {count} images takes {ends[-1]} bytes, found {len(data)}.")
        return [data[first:last] for first, last in pairwise(ends)]
