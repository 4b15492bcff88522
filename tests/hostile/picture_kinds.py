"""Damaged images of every format that is decoded for training: pixels of the right size, or `BadImageError`."""

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from random import Random

import numpy as np
import simplejpeg
from PIL import Image

from smalti.errors import BadImageError
from smalti.images import DecodeImages, decode_rgb, probe_image
from tests.hostile.mutations import mutate_bytes

SIDE = 24
_MARKERS = (
    0xC0,
    0xC1,
    0xC2,
    0xC3,
    0xC4,
    0xC9,
    0xD8,
    0xD9,
    0xDA,
    0xDB,
    0xDC,
    0xDD,
    0xE0,
    0xE1,
    0xEE,
    0xFE,
    0x00,
    0x01,
    0xFF,
)


@dataclass(frozen=True)
class Picture:
    """A damaged image file, and the options to decode it with."""

    data: bytes
    size: int
    crop: str


class Pictures:
    """Image files with one to four changes, half of them in the header."""

    name = "picture"

    def make(self, dice: Random) -> Picture:
        """Return one damaged image."""
        data = dice.choice(whole_pictures())
        chance = dice.random()
        if chance < 0.4:
            data = mutate_bytes(data[:60], dice) + data[60:]
        elif chance < 0.6:
            data = _other_segment(data, dice)
        else:
            data = mutate_bytes(data, dice)
        return Picture(data, dice.choice((SIDE, SIDE, 8, 40)), dice.choice(("resize", "center")))

    def check(self, case: Picture) -> str:
        """Expect the same pixels each time, of the size in the checked header; or a typed error."""
        decode = DecodeImages(case.size, columns=("x",), crop=case.crop)  # type: ignore[arg-type]
        try:
            pixels = decode({"x": [case.data]})["x"]
        except BadImageError as error:
            return _refusal(error)
        assert pixels.shape == (1, case.size, case.size, 3)
        assert pixels.dtype == np.uint8
        # Uninitialised memory would differ: freed memory is filled with another value before the second decoding.
        np.full(pixels.nbytes + 64, 0xA5, np.uint8)
        assert np.array_equal(decode({"x": [case.data]})["x"], pixels), "pixels that the file does not hold"
        header = probe_image(case.data)
        assert decode_rgb(case.data).shape == (header.height, header.width, 3), "another size than was checked"
        if header.format == "JPEG" and header.color in ("YCbCr", "Gray", "RGB"):
            _check_jpeg_size(case.data, (header.height, header.width))
        return f"accepted {header.format}"

    def dump(self, case: Picture) -> bytes:
        """Return the file."""
        return case.data


def _refusal(error: BadImageError) -> str:
    assert (error.column, error.index) == ("x", 0), "refused without its place"
    return "refused"


@cache
def whole_pictures() -> tuple[bytes, ...]:
    """Return small images of all formats."""
    noise = Image.effect_noise((SIDE, SIDE), 60)
    files = []
    for kind, mode, options in (
        ("JPEG", "RGB", {}), ("JPEG", "RGB", {"progressive": True}), ("JPEG", "L", {}), ("JPEG", "CMYK", {}),
        ("JPEG", "RGB", {"subsampling": 0,
        "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"}),
        ("PNG", "RGB", {}), ("PNG", "P", {}), ("PNG", "I;16", {}), ("PNG", "RGBA", {}), ("GIF", "P", {}), ("BMP",
        "RGB", {}),
        ("WEBP", "RGB", {"lossless": True}), ("WEBP", "RGBA", {}),
    ):  # fmt: skip
        out = BytesIO()
        noise.convert(mode).save(out, kind, **options)
        files.append(out.getvalue())
    return tuple(files)


def _other_segment(data: bytes, dice: Random) -> bytes:
    """Repeat, remove or relabel a segment of a JPEG; files of other formats, which have none, are truncated."""
    places, at = [], 2
    while data[:2] == b"\xff\xd8" and at + 4 <= len(data) and data[at] == 0xFF:
        after = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        places.append((at, after))
        at = after
    if not places:
        return data[: dice.randrange(len(data))]
    begin, end = dice.choice(places)
    kind = dice.randrange(4)
    segment = data[begin:end]
    if kind == 0:
        segment = b""
    elif kind == 1:
        segment += segment[:5] + dice.randbytes(4) + segment[9:]
    elif kind == 2:
        segment = bytes([0xFF, dice.choice(_MARKERS)]) + segment[2:]
    else:
        segment = bytes([0xFF, dice.choice(_MARKERS)]) * dice.randrange(1, 4) + segment
    return data[:begin] + segment + data[end:]


def _check_jpeg_size(data: bytes, size: tuple[int, int]) -> None:
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except ValueError:
        return  # decoded by Pillow
    assert (height, width) == size, "libjpeg-turbo sees another size than was checked"
