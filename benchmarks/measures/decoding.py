"""JPEG files to squares of one size: Smalti, whole files decoded and resized, Pillow, and the decoder alone."""

import io
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.photos import Photos
from benchmarks.task import Figures, Task

_PHOTOS = 24
_MOSAICS = 3
_TILE = (320, 240)  # pixels; most photos have at least as many, and the part of a mosaic that others lack is black
_ROUNDS = 9


def measure_decoding(task: Task) -> Figures:
    """Decode the same files in several ways, by turns; ratios are medians of those of neighbouring turns."""
    import simplejpeg

    from smalti.images import decode_batch, probe_image
    from smalti.images.pixels import decode_fast

    size, files = task.options["size"], _files(task.options.get("tiles", 1))
    if task.options.get("torch"):
        import torch  # noqa: F401 - it resizes where it is imported
    headers = [probe_image(file) for file in files]

    def floor() -> None:
        for file, header in zip(files, headers, strict=True):
            decode_fast(file, header, min_size=size, smooth=False)

    def whole(*, same_settings: bool) -> list[NDArray[np.uint8]]:
        fast = {"fastdct": same_settings, "fastupsample": same_settings}
        return [_square(Image.fromarray(simplejpeg.decode_jpeg(file, **fast)), size) for file in files]

    ways: dict[str, Callable[[], object]] = {
        "smalti": lambda: decode_batch(files, size=size),
        "ratio": lambda: whole(same_settings=False),
        "same_settings_ratio": lambda: whole(same_settings=True),
        "pillow_ratio": lambda: [_with_pillow(file, size) for file in files],
        "floor_share": floor,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_ROUNDS + 1):
        for name, decode in ways.items():
            begin = time.thread_time()  # nothing waits: processor time varies less beside others
            decode()
            if number:  # the first round is for the caches
                seconds[name].append(time.thread_time() - begin)
    ours = seconds.pop("smalti")
    ratios = {
        name: statistics.median(other / mine for other, mine in zip(found, ours, strict=True))
        for name, found in seconds.items()
    }
    pairs = zip(decode_batch(files, size=size), whole(same_settings=True), strict=True)
    distances = [float(np.abs(found.astype(int) - expected).mean()) for found, expected in pairs]
    return {
        **ratios,
        "images_per_s": len(files) / statistics.median(ours),
        "mean_difference": statistics.mean(distances),
        "most_different": max(distances),
    }


def _files(tiles: int) -> list[bytes]:
    """Return photos, or mosaics of `tiles` x `tiles` of them, which have the detail of photos at the size of a scan."""
    originals = [photo for photo, _ in Photos(1).originals]
    if tiles == 1:
        return originals[:: max(1, len(originals) // _PHOTOS)]
    width, height = _TILE
    found = []
    for number in range(_MOSAICS):
        mosaic = Image.new("RGB", (width * tiles, height * tiles))
        for place in range(tiles * tiles):
            photo = originals[(number * 131 + place * 7) % len(originals)]
            mosaic.paste(
                Image.open(io.BytesIO(photo)).convert("RGB").crop((0, 0, width, height)), _corner(place, tiles)
            )
        out = io.BytesIO()
        mosaic.save(out, "JPEG", quality=90)
        found.append(out.getvalue())
    return found


def _corner(place: int, tiles: int) -> tuple[int, int]:
    return place % tiles * _TILE[0], place // tiles * _TILE[1]


def _with_pillow(file: bytes, size: int) -> NDArray[np.uint8]:
    """Return the centre square as a transform of torchvision's makes it of a file."""
    return _square(Image.open(io.BytesIO(file)).convert("RGB"), size)


def _square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Return the centre square of all pixels, by the bilinear filter."""
    side = min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
