"""Photos to training batches: images per second and per second of processor time, from files to float tensors."""

import io
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.peers import ImageOptions, find
from benchmarks.photos import Photos
from benchmarks.task import Figures, Task
from benchmarks.trees import cpu_seconds

_WARM_UP = 4  # batches: imports, workers and caches
_LARGE = (1600, 1200)
_NUM_LARGE = 100


def measure_images(task: Task) -> Figures:
    """Read epoch after epoch for `seconds`, after the first batches."""
    options = dict(task.options)
    folder, limit = _pictures(task.work, is_large=bool(options.pop("large", False))), float(options.pop("seconds", 3.0))
    batches = _for_ever(find(task.peer).images(folder, ImageOptions(**options)))
    for batch in islice(batches, _WARM_UP):
        del batch
    images, used, begin = 0, cpu_seconds(os.getpid()), time.perf_counter()
    for batch in batches:
        images += len(batch)
        if time.perf_counter() - begin > limit:
            break
    seconds, used = time.perf_counter() - begin, cpu_seconds(os.getpid()) - used
    return {"images_per_s": images / seconds, "images_per_cpu_s": images / used}


def _for_ever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _pictures(work: Path, *, is_large: bool) -> Path:
    """Return a folder with the photos as `files`, and as a `set`; made once."""
    folder = work / "pictures" / ("large" if is_large else "small")
    if (folder / "set" / "index.json").exists():
        return folder
    from smalti import MDSWriter

    originals = [photo for photo, _ in Photos(1).originals]
    photos = [_enlarged(photo) for photo in originals[:: len(originals) // _NUM_LARGE]] if is_large else originals
    (folder / "files").mkdir(parents=True, exist_ok=True)
    with MDSWriter(out=str(folder / "set"), columns={"image": "jpeg", "label": "int"}) as writer:
        for number, photo in enumerate(photos):
            (folder / "files" / f"{number:04d}.jpg").write_bytes(photo)
            writer.write({"image": photo, "label": number})
    return folder


def _enlarged(photo: bytes) -> bytes:
    """Return a photo of 1,600 x 1,200 pixels of fine detail: JPEG of quality 90, as cameras subsample colours."""
    image = Image.open(io.BytesIO(photo)).convert("RGB").resize(_LARGE, Image.Resampling.BICUBIC)
    grain = np.random.default_rng(len(photo)).normal(0, 6, (_LARGE[1], _LARGE[0], 1))
    pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()
