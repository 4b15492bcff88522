"""Everything in a drawn photo but the flower: backgrounds, light, colour cast, focus and sensor noise."""

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from assets.flowers.shapes import Color, jitter, shade

Rng = np.random.Generator

_SOFT = 4  # backgrounds are drawn this many times smaller and blurred: nothing in them is sharp


def backdrop(rng: Rng, width: int, height: int) -> Image.Image:
    """One of five kinds of background, out of focus."""
    kinds = (_grass, _sky, _dark, _bokeh, _bed)
    paint = kinds[int(rng.choice(len(kinds), p=[0.32, 0.17, 0.15, 0.2, 0.16]))]
    small = paint(rng, max(8, width // _SOFT), max(8, height // _SOFT))
    soft = small.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.6, 2.4))))
    return soft.resize((width, height), Image.Resampling.BICUBIC)


def _gradient(top: Color, bottom: Color, width: int, height: int) -> Image.Image:
    down = np.linspace(0, 1, height)[:, None, None]
    column = np.asarray(top) * (1 - down) + np.asarray(bottom) * down
    return Image.fromarray(np.broadcast_to(column, (height, width, 3)).clip(0, 255).astype(np.uint8))


def _grass(rng: Rng, width: int, height: int) -> Image.Image:
    green = jitter(rng, (74, 112, 48), 16)
    image = _gradient(shade(green, rng.uniform(0.6, 1.2)), shade(green, rng.uniform(0.5, 0.9)), width, height)
    draw = ImageDraw.Draw(image)
    for _ in range(int(rng.integers(40, 110))):
        x, y = rng.uniform(0, width), rng.uniform(0, height * 1.1)
        tip = (x + rng.normal(0, 5), y - rng.uniform(6, 22))
        draw.line(
            (x, y, *tip),
            fill=jitter(rng, shade(green, rng.uniform(0.7, 1.6)), 8),
            width=int(rng.integers(1, 3)),
        )
    return image


def _sky(rng: Rng, width: int, height: int) -> Image.Image:
    blue = jitter(rng, (112, 160, 214), 18)
    image = _gradient(shade(blue, 0.85), shade(blue, 1.3), width, height)
    _spots(rng, image, jitter(rng, (232, 234, 240), 6), count=int(rng.integers(0, 7)), reach=width * 0.16)
    if rng.random() < 0.5:  # a far meadow or trees
        line = int(height * rng.uniform(0.6, 0.9))
        ImageDraw.Draw(image).rectangle((0, line, width, height), fill=jitter(rng, (78, 110, 60), 16))
    return image


def _dark(rng: Rng, width: int, height: int) -> Image.Image:
    black = jitter(rng, (22, 28, 22), 9)
    image = _gradient(black, shade(black, rng.uniform(0.8, 2.0)), width, height)
    _spots(rng, image, jitter(rng, (48, 62, 40), 14), count=int(rng.integers(0, 9)), reach=width * 0.1)
    return image


def _bokeh(rng: Rng, width: int, height: int) -> Image.Image:
    image = _gradient(jitter(rng, (128, 142, 98), 36), jitter(rng, (92, 110, 72), 34), width, height)
    for _ in range(int(rng.integers(3, 9))):  # other flowers, far out of focus, of any colour
        _spots(rng, image, rng.uniform(60, 245, 3).tolist(), count=int(rng.integers(1, 4)), reach=width * 0.07)
    return image


def _bed(rng: Rng, width: int, height: int) -> Image.Image:
    image = _gradient(jitter(rng, (118, 104, 84), 22), jitter(rng, (84, 66, 48), 16), width, height)
    _spots(rng, image, jitter(rng, (76, 108, 52), 16), count=int(rng.integers(6, 26)), reach=width * 0.08)
    return image


def _spots(rng: Rng, image: Image.Image, color: Color, *, count: int, reach: float) -> None:
    draw = ImageDraw.Draw(image)
    for _ in range(count):
        x, y = rng.uniform(0, image.width), rng.uniform(0, image.height)
        across, down = rng.uniform(0.4, 1.2, 2) * reach
        draw.ellipse((x - across, y - down, x + across, y + down), fill=jitter(rng, color, 10))


def develop(rng: Rng, image: Image.Image) -> npt.NDArray[np.uint8]:
    """The scene as a camera sees it: light falling unevenly, focus, exposure, white balance and noise."""
    if rng.random() < 0.35:
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.4, 1.7))))
    pixels = np.asarray(image, dtype=np.float32)
    pixels *= _light(rng, image.width, image.height)[:, :, None]
    cast = rng.normal(1.0, 0.07, 3).astype(np.float32)
    pixels *= cast * np.float32(rng.uniform(0.62, 1.22))
    pixels += np.float32(rng.uniform(-8, 18))  # haze lifts the blacks
    pixels += rng.standard_normal(pixels.shape, dtype=np.float32) * np.float32(rng.uniform(1.5, 11.0))
    return pixels.clip(0, 255).astype(np.uint8)


def _light(rng: Rng, width: int, height: int) -> npt.NDArray[np.float32]:
    """A smooth field of light and shade around 1, shape (height, width)."""
    coarse = rng.normal(1.0, 0.16, (4, 5)).astype(np.float32)
    coarse += np.linspace(-1, 1, 5, dtype=np.float32) * np.float32(rng.normal(0, 0.14))
    field = Image.fromarray(coarse.clip(0.35, 1.6)).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(field)
