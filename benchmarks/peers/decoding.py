"""What every participant but Smalti's batch path does to decode a sample: simplejpeg, then the centre 224 x 224."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import PIXELS

SIZE = 224
_EDGE = (PIXELS - SIZE) // 2


def decode(data: bytes) -> NDArray[np.uint8]:
    """Pixels of the centre, uint8, shape (224, 224, 3)."""
    import simplejpeg

    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data)
    if pixels.shape == (PIXELS, PIXELS, 3):
        return pixels[_EDGE : _EDGE + SIZE, _EDGE : _EDGE + SIZE]
    height, width = pixels.shape[:2]
    top, left = max(0, height - SIZE) // 2, max(0, width - SIZE) // 2
    middle = pixels[top : top + SIZE, left : left + SIZE]
    # Photos that are smaller get a black edge: less work than to scale them, as ours does.
    return np.pad(middle, ((0, SIZE - middle.shape[0]), (0, SIZE - middle.shape[1]), (0, 0)))


def decode_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with pixels in the place of the file."""
    return {**sample, "image": decode(sample["image"])}


def decoded(kind: type[Any], column: str) -> type[Any]:
    """The dataset class with `__getitem__` overridden to decode."""

    class Decoded(kind):  # type: ignore[misc]
        def __getitem__(self, sample_id: Any) -> Any:
            sample = super().__getitem__(sample_id)
            return {**sample, column: decode(sample[column])}

    return Decoded
