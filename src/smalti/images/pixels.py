"""Encoded images to RGB pixels and back, one image at a time, and a contact sheet of several for a person to look at.

JPEG files are decoded by libjpeg-turbo, scaled while decoding; what that cannot read (PNG, GIF, BMP, WEBP, CMYK and
unusual JPEG files) is decoded by Pillow. All functions are pure and thread-safe, and both decoders release the
interpreter lock. Batches stand in `smalti.images.batches`.
"""

import io
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from smalti.errors import ArgumentError, BadImageError
from smalti.images.header import ImageHeader, exif_orientation, probe_image

Pixels = npt.NDArray[np.uint8]
Interpolation = Literal["bilinear", "bicubic"]
# Errors that Pillow's plugins have been observed to raise on damaged bytes.
_DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, ArithmeticError, LookupError, EOFError, TypeError, struct.error,
    zlib.error, Image.DecompressionBombError,
)  # fmt: skip
_FAST_EIGHTHS = (1, 2, 4)
"""Scales, in eighths, at which libjpeg-turbo has SIMD code; at 5 to 7 it takes up to four times as long as at 8."""
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
GAP = 4
"""Pixels between two images of a contact sheet, and around them."""
HASH_BYTES = 16
"""Bytes of a perceptual hash."""
_GRID = 9  # cells on each side: 8 x 8 steps of brightness to the right, and as many downwards
_LEAST_CONTRAST = 12  # grey levels between the darkest and the brightest cell of an image that has a hash
_BACKGROUND = 245  # grey level
_MISSING = 200  # grey level of an image that does not decode


@dataclass(frozen=True)
class PreparedImage:
    """A JPEG prepared for training."""

    data: bytes
    """Baseline JPEG, RGB, without EXIF."""
    width: int
    """In pixels."""
    height: int
    """In pixels."""
    source_width: int
    """That of the image that it was made from, upright, in pixels."""
    source_height: int
    """That of the image that it was made from, upright, in pixels."""


def decode_rgb(data: bytes, *, min_size: int | None = None) -> Pixels:
    """Decode an image into pixels, uint8 (height, width, 3), as stored: EXIF orientation is not applied.

    Args:
        data: JPEG, PNG, WEBP, BMP or GIF (its first frame). Transparency is laid over white.
        min_size: when given, a JPEG may come out smaller than stored, as `scaled_size` says, with sides of at least
            this many pixels; much faster for large photos.

    Raises:
        BadImageError: not a whole image; see `probe_image` for what is refused before decoding.

    Examples:
        >>> decode_rgb(Path("photos/cat/0.jpg").read_bytes()).shape
        (48, 64, 3)
    """
    return decode_probed(data, probe_image(data), min_size)


def is_fast(header: ImageHeader) -> bool:
    """Return whether libjpeg-turbo can decode the image to RGB."""
    return header.format == "JPEG" and header.color in ("YCbCr", "Gray", "RGB")


def scaled_size(header: ImageHeader, min_size: int) -> tuple[int, int]:
    """Return height and width at which libjpeg-turbo decodes a JPEG of which sides of `min_size` pixels are needed.

    It is an eighth, a quarter or half of the stored size, the smallest with no side below `min_size`; the stored size
    if none is, or if `min_size` is 0.
    """
    shorter = min(header.height, header.width)
    for eighths in _FAST_EIGHTHS:
        if 0 < min_size <= scaled_side(shorter, eighths):
            return scaled_side(header.height, eighths), scaled_side(header.width, eighths)
    return header.height, header.width


