"""Images: files are stored unchanged, damaged ones are refused, raw pixels come back."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from smalti.errors import BadImageError, SchemaError
from smalti.format import parse_encoding
from tests.format.columns import image_bytes

JPEG, PNG = image_bytes("JPEG", (5, 4)), image_bytes("PNG", (5, 4))


def test_raw_pixels_of_a_known_image():
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    stored = parse_encoding("pil").encode(image)
    assert stored.hex() == "02000000" + "01000000" + "03000000" + "524742" + "010203010203"
    assert parse_encoding("pil").encode(stored) == stored


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "I", "F", "I;16"])
def test_raw_pixels_of_every_mode_come_back(mode):
    data = bytes(range(256)) * 2
    size = (9, 3)
    num_bytes = len(Image.new(mode, size).tobytes())
    image = Image.frombytes(mode, size, data[:num_bytes])
    back = parse_encoding("pil").decode(parse_encoding("pil").encode(image))
    assert (back.mode, back.size, back.tobytes()) == (mode, size, image.tobytes())


def test_palette_image_is_refused_as_raw_pixels():
    with pytest.raises(SchemaError, match="convert"):
        parse_encoding("pil").encode(Image.new("P", (2, 2)))


@pytest.mark.parametrize("name", ["pil", "list[pil]"])
@pytest.mark.parametrize(("mode", "pixels"), [("P", bytes([0, 1, 255, 7])), ("PA", bytes(range(8)))])
def test_palette_image_that_mosaicml_stored_keeps_its_indices(name, mode, pixels):
    """Masks of classes are such images."""
    stored = b"".join(n.to_bytes(4, "little") for n in (2, 2, len(mode))) + mode.encode() + pixels
    if name == "pil":
        back = parse_encoding(name).decode(stored)
    else:
        (back,) = parse_encoding(name).decode(bytes(4) + b"\1\0\0\0" + len(stored).to_bytes(4, "little") + stored)
    assert (back.mode, back.size, back.tobytes()) == (mode, (2, 2), pixels)
    with pytest.raises(SchemaError):
        parse_encoding("pil").encode(stored)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"\x02",
        bytes.fromhex("0200000001000000030000005247420102"),  # pixels are missing
        bytes.fromhex("ffffffffffffffff03000000524742") + b"\x00",  # would be 10^19 pixels
        bytes.fromhex("020000000100000003000000585858010203010203"),  # no such mode
        bytes.fromhex("0200000001000000ffffffff524742010203010203"),
    ],
)
def test_damaged_raw_image_is_refused_before_anything_is_allocated(stored):
    with pytest.raises(BadImageError):
        parse_encoding("pil").decode(stored)
    with pytest.raises(SchemaError):
        parse_encoding("pil").encode(stored)


@pytest.mark.parametrize(("name", "data"), [("jpeg", JPEG), ("png", PNG)])
def test_image_file_is_stored_unchanged(name, data):
    assert parse_encoding(name).encode(data) == data
    assert parse_encoding(name).encode(memoryview(data)) == data
    assert np.asarray(parse_encoding(name).decode(data)).shape == (4, 5)


def test_photos_pass_the_check(shared):
    codec = parse_encoding("jpeg")
    photos = sorted((shared / "flowers").rglob("*.jpg"))[::25]
    assert photos
    for path in photos:
        assert codec.encode(path.read_bytes()) == path.read_bytes()


@pytest.mark.parametrize(("name", "data"), [("jpeg", JPEG), ("png", PNG)])
def test_every_truncation_of_a_file_is_refused(name, data):
    for length in range(len(data)):
        with pytest.raises(SchemaError):
            parse_encoding(name).encode(data[:length])


@pytest.mark.parametrize("name", ["jpeg", "png"])
@pytest.mark.parametrize(
    "data", [b"", b"GIF89a", b"<html>", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", None, "text", np.zeros((2, 2), np.uint8)]
)
def test_foreign_value_is_refused_as_a_file(name, data):
    with pytest.raises(SchemaError):
        parse_encoding(name).encode(data)


def test_file_of_the_other_format_is_refused():
    with pytest.raises(SchemaError):
        parse_encoding("jpeg").encode(PNG)
    with pytest.raises(SchemaError):
        parse_encoding("png").encode(JPEG)


def test_image_opened_from_a_jpeg_file_is_stored_as_that_file(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG)
    with Image.open(path) as image:
        assert parse_encoding("jpeg").encode(image) == JPEG
        path.unlink()
        again = parse_encoding("jpeg").encode(image)
    assert again.startswith(b"\xff\xd8")


def test_image_that_was_changed_in_place_is_stored_as_it_is_now(tmp_path):
    """MosaicML's writer stores the file that the image was opened from, and the change is lost."""
    path = tmp_path / "a.jpg"
    Image.new("RGB", (64, 32), (250, 0, 0)).save(path)
    codec = parse_encoding("jpeg")
    with Image.open(path) as image:
        image.load()
        assert codec.encode(image) == path.read_bytes()
        image.thumbnail((16, 16))
        assert codec.decode(codec.encode(image)).size == (16, 8)
    with Image.open(path) as image:
        image.paste((0, 250, 0), (0, 0, 64, 32))
        red, green, _ = codec.decode(codec.encode(image)).getpixel((32, 16))
        assert green > 200 > 50 > red
    with Image.open(path) as image:
        image.draft("L", (16, 8))
        found = codec.decode(codec.encode(image))
        assert (found.mode, found.size) == (image.mode, image.size) != ("RGB", (64, 32))


