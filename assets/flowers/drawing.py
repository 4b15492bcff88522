"""Drawn photos of five classes of flowers, for demos and tests that must work without the internet."""

import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from assets.flowers.blooms import BLOOMS, Bloom
from assets.flowers.scene import backdrop, develop
from assets.flowers.shapes import Pose, Sketch
from smalti.images.pixels import encode_jpeg

FLOWER_CLASSES = tuple(sorted(BLOOMS))
"""daisy, dandelion, roses, sunflowers, tulips: the classes of TensorFlow's flowers photos."""

_RECIPE = ".drawn.json"  # hidden, so that no reader of the folder takes it for a photo
_DRAWING = 1  # number of the drawing code; a change of the pictures must raise it


def draw_flower(name: str, *, number: int, seed: int = 0, size: tuple[int, int] = (320, 240)) -> bytes:
    """One drawn photo as a JPEG; the same arguments give the same bytes.

    Args:
        name: one of `FLOWER_CLASSES`.
        number: which photo of the class, 0-based.
        seed: another seed is another set of photos.
        size: width and height in pixels, at least 32 each.
    """
    width, height = size
    if name not in BLOOMS:
        raise ValueError(f"`name` must be one of {', '.join(FLOWER_CLASSES)}, found {name!r}")
    if min(width, height) < 32:
        raise ValueError(f"`size` must be at least 32x32 pixels, found {width}x{height}")
    rng = np.random.Generator(np.random.Philox([seed, FLOWER_CLASSES.index(name), number]))
    sketch = Sketch(backdrop(rng, width, height))
    _draw_group(rng, sketch, BLOOMS[name])
    return encode_jpeg(develop(rng, sketch.finish()), int(rng.integers(72, 94)))


def _draw_group(rng: np.random.Generator, sketch: Sketch, bloom: Bloom) -> None:
    """One to five blooms, the smallest, which are the farthest, first."""
    count = int(rng.choice([1, 2, 3, 5], p=[0.5, 0.22, 0.16, 0.12]))
    largest = min(sketch.width, sketch.height) * 0.46 / count**0.4
    radii = sorted(largest * rng.uniform(0.5, 1.0, count))
    for radius in radii:
        pose = Pose(
            x=sketch.width * rng.uniform(0.26, 0.74),
            y=sketch.height * rng.uniform(0.25, 0.72),
            radius=float(radius),
            tilt=float(rng.uniform(0.55, 1.0)),
            lean=float(rng.uniform(0, np.pi)),
        )
        bloom(rng, sketch, pose)


def draw_flowers(folder: Path, *, per_class: int, size: tuple[int, int] = (320, 240), seed: int = 0) -> dict[str, int]:
    """Draw `per_class` photos of each class below `folder`; returns the number of photos per class.

    The folder appears whole or not at all. One that these same arguments drew before is left as it is.

    Args:
        folder: where `<class>/<class>_00000.jpg` go; absent, empty, or drawn by this function before.
        per_class: photos of each class, at least 1.
        size: width and height in pixels.
        seed: another seed is another set of photos.

    Raises:
        FileExistsError: the folder holds something else; nothing in it was touched.
    """
    if per_class < 1:
        raise ValueError(f"`per_class` must be at least 1, found {per_class}")
    recipe = {"drawing": _DRAWING, "per_class": per_class, "size": list(size), "seed": seed}
    counts = dict.fromkeys(FLOWER_CLASSES, per_class)
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / _RECIPE).is_file():
            raise FileExistsError(
                f"{folder} holds other files; flowers are drawn only into a new or empty folder: choose another"
            )
        if _is_complete(folder, recipe, counts):
            return counts
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        drawn = Path(work) / "drawn"
        _draw_all(drawn, per_class, size, seed)
        (drawn / _RECIPE).write_text(json.dumps(recipe))
        if folder.is_dir():
            shutil.move(folder, Path(work) / "old")
        drawn.rename(folder)
    return counts


def _is_complete(folder: Path, recipe: dict[str, object], counts: dict[str, int]) -> bool:
    try:
        same = json.loads((folder / _RECIPE).read_text()) == recipe
    except ValueError:  # half-written by something else; drawn again
        return False
    return same and all(len(list((folder / name).glob("*.jpg"))) == count for name, count in counts.items())


def _draw_all(folder: Path, per_class: int, size: tuple[int, int], seed: int) -> None:
    def draw(job: tuple[str, int]) -> None:
        name, number = job
        data = draw_flower(name, number=number, seed=seed, size=size)
        (folder / name / f"{name}_{number:05d}.jpg").write_bytes(data)

    for name in FLOWER_CLASSES:
        (folder / name).mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:  # blurring, noise and JPEG coding release the interpreter lock
        list(pool.map(draw, [(name, number) for name in FLOWER_CLASSES for number in range(per_class)]))