def scaled_side(side: int, eighths: int) -> int:
    """Return the pixels of a side that libjpeg-turbo decodes at a scale, which rounds up."""
    return -(-side * eighths // 8)


def decode_fast(
    data: bytes,
    header: ImageHeader,
    *,
    min_size: int = 0,
    out: Pixels | None = None,
    smooth: bool = True,
    backwards: bool = False,
) -> Pixels | None:
    """Decode a JPEG with libjpeg-turbo; None if it refuses the file and Pillow may accept it.

    Args:
        data: The file.
        header: Its checked header, for which `is_fast` holds.
        min_size: As for `decode_rgb`; 0 for the stored size.
        out: C-ordered array to decode into, of `scaled_size`.
        smooth: whether colours, stored at half the resolution, are interpolated; otherwise each is used for 2 x 2
            pixels, which takes a tenth less time.
        backwards: whether to store BGR, of which the RGB that is returned is a view. Mirrored, it is the bytes of each
            row from last to first, which numpy copies seven times as fast as it mirrors pixels of three bytes.

    Raises:
        BadImageError: The file ends before its pixels do.
    """
    height, width = scaled_size(header, min_size)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data,
            "BGR" if backwards else "RGB",
            fastdct=True,
            fastupsample=not smooth,
            min_height=height,
            min_width=width,
            buffer=out,
        )
    except ValueError as error:
        # Pillow tolerates harmless oddities (bytes before a marker); missing pixels are not harmless.
        if "remature end" in str(error):  # "Premature end of JPEG file"
            raise _broken(header, data, error) from error
        return None
    return pixels[..., ::-1] if backwards else pixels


def _broken(header: ImageHeader, data: bytes, error: Exception) -> BadImageError:
    return BadImageError(
        f"{header.format} image of {header.width}x{header.height} pixels in {len(data)} bytes does not decode; "
        f"it is truncated or damaged ({error}): replace the file",
        num_bytes=len(data),
        format=header.format,
    )