def test_file_changed_after_the_image_was_opened_is_not_stored(tmp_path):
    path = tmp_path / "a.jpg"
    Image.new("L", (8, 8), 200).save(path)
    with Image.open(path) as image:
        image.load()
        path.write_bytes(b"garbage")
        assert parse_encoding("jpeg").decode(parse_encoding("jpeg").encode(image)).getpixel((4, 4)) == 200


def test_truncated_file_of_an_open_image_is_refused(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG[:-2])
    with Image.open(path) as image, pytest.raises(SchemaError, match="cut short"):
        parse_encoding("jpeg").encode(image)


def test_more_pixels_than_pillow_reads_are_refused_at_writing_and_reading():
    png = PNG[:16] + (1 << 16).to_bytes(4, "big") + (1 << 16).to_bytes(4, "big") + PNG[24:]
    jpeg = JPEG.replace(b"\x00\x04\x00\x05", b"\xff\xff\xff\xff")
    raw = b"".join(n.to_bytes(4, "little") for n in (1 << 16, 1 << 16, 1)) + b"1" + bytes(1 << 20)
    for name, data in (("png", png), ("jpeg", jpeg), ("pil", raw)):
        with pytest.raises(SchemaError, match="pixels are more than the 178956970 allowed"):
            parse_encoding(name).encode(data)
        with pytest.raises(BadImageError):
            parse_encoding(name).decode(data)


def test_pixel_cap_holds_where_pillows_own_is_switched_off(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    tall = JPEG.replace(b"\x00\x04\x00\x05", b"\xff\xff\xff\xff")
    with pytest.raises(BadImageError, match="65535 x 65535 pixels are more than"):
        parse_encoding("jpeg").decode(tall)


@pytest.mark.parametrize(
    "data",
    [
        b"GIF89a" + b"\xff\xff\xff\xff" + bytes(20),
        b"BM" + bytes(12) + (40).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little") * 2 + bytes(20),
        b"RIFF" + bytes(4) + b"WEBPVP8X" + bytes(8) + b"\xff" * 6,
    ],
    ids=["GIF", "BMP", "WEBP"],
)
def test_pixel_cap_holds_for_other_formats_before_a_decoder_opens_them(monkeypatch, data):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(BadImageError, match="pixels are more than"):
        parse_encoding("jpeg").decode(data)


def test_cut_headers_of_other_formats_are_bad_images():
    for data in (b"GIF8", b"BM", b"RIFF", b"RIFF0000WEBPVP8X", b"RIFF0000WEBPVP9 "):
        with pytest.raises(BadImageError):
            parse_encoding("png").decode(data)


def test_image_from_memory_is_saved_as_pil_saves_it():
    image = Image.new("RGB", (6, 5), (200, 10, 30))
    for name in ("jpeg", "png"):
        out = BytesIO()
        image.save(out, name.upper())
        assert parse_encoding(name).encode(image) == out.getvalue()


def test_image_that_jpeg_cannot_hold_is_refused():
    with pytest.raises(SchemaError, match="RGBA"):
        parse_encoding("jpeg").encode(Image.new("RGBA", (2, 2)))


def test_unreadable_stored_file_is_a_bad_image():
    for name in ("jpeg", "png"):
        with pytest.raises(BadImageError):
            parse_encoding(name).decode(b"no image at all")


START, SIZE, SCAN, END = "ffd8", "ffc0000b0800020003010111 00", "ffda0008010100003f00 12", "ffd9"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (START + SIZE + SCAN + END, None),
        (START + "ffff" + SIZE[2:] + SCAN + END, None),  # fill bytes before a mark
        (START + "ffd0" + SIZE + SCAN + END, None),  # a mark without a length
        (START + SIZE + "00000000" + SCAN + END, None),  # bytes between segments
        (START + "ff00" + SIZE + "616263ff00" + SCAN + END, None),
        (START + "ff01" + SIZE + SCAN + END, "mark 0x01, which no decoder takes"),
        (START + SIZE + "ffd8" + SCAN + END, "mark 0xd8, which no decoder takes"),
        (START + "ffe00004 0000" + SIZE + SCAN + END + "00ff", None),  # something behind the end
        (START + SIZE + SCAN, "cut short"),
        (START + "ffe00006 ffd90000" + SIZE + SCAN, "cut short"),  # the end of an embedded thumbnail does not count
        (START + SCAN + END, "before the header"),
        (START + "ffc0000b0800020000010111 00" + SCAN + END, "width is 0"),
        (START + "ffc00005", "width is 0"),
        (START + SIZE + "ffe0ffff" + SCAN + END, "ends before any pixels"),
        (START + SIZE, "ends before any pixels"),
    ],
)
def test_jpeg_check_finds_each_fault(data, fault):
    codec = parse_encoding("jpeg")
    stored = bytes.fromhex(data)
    if fault is None:
        assert codec.encode(stored) == stored
    else:
        with pytest.raises(SchemaError, match=fault):
            codec.encode(stored)


def test_png_check_finds_each_fault():
    for data, fault in (
        (PNG[:12] + b"XXXX" + PNG[16:], "header is missing"),
        (PNG[:16] + bytes(4) + PNG[20:], "width or height is 0"),
        (PNG[:20] + bytes(4) + PNG[24:], "width or height is 0"),
        (PNG[:-12], "cut short"),
    ):
        with pytest.raises(SchemaError, match=fault):
            parse_encoding("png").encode(data)
