"""One Spark session for all tests of this folder, and a small folder of images."""

from pathlib import Path

import pytest

from assets.drawing import draw_flower
from tests.spark.own_session import own_session
from tests.spark.photos import put


@pytest.fixture(scope="module")
def spark():
    """Yield a session of two cores, which tries a failed task once more."""
    with own_session() as session:
        yield session


@pytest.fixture
def flowers(tmp_path) -> Path:
    """Return a folder of twelve drawn photos, 64x48 pixels, of three classes."""
    folder = tmp_path / "flowers"
    for name in ("daisy", "roses", "tulips"):
        for number in range(4):
            put(folder / name / f"{number}.jpg", draw_flower(name, number=number, size=(64, 48)))
    return folder