def decode_probed(data: bytes, header: ImageHeader, min_size: int | None) -> Pixels:
    """Decode an image whose header was checked already; arguments as for `decode_rgb`."""
    if is_fast(header):
        pixels = decode_fast(data, header, min_size=min_size or 0)
        if pixels is not None:
            return pixels
    try:
        with Image.open(io.BytesIO(data), formats=(header.format,)) as image:
            if image.size != (header.width, header.height):  # a GIF's first frame makes Pillow's canvas grow
                raise BadImageError(
                    f"{header.format} header declares {header.width}x{header.height} pixels, but the image has "
                    f"{image.width}x{image.height}: the file is damaged, or crafted to exhaust memory; replace it",
                    num_bytes=len(data),
                    format=header.format,
                )
            if min_size and header.format == "JPEG":
                image.draft(None, (min_size, min_size))
            return np.array(_to_rgb(image))  # a copy: a view of Pillow's memory would be read-only
    except BadImageError:
        raise
    except _DECODER_ERRORS as error:
        raise _broken(header, data, error) from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip instead of scale
        grey = np.asarray(image).astype(np.int64) >> 8
        return Image.fromarray(grey.clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """Return pixels, shape (height, width, 3), turned and mirrored as the EXIF orientation demands; a view."""
    if orientation in _SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def resize_square(pixels: Pixels, size: int) -> Pixels:
    """Return the centre square of an image, resized: bicubic with anti-aliasing.

    If the shorter side has `size` pixels already, the square is cut out, as a view.

    Args:
        pixels: (height, width, 3).
        size: Side of the square, pixels.

    Examples:
        >>> resize_square(np.zeros((48, 64, 3), np.uint8), 32).shape
        (32, 32, 3)
    """
    height, width = pixels.shape[:2]
    side = min(height, width)
    if side == size:
        top, left = (height - size) // 2, (width - size) // 2
        return pixels[top : top + size, left : left + size]
    left, top = (width - side) / 2, (height - side) / 2
    image = Image.fromarray(np.ascontiguousarray(pixels))
    box = (left, top, left + side, top + side)
    return np.array(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


def unaligned(shape: tuple[int, ...]) -> Pixels:
    """Return an array that does not begin at a multiple of 32 bytes.

    At such an address libjpeg-turbo uses stores that bypass the core's caches, and the next reader of the pixels waits
    for memory: decoding alone was measured 15 % slower.
    """
    num_bytes = int(np.prod(shape))
    room = np.empty(num_bytes + 32, np.uint8)
    begin = (8 - room.__array_interface__["data"][0]) % 32
    pixels: Pixels = room[begin : begin + num_bytes].reshape(shape)
    return pixels


class Resizer:
    """Resizes decoded pixels, anti-aliased, into their places; for one thread, since it has buffers.

    Torch does it, in a third of Pillow's time or less, where this process has imported it and the processor has the
    instructions that its kernel of uint8 is written for; else Pillow. Both compute with weights of 16 bits: nearly all
    of their values are the same.
    """

    def __init__(self, interpolation: Interpolation) -> None:
        self._interpolation = interpolation
        # Not imported for this: it takes seconds, and memory. Loader workers of torch have it, whatever they read.
        self._torch = _fast_torch() if sys.modules.get("torch") is not None else None
        self._buffer = self._scratch = np.empty(0, np.uint8)

    def scratch(self, height: int, width: int) -> Pixels:
        """Return room for an image that is larger than its place; the same memory for the next one.

        It is in the core's cache then.
        """
        if self._scratch.size < height * width * 3:
            self._scratch = unaligned((height * width * 3,))
        return self._scratch[: height * width * 3].reshape(height, width, 3)

    def into(self, place: Pixels, pixels: Pixels) -> None:
        """Resize (height, width, 3) pixels, a view of any strides, to the shape of `place`, and write them there."""
        if self._torch is None:
            filter_ = Image.Resampling[self._interpolation.upper()]
            height, width, _ = place.shape
            place[...] = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((width, height), filter_))
            return
        # Torch's kernel packs channels first in many times the time in which numpy copies them.
        target = place if place.flags.c_contiguous else np.empty(place.shape, np.uint8)
        kernel = getattr(self._torch.ops.aten, f"_upsample_{self._interpolation}2d_aa").out
        # Copied by numpy: torch would copy on its threads, which takes many times longer beside other threads.
        if self._buffer.size < pixels.size:  # kept: new memory of this size takes as long as the copy
            self._buffer = np.empty(pixels.size, np.uint8)
        copy = self._buffer[: pixels.size].reshape(pixels.shape)
        copy[...] = pixels
        kernel(self._tensor(copy), target.shape[:2], align_corners=False, out=self._tensor(target))
        if target is not place:
            place[...] = target

    def _tensor(self, pixels: Pixels) -> Any:
        """Return contiguous pixels as a tensor (1, 3, height, width) of the same memory."""
        height, width, _ = pixels.shape
        strides = (3 * height * width, 1, 3 * width, 3)
        return self._torch.from_numpy(pixels).as_strided((1, 3, height, width), strides)  # type: ignore[union-attr]


@lru_cache(maxsize=1)
def _fast_torch() -> Any | None:
    """Return torch if it resizes uint8 fast on this processor."""
    torch = import_module("torch")  # waits for the end of its import, if another thread is importing it
    return torch if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") else None


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encode pixels as a baseline 4:2:0 JPEG.

    Args:
        pixels: uint8 (height, width, 3).
        quality: 1 to 100.

    Examples:
        >>> data = encode_jpeg(np.zeros((48, 64, 3), np.uint8), 90)
        >>> decode_rgb(data).shape
        (48, 64, 3)
    """
    if not 1 <= quality <= 100:
        raise ArgumentError(f"`quality` of a JPEG must lie in 1..100, found {quality}")
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420", fastdct=False)
    return data


def prepare_jpeg(data: bytes, *, size: int, quality: int) -> PreparedImage:
    """Return the centre square of an encoded image, upright, `size` pixels on a side, as a JPEG.

    Args:
        data: An encoded image.
        size: Side of the square, pixels.
        quality: Quality of the JPEG, 1 to 100.

    Raises:
        BadImageError: not a whole image.

    Examples:
        >>> image = prepare_jpeg(Path("photos/cat/0.jpg").read_bytes(), size=32, quality=90)
        >>> (image.width, image.height), (image.source_width, image.source_height)
        ((32, 32), (64, 48))
    """
    header, orientation = probe_image(data), exif_orientation(data)
    pixels = turn_upright(decode_probed(data, header, size), orientation)
    sides = (header.height, header.width) if orientation in _SIDEWAYS else (header.width, header.height)
    return PreparedImage(encode_jpeg(resize_square(pixels, size), quality), size, size, *sides)


def perceptual_hash(jpeg: Any) -> bytes | None:
    """Return the perceptual hash of a JPEG, any buffer of it; None if it is a plain one, of too little contrast.

    The hash survives another size, another JPEG quality and small changes of brightness; it does not survive crops,
    rotations and mirroring. It is taken where an image is prepared, so that comparing hashes reads no image.

    Raises:
        ValueError: it does not decode.
    """
    height, width, _, _ = simplejpeg.decode_jpeg_header(jpeg, strict=False)
    least = min(4 * _GRID, height, width)  # decoded at a fraction of its size, but not smaller than this
    grey = simplejpeg.decode_jpeg(jpeg, "GRAY", fastdct=True, min_height=least, min_width=least)[..., 0]
    cells = np.asarray(Image.fromarray(grey).resize((_GRID, _GRID), Image.Resampling.BOX))
    if int(cells.max()) - int(cells.min()) < _LEAST_CONTRAST:
        return None
    here, right, below = cells[:-1, :-1], cells[:-1, 1:], cells[1:, :-1]
    return np.packbits(right > here).tobytes() + np.packbits(below > here).tobytes()


def thumbnail(data: bytes, size: int) -> Pixels:
    """Return the centre square of an encoded image, upright; grey if it does not decode.

    Args:
        data: An encoded image.
        size: Side of the square, pixels.

    Examples:
        >>> thumbnail(Path("photos/cat/0.jpg").read_bytes(), 24).shape
        (24, 24, 3)
    """
    try:
        return resize_square(turn_upright(decode_rgb(data, min_size=size), exif_orientation(data)), size)
    except BadImageError:  # one bad file must not prevent an overview
        return np.full((size, size, 3), _MISSING, np.uint8)


def contact_sheet(thumbnails: Sequence[Pixels], *, columns: int) -> Pixels:
    """Return square images row by row, with gaps of `GAP` pixels between them and around.

    Args:
        thumbnails: Images of one size, at least one.
        columns: Images in a row.

    Examples:
        >>> small = thumbnail(Path("photos/cat/0.jpg").read_bytes(), 24)
        >>> contact_sheet([small] * 4, columns=2).shape[0] == 2 * 24 + 3 * GAP
        True
    """
    size = len(thumbnails[0])
    columns = min(columns, len(thumbnails))
    rows, step = -(-len(thumbnails) // columns), size + GAP
    sheet: npt.NDArray[np.uint8] = np.full((rows * step + GAP, columns * step + GAP, 3), _BACKGROUND, np.uint8)
    for place, picture in enumerate(thumbnails):
        top, left = GAP + place // columns * step, GAP + place % columns * step
        sheet[top : top + size, left : left + size] = picture
    return sheet


def thumbnail_grid(images: Sequence[bytes], *, columns: int = 8, size: int = 96) -> bytes:
    """Return a JPEG that shows the images, upright, row by row; one that does not decode is a grey square.

    Args:
        images: Encoded images, at least one.
        columns: Images in a row.
        size: Side of each image, pixels.

    Examples:
        >>> photos = [path.read_bytes() for path in sorted(Path("photos/cat").iterdir())]
        >>> _ = Path("cats.jpg").write_bytes(thumbnail_grid(photos, columns=3))
    """
    if not images or columns < 1 or size < 1:
        raise ArgumentError(
            f"a grid needs at least one image, `columns` >= 1 and `size` >= 1, "
            f"found {len(images)}, {columns} and {size}"
        )
    return encode_jpeg(contact_sheet([thumbnail(data, size) for data in images], columns=columns), 88)
