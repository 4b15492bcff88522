"""Drawn flowers: reproducible and varied; and the contact sheet of images."""

import io

import numpy as np
import pytest
from PIL import Image

from assets.drawing import FLOWER_CLASSES, draw_flower, draw_flowers
from smalti.images import decode_batch, thumbnail_grid


def test_the_same_arguments_draw_the_same_bytes():
    assert draw_flower("tulips", number=3, seed=5) == draw_flower("tulips", number=3, seed=5)
    assert draw_flower("tulips", number=3, seed=5) != draw_flower("tulips", number=3, seed=6)
    assert draw_flower("tulips", number=3, seed=5) != draw_flower("tulips", number=4, seed=5)


def test_a_folder_of_five_classes_is_drawn(tmp_path):
    draw_flowers(tmp_path, per_class=2)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.jpg"))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    assert files[:3] == ["daisy/daisy_00000.jpg", "daisy/daisy_00001.jpg", "dandelion/dandelion_00000.jpg"]
    assert len(files) == 10
    with Image.open(tmp_path / files[0]) as image:
        assert image.size == (320, 240)


@pytest.mark.slow
def test_a_plain_model_learns_the_classes_but_colour_alone_is_not_enough():
    """Nearest centroid on a colour histogram stays below 0.75; a model must look at shapes."""
    per_class = 40
    images = [draw_flower(name, number=n) for name in FLOWER_CLASSES for n in range(per_class)]
    labels = np.repeat(np.arange(5), per_class)
    pixels = decode_batch(images, size=48)
    bins = (pixels // 64).astype(int)
    codes = bins[..., 0] * 16 + bins[..., 1] * 4 + bins[..., 2]
    histograms = np.stack([np.bincount(code.ravel(), minlength=64) / code.size for code in codes])
    fit = np.arange(len(labels)) % 2 == 0
    centroids = np.stack([histograms[fit & (labels == k)].mean(0) for k in range(5)])
    guesses = np.argmin(((histograms[~fit, None] - centroids) ** 2).sum(2), 1)
    accuracy = (guesses == labels[~fit]).mean()
    assert 0.25 < accuracy < 0.75


def test_a_grid_shows_every_image_and_survives_a_bad_one():
    images = [draw_flower("daisy", number=n, size=(64, 48)) for n in range(3)]
    with Image.open(io.BytesIO(thumbnail_grid([*images, b"broken"], columns=2, size=32))) as sheet:
        assert sheet.size == (2 * 36 + 4, 2 * 36 + 4)
        assert sheet.getpixel((60, 60)) == pytest.approx((200, 200, 200), abs=6)


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="at least one image"):
        thumbnail_grid([])
