"""Resizing by torch: the values of Pillow's filter inside the square, and the option that chooses it."""

import pickle

import numpy as np
import pytest

from assets.drawing import draw_flower
from smalti.images import DecodeImages, decode_batch, decode_rgb
from smalti.images import resize_square as resize_with_pillow
from smalti.torch import resize_square


@pytest.mark.parametrize("size", [224, 150, 64, 300])
@pytest.mark.parametrize("shape", [(240, 240), (320, 240), (240, 322)])
def test_values_are_those_of_pillow(shape, size):
    """But at the edges, beyond which Pillow reads, and where the two clip bright and dark pixels in another order."""
    pixels = decode_rgb(draw_flower("daisy", number=6, size=shape))
    found = resize_square(pixels, size)
    assert found.dtype == np.uint8
    assert found.flags.writeable
    distances = np.abs(resize_with_pillow(pixels, size).astype(int) - found)
    assert distances.mean() <= 0.1
    assert (distances > 1).mean() <= 0.01


def test_an_odd_margin_is_divided_to_whole_pixels():
    pixels = np.zeros((10, 31, 3), np.uint8)
    pixels[:, :10] = pixels[:, 20:] = 200
    assert (resize_square(pixels, 5) == 0).all()
    assert resize_square(pixels, 10).shape == (10, 10, 3)


@pytest.mark.parametrize("size", [1, 7, 96, 200])
def test_any_shape_becomes_a_square(size):
    for shape in ((1, 1), (1, 50), (300, 2), (97, 96)):
        assert (resize_square(np.full((*shape, 3), 9, np.uint8), size) == np.full((size, size, 3), 9)).all()


def test_a_transform_resizes_by_the_function_that_it_is_given():
    images = [draw_flower("roses", number=number, size=(150, 110)) for number in range(3)]
    transform = pickle.loads(pickle.dumps(DecodeImages(size=96, columns=("image",), resize=resize_square)))
    found = transform({"image": images})["image"]
    assert (found == decode_batch(images, size=96, resize=resize_square)).all()
    assert (found != decode_batch(images, size=96)).any()
