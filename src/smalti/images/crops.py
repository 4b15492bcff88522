"""The part of an image that a sample shows: its centre square, the middle of it, or a random part of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.attributes import whole_number
from smalti.errors import ArgumentError
from smalti.images.pixels import Pixels, scaled_side

_TRIES = 10
"""Shapes that are drawn for a crop until one fits into the image, as torchvision draws them."""
_MAX_SEED = (1 << 63) - 1
# Constants of splitmix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Box(NamedTuple):
    """A part of an image, in pixels as stored."""

    top: float
    left: float
    """A multiple of one half: an odd margin has the same part on both sides."""
    height: int
    width: int
    is_mirrored: bool = False
    """Left and right are exchanged."""

    def of(self, pixels: Pixels, height: int, width: int) -> Pixels:
        """Return the part in the pixels of an image of height x width, which may be decoded at a reduced scale; a view.

        It begins at the nearest pixel.
        """
        eighths = 8 * max(pixels.shape) // max(height, width)  # decoders round sides up
        top, rows = _scaled(self.top, self.height, eighths, pixels.shape[0])
        left, columns = _scaled(self.left, self.width, eighths, pixels.shape[1])
        part = pixels[top : top + rows, left : left + columns]
        return part[:, ::-1] if self.is_mirrored else part

    def least_side(self, size: int, height: int, width: int) -> int:
        """Return the length of the image's shorter side at which no side of the part has less than `size` pixels."""
        return -(-size * min(height, width) // min(self.height, self.width))


def _scaled(begin: float, length: int, eighths: int, side: int) -> tuple[int, int]:
    """Return the begin and length of a part of a side that is decoded at a scale, to `side` pixels."""
    scaled = min(side, scaled_side(length, eighths))
    return min(side - scaled, math.ceil(begin * eighths / 8 - 0.5)), scaled


def centre_box(height: int, width: int, size: int | None = None) -> Box:
    """Return the middle `size` x `size` of an image; its centre square, without `size` or if the image is smaller."""
    side = min(height, width)
    if size is not None and size < side:
        side = size
    return Box((height - side) / 2, (width - side) / 2, side, side)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of each image, mirrored or not, as torchvision's transform of this name draws it.

    It is drawn from (seed, epoch, sample id) and depends on nothing else: neither on the batch nor on the worker, the
    rank or the world. A run that continues from a saved state sees what it would have seen.

    Examples:
        >>> decode = DecodeImages(size=24, crop=RandomResizedCrop(seed=7))
        >>> dataset = StreamingDataset(remote="s3://bucket/photos", split="train", transform=decode, shuffle=True)
    """

    seed: int = 0
    """From 0 on."""
    scale: tuple[float, float] = (0.08, 1.0)
    """The least and largest part of the image's area."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """The least and largest ratio of width to height, before it is resized to a square."""
    flip: float = 0.5
    """The probability with which left and right are exchanged, from 0 to 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed, 0, _MAX_SEED))
        if not _is_range(self.scale, 1.0):
            raise ArgumentError(f"`scale` must be two parts of an area, 0 < least <= largest <= 1, not {self.scale!r}.")
        if not _is_range(self.ratio, math.inf):
            raise ArgumentError(f"`ratio` must be two of width to height, 0 < least <= largest, not {self.ratio!r}.")
        if not _is_range((self.flip, 1.0), 1.0) and self.flip != 0:
            raise ArgumentError(f"`flip` must be a probability, from 0 to 1, not {self.flip!r}.")

    def draw(self, epoch: int, sample_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return random numbers in [0, 1) for each sample, shape (samples, draws), of which `box` makes a part."""
        # splitmix64 of (seed, epoch, id, draw), equal on every platform
        with np.errstate(over="ignore"):
            key = _mix(np.array([self.seed % (1 << 64)], dtype=np.uint64))
            key = _mix(key ^ np.array([epoch % (1 << 64)], dtype=np.uint64))
            per_sample = _mix(key ^ np.asarray(sample_ids, dtype=np.int64).view(np.uint64))
            draws = np.arange(1, 2 * _TRIES + 4, dtype=np.uint64)[:, None] * _GOLDEN
            bits = _mix(per_sample[None, :] ^ draws)
        return ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53).T

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Return the part of an image of height x width."""
        is_mirrored, at_top, at_left = draws[0] < self.flip, draws[1], draws[2]
        low, high = self.scale
        log_low, log_high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for number in range(3, len(draws), 2):
            area = height * width * (low + (high - low) * draws[number])
            ratio = math.exp(log_low + (log_high - log_low) * draws[number + 1])
            columns, rows = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top, left = int(at_top * (height - rows + 1)), int(at_left * (width - columns + 1))
                return Box(top, left, rows, columns, is_mirrored)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        columns, rows = max(1, min(width, round(height * ratio))), max(1, min(height, round(width / ratio)))
        return Box((height - rows) // 2, (width - columns) // 2, rows, columns, is_mirrored)


def _is_range(value: Any, most: float) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | float) for end in value)
    return is_pair and 0 < value[0] <= value[1] <= most and value[1] < math.inf


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
