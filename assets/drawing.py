"""Drawn flowers of five classes: the demo's example data, and pictures for tests."""

import io
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

_SPECIES = {  # petals, their length and width and the size of the middle as parts of the radius, colours
    "daisy": (14, 1.0, 0.17, 0.26, ((245, 243, 235), (250, 225, 235)), (235, 190, 40)),
    "dandelion": (60, 1.0, 0.05, 0.16, ((250, 210, 30), (245, 235, 210)), (225, 160, 20)),
    "roses": (9, 0.55, 0.5, 0.34, ((200, 25, 50), (250, 170, 180), (245, 235, 220)), (140, 10, 40)),
    "sunflowers": (22, 1.0, 0.12, 0.5, ((250, 190, 20), (240, 150, 20)), (80, 50, 25)),
    "tulips": (3, 0.95, 0.34, 0.0, ((215, 40, 60), (245, 200, 60), (240, 190, 215)), (0, 0, 0)),
}
FLOWER_CLASSES = tuple(_SPECIES)
"""daisy, dandelion, roses, sunflowers, tulips: the classes of TensorFlow's flowers photos."""


def draw_flower(name: str, *, number: int, seed: int = 0, size: tuple[int, int] = (320, 240)) -> bytes:
    """Return one drawn photo as a JPEG; the same arguments give the same bytes.

    Args:
        name: One of `FLOWER_CLASSES`.
        number: Which photo of the class, from 0.
        seed: Another seed is another set of photos.
        size: Width and height in pixels.
    """
    width, height = size
    rng = np.random.Generator(np.random.Philox([seed, FLOWER_CLASSES.index(name), number]))
    ground = rng.integers(30, 150, 3) + np.array([0, 40, 0])
    shade = np.linspace(0.6, 1.3, height)[:, None, None] * np.ones((1, width, 1)) * ground
    image = Image.fromarray(np.clip(shade, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    count = int(rng.choice([1, 2, 3]))
    for radius in sorted(min(size) * 0.46 / count**0.4 * rng.uniform(0.55, 1.0, count)):
        x, y = width * rng.uniform(0.28, 0.72), height * rng.uniform(0.3, 0.7)
        draw.line(
            [(x, y), (x + radius * rng.uniform(-0.5, 0.5), height)], fill=(40, 110, 40), width=int(radius / 9) + 1
        )
        _draw_bloom(rng, draw, name, x, y, float(radius))
    pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 1.2)))), np.float32)
    noisy = np.clip(pixels * rng.uniform(0.8, 1.15) + rng.normal(0, 5, pixels.shape), 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noisy).save(stream, "JPEG", quality=int(rng.integers(72, 94)))
    return stream.getvalue()


def _draw_bloom(rng: np.random.Generator, draw: ImageDraw.ImageDraw, name: str, x: float, y: float, r: float) -> None:
    petals, length, width, middle, colours, centre = _SPECIES[name]
    base, turn = np.array(colours[int(rng.integers(len(colours)))]), rng.uniform(0, 2 * math.pi)
    for petal in range(petals):
        colour = tuple(int(c) for c in np.clip(base * rng.uniform(0.8, 1.05), 0, 255))
        angle = turn + 2 * math.pi * petal / petals
        if name == "tulips":  # a cup, which opens upwards
            angle = -math.pi / 2 + 0.4 * (petal - 1)
        at = [
            (x + t * length * r * math.cos(angle), y + t * length * r * math.sin(angle)) for t in np.linspace(0, 1, 9)
        ]
        for (px, py), t in zip(at, np.linspace(0, 1, 9), strict=True):
            half = width * r * math.sin(math.pi * (0.2 + 0.7 * float(t)))
            draw.ellipse([px - half, py - half, px + half, py + half], fill=colour)
    for ring in np.linspace(1, 0.25, 4):
        half = middle * r * float(ring)
        shade = tuple(int(c * (0.7 + 0.3 * ring)) for c in centre)
        if half >= 1:
            draw.ellipse([x - half, y - half, x + half, y + half], fill=shade)


def draw_flowers(folder: Path, *, per_class: int = 160, seed: int = 0, size: tuple[int, int] = (320, 240)) -> None:
    """Draw `per_class` photos of each class into `folder`, as `<class>/<class>_00000.jpg`."""

    def draw(name: str) -> None:
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            photo = draw_flower(name, number=number, seed=seed, size=size)
            (folder / name / f"{name}_{number:05d}.jpg").write_bytes(photo)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(draw, FLOWER_CLASSES))
