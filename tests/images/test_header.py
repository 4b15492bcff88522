"""Image headers: format and size, and images that are refused before a pixel is decoded."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from smalti.errors import BadImageError
from smalti.format.encodings.images import check_jpeg
from smalti.images import probe_image
from smalti.images.header import exif_orientation


def encode(kind: str, size=(40, 30), mode="RGB", **options) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, 128).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_header_gives_format_and_size(kind):
    header = probe_image(encode(kind, mode="P" if kind == "GIF" else "RGB"))
    assert (header.format, header.width, header.height) == (kind, 40, 30)


@pytest.mark.parametrize("options", [{"lossless": True}, {"exif": b"Exif\0\0II*\0"}], ids=["lossless", "extended"])
def test_every_kind_of_webp_header_is_read(options):
    header = probe_image(encode("WEBP", size=(300, 7), **options))
    assert (header.width, header.height) == (300, 7)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "zero bytes"),
        (b"hello, this is no image", r"found text \(23 bytes\)"),
        (b"<!DOCTYPE html><html>404", "an HTML page"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"II*\x00tiff", "a TIFF image"),
        (b"\x00\x00\x00\x18ftypheic0000", "a HEIC/AVIF image"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS pointer"),
        (bytes(range(200, 216)), r"bytes of no known kind \(16 bytes\)"),
        (b"\xff\xd8\xff", "no complete header"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", "no complete header"),
        (b"\x89PNG\r\n\x1a\n", "ends inside its header"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDX" + bytes(20), "IHDR"),
        (b"GIF89a", "ends inside its header"),
        (b"BM", "ends inside its header"),
        (b"RIFF\x10\0\0\0WEBP", "unknown first chunk"),
    ],
)
def test_bytes_that_are_no_image_are_described(data, says):
    with pytest.raises(BadImageError, match=says):
        probe_image(data)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0),
        b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0),
        b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2,
        b"\xff\xd8\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 60_000, 60_000) + b"\x01\x01\x11\x00",
    ],
    ids=["png", "gif", "webp", "jpeg"],
)
def test_a_bomb_is_refused_from_its_header(bomb):
    """The pixels would need 0.8 to 12 GB; nothing is allocated before the refusal."""
    with pytest.raises(BadImageError, match="above the limit"):
        probe_image(bomb)


def test_an_impossible_size_is_refused():
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">IIBBBBB", 0, 10, 8, 2, 0, 0, 0)
    with pytest.raises(BadImageError, match="impossible size of 0x10"):
        probe_image(png)


def test_a_rotated_photo_reports_its_stored_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(np.zeros((10, 20, 3), np.uint8)).save(out, "JPEG", exif=exif)
    header = probe_image(out.getvalue())
    assert (header.width, header.height) == (20, 10)


def test_fill_bytes_and_markers_without_payload_are_skipped():
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = encode("JPEG", exif=exif)
    for extra in (b"\xff\0ab", b"\xff\xd0", b"\xff"):
        data = photo[:2] + extra + photo[2:]
        assert exif_orientation(data) == 6
        assert check_jpeg(data) is None
