"""The kernels that resize decoded pixels: torch's, where the process has it, and Pillow's, within two steps of 255."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from assets.drawing import draw_flower
from smalti.images import decode_batch, decode_rgb
from smalti.images.pixels import Resizer

pytestmark = pytest.mark.torch
IS_FAST = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")

WITHOUT_TORCH = """
import sys
import numpy as np
from smalti.images import DecodeImages
pixels = DecodeImages(size=96, columns=("x",))({"x": [open(path, "rb").read() for path in sys.argv[2:]]})["x"]
assert "torch" not in sys.modules
np.save(sys.argv[1], pixels)
"""


def by_pillow(pixels, size, interpolation):
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling[interpolation.upper()]))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [224, 150, 64, 300])
@pytest.mark.parametrize("shape", [(240, 240), (320, 240), (171, 322)])
def test_values_are_those_of_pillow(shape, size, interpolation):
    pixels = decode_rgb(draw_flower("daisy", number=6, size=shape))
    place = np.empty((size, size, 3), np.uint8)
    Resizer(interpolation).into(place, pixels)
    distances = np.abs(by_pillow(pixels, size, interpolation).astype(int) - place)
    # Of the bicubic filter the two clip bright and dark pixels in another order.
    assert (distances > 2).mean() <= (0 if interpolation == "bilinear" else 0.001)
    assert distances.mean() <= 0.2


def test_a_view_is_resized_into_a_view():
    pixels = decode_rgb(draw_flower("roses", number=1, size=(300, 200)))
    part, places = pixels[20:180, 30:250][:, ::-1], np.zeros((2, 3, 96, 96), np.uint8)
    Resizer("bilinear").into(places[1].transpose(1, 2, 0), part)
    expected = by_pillow(np.ascontiguousarray(part), 96, "bilinear").transpose(2, 0, 1)
    assert np.abs(places[1].astype(int) - expected).max() <= 2
    assert not places[0].any()


def test_an_odd_margin_is_divided_to_whole_pixels():
    pixels = np.zeros((10, 31, 3), np.uint8)
    pixels[:, :10] = pixels[:, 20:] = 200
    data = to_png(pixels)
    assert (decode_batch([data], size=5)[0] == 0).all()


def to_png(pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 7, 96, 200])
def test_any_shape_becomes_a_square(size):
    images = [to_png(np.full((*shape, 3), 9, np.uint8)) for shape in ((1, 1), (1, 50), (300, 2), (97, 96))]
    assert (decode_batch(images, size=size) == 9).all()


def test_a_process_without_torch_decodes_the_same_pixels_by_pillow(tmp_path):
    images = [draw_flower("roses", number=number, size=(150, 110 + number)) for number in range(3)]
    paths = [tmp_path / str(number) for number in range(3)]
    for path, data in zip(paths, images, strict=True):
        path.write_bytes(data)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "pixels.npy"), *map(str, paths)]
    subprocess.run(command, check=True, timeout=500)
    distances = np.abs(np.load(tmp_path / "pixels.npy").astype(int) - decode_batch(images, size=96))
    assert distances.max() <= 2
    assert not IS_FAST or distances.any()  # another kernel
