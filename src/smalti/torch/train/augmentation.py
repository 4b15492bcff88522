"""Random views of training images, drawn per sample from (seed, epoch, sample id) and applied on the device.

What a sample looks like in an epoch depends on nothing else: not on the batch it is in, the worker, the rank
or the world. Decoding is not here; see batches.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DRAWS = 7
"""Random numbers per sample: flip, zoom, shift x, shift y, brightness, contrast, saturation."""

_ZOOM = 0.7
"""Smallest side of the crop, as a part of the image's side: half of the area stays visible."""
_JITTER = 0.15
"""Largest change of brightness, contrast and saturation, as a part of their value."""


@dataclass(frozen=True)
class Views:
    """How each image of a batch is to be seen; all arrays are float32 of shape (n,)."""

    flip: NDArray[np.float32]
    """-1 mirrors left and right, 1 does not."""
    zoom: NDArray[np.float32]
    """Side of the crop as a part of the image's side, in [0.7, 1]."""
    shift_x: NDArray[np.float32]
    shift_y: NDArray[np.float32]
    """Centre of the crop, from -1 to 1, such that the crop lies inside the image."""
    brightness: NDArray[np.float32]
    contrast: NDArray[np.float32]
    saturation: NDArray[np.float32]
    """Factors around 1."""


def draw_views(seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> Views:
    """The views of `sample_ids` in `epoch`; pure, and each sample's depends on its own id alone."""
    u = _uniform(seed, epoch, sample_ids)
    zoom = 1.0 - (1.0 - _ZOOM) * u[1]
    jitter = 1.0 + _JITTER * (2.0 * u[4:7] - 1.0)
    return Views(
        flip=np.where(u[0] < 0.5, -1.0, 1.0).astype(np.float32),
        zoom=zoom.astype(np.float32),
        shift_x=((1.0 - zoom) * (2.0 * u[2] - 1.0)).astype(np.float32),
        shift_y=((1.0 - zoom) * (2.0 * u[3] - 1.0)).astype(np.float32),
        brightness=jitter[0].astype(np.float32),
        contrast=jitter[1].astype(np.float32),
        saturation=jitter[2].astype(np.float32),
    )


def apply_views(pixels: "Tensor", views: Views) -> "Tensor":
    """The images as `views` tell: cropped, mirrored, their colours shifted a little.

    Args:
        pixels: float, shape (n, 3, height, width), values in [0, 1].
        views: one view for each of the n images.

    Returns:
        Like `pixels`; bilinear samples, clipped to [0, 1].
    """
    import torch
    from torch.nn import functional

    def column(values: NDArray[np.float32]) -> "Tensor":
        return torch.from_numpy(values).to(pixels.device)

    theta = pixels.new_zeros((len(pixels), 2, 3))
    theta[:, 0, 0] = column(views.zoom * views.flip)
    theta[:, 0, 2] = column(views.shift_x)
    theta[:, 1, 1] = column(views.zoom)
    theta[:, 1, 2] = column(views.shift_y)
    grid = functional.affine_grid(theta, list(pixels.shape), align_corners=False)
    seen = functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return _jitter(seen, column(views.brightness), column(views.contrast), column(views.saturation))


def _jitter(pixels: "Tensor", brightness: "Tensor", contrast: "Tensor", saturation: "Tensor") -> "Tensor":
    import torch

    def spread(factor: "Tensor") -> "Tensor":
        return factor.view(-1, 1, 1, 1)

    grey = pixels.mean(dim=1, keepdim=True)
    pixels = torch.lerp(grey, pixels, spread(saturation))
    level = grey.mean(dim=(2, 3), keepdim=True)
    pixels = torch.lerp(level, pixels, spread(contrast))
    return (pixels * spread(brightness)).clamp(0.0, 1.0)


def _uniform(seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), shape (7, n): splitmix64 of (seed, epoch, id, draw); the same on every platform and numpy."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed % (1 << 64)], dtype=np.uint64))
        key = _mix(key ^ np.array([epoch % (1 << 64)], dtype=np.uint64))
        per_sample = _mix(key ^ np.asarray(sample_ids, dtype=np.int64).view(np.uint64))
        draws = np.arange(1, _DRAWS + 1, dtype=np.uint64)[:, None] * _GOLDEN
        bits = _mix(per_sample[None, :] ^ draws)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
