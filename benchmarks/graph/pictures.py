"""Folders of small JPEG files, one folder per class: 512 distinct pictures, each copy with its number in it."""

import functools
from pathlib import Path

from benchmarks.photos import numbered
from benchmarks.workloads import Data
from smalti.images import prepare_jpeg

CLASSES = ("daisy", "dandelion", "roses", "sunflowers", "tulips")
PIXELS = 128


class PictureFolder:
    """A folder of so many pictures, to which others can be added.

    Args:
        path: The folder.
        data: Its pictures are scaled down to 128 pixels.
    """

    def __init__(self, path: Path, data: Data) -> None:
        self.path, self._data = path, data

    @functools.cached_property
    def _pool(self) -> list[bytes]:
        return [prepare_jpeg(picture, size=PIXELS, quality=90).data for picture in self._data.pictures]

    def require(self, count: int) -> None:
        """Make the folder hold the first `count` pictures and no other file; those that are there stay as they are."""
        present = {f"{found.parent.name}/{found.name}" for found in self.path.glob("*/*.jpg")}
        wanted = {name_of(number): number for number in range(count)}
        for name in present - wanted.keys():
            (self.path / name).unlink()
        for kind in CLASSES:
            (self.path / kind).mkdir(parents=True, exist_ok=True)
        for name in wanted.keys() - present:
            self._write(name, wanted[name])

    def add(self, first: int, count: int) -> None:
        """Add `count` pictures, numbered from `first`."""
        for number in range(first, first + count):
            self._write(name_of(number), number)

    def _write(self, name: str, number: int) -> None:
        (self.path / name).write_bytes(numbered(self._pool[number % len(self._pool)], number))


def name_of(number: int) -> str:
    """Return the path of a picture below the folder."""
    return f"{CLASSES[number % len(CLASSES)]}/{number:06d}.jpg"
