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
    return pixels[_EDGE : _EDGE + SIZE, _EDGE : _EDGE + SIZE]


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
