"""Decoding and preparing images: correct pixels, or an error that describes the damage."""

import io
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from assets.drawing import draw_flower
from smalti.errors import BadImageError
from smalti.images import decode_rgb, encode_jpeg, prepare_jpeg, probe_image, resize_square
from smalti.images.header import exif_orientation


def save(image: Image.Image, kind: str, **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def quadrants(width=64, height=48) -> Image.Image:
    """Return an image of red and green over blue and white: every rotation and reflection of it is different."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (250, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 250, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 250)
    pixels[height // 2 :, width // 2 :] = (250, 250, 250)
    return Image.fromarray(pixels)


def is_close(found, expected, within=12.0) -> bool:
    return found.shape == expected.shape and np.abs(found.astype(int) - expected.astype(int)).mean() < within


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP", "JPEG"])
def test_every_format_decodes_to_the_same_picture(kind):
    image = quadrants()
    assert is_close(decode_rgb(save(image, kind)), np.asarray(image), within=6)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_colour_space_of_a_jpeg_becomes_rgb(mode, progressive):
    image = quadrants().convert(mode)
    found = decode_rgb(save(image, "JPEG", quality=95, subsampling=0, progressive=progressive))
    assert found.dtype == np.uint8
    assert is_close(found, np.asarray(image.convert("RGB")), within=6)


def test_transparency_is_laid_over_white():
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert decode_rgb(save(image, "PNG"))[0, 0].tolist() == [255, 255, 255]


def test_a_palette_with_transparency_is_laid_over_white():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0] + [0, 0, 255] * 255)
    assert decode_rgb(save(image, "PNG", transparency=b"\x00"))[0, 0].tolist() == [255, 255, 255]


def test_sixteen_bit_grey_is_scaled_not_clipped():
    image = Image.fromarray(np.full((4, 4), 0x4000, np.uint16))
    assert decode_rgb(save(image, "PNG"))[0, 0].tolist() == [64, 64, 64]


def test_min_size_shrinks_but_never_below():
    data = draw_flower("daisy", number=1, size=(800, 600))
    assert decode_rgb(data).shape == (600, 800, 3)
    height, width, _ = decode_rgb(data, min_size=96).shape
    assert min(height, width) >= 96
    assert height < 200


def test_min_size_above_the_stored_size_gives_the_stored_size():
    assert decode_rgb(save(quadrants(20, 30), "JPEG"), min_size=96).shape == (30, 20, 3)


def test_decoded_pixels_are_writable():
    for kind in ("PNG", "JPEG"):
        decode_rgb(save(quadrants(), kind))[0, 0] = 1
    resize_square(decode_rgb(save(quadrants(), "PNG")), 8)[0, 0] = 1


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_image_is_refused(kind, share):
    whole = save(Image.open(io.BytesIO(draw_flower("roses", number=0))), kind)
    with pytest.raises(BadImageError, match="truncated"):
        decode_rgb(whole[: int(len(whole) * share)])


def test_every_truncation_of_a_small_jpeg_is_refused():
    whole = save(quadrants(16, 16), "JPEG")
    decode_rgb(whole)
    for length in range(len(whole)):
        with pytest.raises(BadImageError):
            decode_rgb(whole[:length])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_damaged_bytes_give_pixels_or_a_typed_error(kind):
    """300 files with a few flipped bytes: never another kind of exception, never pixels of another shape."""
    whole = save(quadrants(48, 40), kind)
    rng = np.random.default_rng(7)
    outcomes = {"pixels": 0, "refused": 0}
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        data = bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
                header = probe_image(data)
                if header.width * header.height > 1 << 20:
                    continue
                found = decode_rgb(data)
            assert found.shape == (header.height, header.width, 3)
            outcomes["pixels"] += 1
        except BadImageError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0, outcomes


def test_a_gif_whose_frame_is_larger_than_its_header_says_is_refused():
    """The header's size was checked, but Pillow would allocate the size of the frame."""
    data = save(quadrants(64, 48), "GIF")
    small = data[:6] + b"\x01\0\x01\0" + data[10:]
    assert probe_image(small).width == 1
    with pytest.raises(BadImageError, match="GIF header declares 1x1 pixels, but the image has 64x48"):
        decode_rgb(small)


def test_the_centre_square_is_kept():
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    assert (resize_square(pixels, 5) > 180).all()  # the filter reaches a little over the edge


def test_a_square_of_the_right_size_is_returned_unchanged():
    pixels = np.arange(5 * 5 * 3, dtype=np.uint8).reshape(5, 5, 3)
    assert (resize_square(pixels, 5) == pixels).all()


@pytest.mark.parametrize("size", [1, 7, 96, 200])
def test_any_shape_becomes_a_square(size):
    for shape in ((1, 1), (1, 50), (300, 2), (97, 96)):
        assert resize_square(np.zeros((*shape, 3), np.uint8), size).shape == (size, size, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_preparing_applies_the_exif_orientation(orientation, kind):
    image = quadrants(64, 48)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = save(image, kind, exif=exif)
    assert exif_orientation(data) == orientation
    with Image.open(io.BytesIO(data)) as stored:
        upright = np.asarray(ImageOps.exif_transpose(stored).convert("RGB"))
    prepared = prepare_jpeg(data, size=32, quality=95)
    assert (prepared.width, prepared.height) == (32, 32)
    assert (prepared.source_height, prepared.source_width) == upright.shape[:2]
    assert is_close(decode_rgb(prepared.data), resize_square(upright, 32), within=14)
    assert exif_orientation(prepared.data) == 1


@pytest.mark.parametrize("block", [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\x01", b"junkjunk"])
def test_damaged_exif_leaves_the_pixels_as_stored(block):
    data = save(quadrants(), "PNG")
    end_of_header = 8 + 25
    chunk = len(block).to_bytes(4, "big") + b"eXIf" + block + b"\0\0\0\0"
    assert exif_orientation(data[:end_of_header] + chunk + data[end_of_header:]) == 1


def test_quality_outside_its_range_is_refused():
    with pytest.raises(ValueError, match=r"1\.\.100, found 0"):
        encode_jpeg(np.zeros((4, 4, 3), np.uint8), 0)
