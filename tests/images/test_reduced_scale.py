"""JPEG files decoded at a reduced scale: the sizes, the same crop, and a bound on the difference from whole pixels."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from assets.drawing import draw_flower
from smalti.images import decode_batch, decode_rgb, encode_jpeg, prepare_jpeg, probe_image, resize_square
from smalti.images.header import ImageHeader
from smalti.images.pixels import scaled_size
from tests.conftest import SHARED

SIDE = 512  # of the patterns
ROWS, COLUMNS = np.mgrid[:SIDE, :SIDE]
SIDES = st.integers(1, 400)


def distances(data: bytes, size: int, interpolation: str = "bilinear") -> np.ndarray:
    """Return how far the square is from the exact centre of the whole pixels by Pillow's filter, in steps of 255."""
    whole = decode_rgb(data)
    height, width, _ = whole.shape
    side = min(height, width)
    left, top = (width - side) / 2, (height - side) / 2
    kind = Image.Resampling[interpolation.upper()]
    expected = Image.fromarray(whole).resize((size, size), kind, box=(left, top, left + side, top + side))
    return np.abs(decode_batch([data], size=size, interpolation=interpolation)[0].astype(int) - np.asarray(expected))


@functools.cache
def photos() -> tuple[bytes, ...]:
    return tuple(path.read_bytes() for path in sorted(SHARED.glob("flowers/*/*.jpg"))[::20])


def grey(values: np.ndarray) -> bytes:
    return encode_jpeg(np.repeat(values.astype(np.uint8)[..., None], 3, axis=-1), 95)


@settings(max_examples=60, deadline=None)
@given(width=SIDES, height=SIDES, min_size=st.integers(0, 450))
def test_the_decoder_gives_the_size_that_was_computed_and_no_side_is_too_small(width, height, min_size):
    data = encode_jpeg(np.zeros((height, width, 3), np.uint8), 50)
    found = decode_rgb(data, min_size=min_size or None).shape[:2]
    assert found == scaled_size(probe_image(data), min_size)
    assert min(found) >= min(min_size, width, height)
    if min_size in (0, *range(min(width, height), 451)):
        assert found == (height, width)


@pytest.mark.parametrize(
    ("min_size", "size"),
    [
        (0, (480, 640)), (480, (480, 640)), (700, (480, 640)),  # nothing to reduce
        (420, (480, 640)), (360, (480, 640)), (300, (480, 640)), (241, (480, 640)),  # 5/8 to 7/8 take longer
        (240, (240, 320)), (224, (240, 320)), (180, (240, 320)), (121, (240, 320)),  # so may 3/8
        (120, (120, 160)), (96, (120, 160)), (61, (120, 160)), (60, (60, 80)), (1, (60, 80)),
    ],
)  # fmt: skip
def test_the_smallest_of_the_fast_scales_that_suffices_is_used(min_size, size):
    assert scaled_size(ImageHeader("JPEG", 640, 480), min_size) == size


@pytest.mark.parametrize("size", [224, 160, 128, 96, 64, 32])
def test_a_photo_at_a_reduced_scale_is_near_its_whole_pixels(size):
    """The bound of docs/reading.md. Over 250 photos: a mean of 3.8 at most, and 15.3 for the most different one."""
    if not photos():
        pytest.skip("there are no photos in ../shared/flowers")
    found = [distances(data, size).mean() for data in photos()]
    assert np.mean(found) <= 5
    assert max(found) <= 16


def test_a_photo_that_is_decoded_whole_has_the_values_of_pillow_in_the_square_that_torchvision_cuts():
    for data in photos():
        whole = decode_rgb(data)
        side = min(whole.shape[:2])
        top, left = (whole.shape[0] - side) // 2, (whole.shape[1] - side) // 2  # an odd margin is larger on one side
        square = Image.fromarray(whole).crop((left, top, left + side, top + side))
        expected = np.asarray(square.resize((224, 224), Image.Resampling.BILINEAR)).astype(int)
        found = np.abs(decode_batch([data], size=224)[0] - expected)
        assert found.max() <= 2
        assert found.mean() <= 0.1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [480, 448, 384, 320, 256, 192, 150, 128, 100, 64, 48])
def test_smooth_colours_hardly_change(size, interpolation):
    colours = np.stack([ROWS // 2, COLUMNS // 2, (ROWS + COLUMNS) // 4], axis=-1).astype(np.uint8)
    found = distances(encode_jpeg(colours, 95), size, interpolation)
    assert found.mean() <= 1.5
    assert found.max() <= 6


@pytest.mark.parametrize("size", [256, 192, 128, 100, 64, 48])
def test_waves_up_to_a_quarter_of_the_resolution_keep_their_phase_and_height(size):
    """A zone plate with waves of 4 pixels of the square at its edges, where a shift by half a pixel is seen as 90."""
    radii = (ROWS - SIDE / 2) ** 2 + (COLUMNS - SIDE / 2) ** 2
    waves = 127.5 + 127 * np.cos(np.pi * radii * size / (2 * SIDE**2))
    found = distances(grey(waves), size, "bicubic")
    assert found.mean() <= 10
    assert found.max() <= 48


@pytest.mark.parametrize("size", [448, 300, 256, 200, 128, 96, 64, 40])
@pytest.mark.parametrize("shape", [(512, 512), (512, 691), (683, 512)])
def test_the_crop_is_the_same_at_every_scale(shape, size):
    """The centre of a soft spot, in pixels of the square, where the stored position puts it."""
    height, width = shape
    y, x = 0.4 * 512 + (height - 512) / 2, 0.65 * 512 + (width - 512) / 2
    rows, columns = np.mgrid[:height, :width] + 0.5
    spot = 250 * np.exp(-((rows - y) ** 2 + (columns - x) ** 2) / (2 * 30**2))
    light = decode_batch([grey(spot)], size=size)[0].mean(axis=-1)
    light[light < 4] = 0
    places = np.arange(size) + 0.5
    found = ((light.sum(axis=1) * places).sum() / light.sum(), (light.sum(axis=0) * places).sum() / light.sum())
    assert found == pytest.approx((0.4 * size, 0.65 * size), abs=0.5)


def test_a_square_of_the_right_size_is_cut_out_of_whole_pixels():
    data = draw_flower("tulips", number=4, size=(301, 224))
    expected = decode_rgb(data)[:, 38 : 38 + 224]
    assert (resize_square(decode_rgb(data), 224) == expected).all()


@pytest.mark.parametrize("size", [224, 96])
def test_a_prepared_photo_is_its_square_at_a_reduced_scale(size):
    data = draw_flower("roses", number=5, size=(640, 480))
    square = resize_square(decode_rgb(data, min_size=size), size)
    assert prepare_jpeg(data, size=size, quality=90).data == encode_jpeg(square, 90)
    assert np.abs(square.astype(int) - resize_square(decode_rgb(data), size)).mean() <= 4
