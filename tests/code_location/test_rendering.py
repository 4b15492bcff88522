"""Metadata for the UI: short enough to be shown inline, complete, and true to the values."""

import base64
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import dagster as dg
import numpy as np
import pytest

from assets.reports.curves import curve_picture, curve_teaser
from assets.reports.gallery import INLINE_LIMIT, gallery, image_teaser
from assets.reports.tables import MAX_TABLE_ROWS, table
from smalti.images import decode_rgb, encode_jpeg

_DATA = re.compile(r"!\[([^\]]*)\]\(data:([a-z+/]+);base64,([A-Za-z0-9+/=]+)\)")


def pictures(markdown: str) -> list[tuple[str, str, bytes]]:
    return [(alt, mime, base64.b64decode(data)) for alt, mime, data in _DATA.findall(markdown)]


def noise(count: int, side: int = 64) -> list[bytes]:
    """The hardest pictures to make small."""
    rng = np.random.default_rng(3)
    return [encode_jpeg(rng.integers(0, 256, (side, side, 3), dtype=np.uint8), 90) for _ in range(count)]


@pytest.mark.parametrize("epochs", [1, 2, 7, 300])
def test_a_curve_teaser_is_shown_in_place_for_any_number_of_epochs(epochs: int) -> None:
    series = {"loss": [2.0 / (1 + e) for e in range(epochs)], "accuracy": [e / epochs for e in range(epochs)]}
    text = curve_teaser(series)
    assert len(text) < INLINE_LIMIT
    [(_, mime, svg)] = pictures(text)
    assert mime == "image/svg+xml"
    assert len(ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}polyline")) == 2


def test_a_curve_picture_has_every_point_and_the_last_value() -> None:
    [(_, _, svg)] = pictures(curve_picture({"loss": [3.0, 2.0, 1.25]}))
    root = ElementTree.fromstring(svg)
    line = root.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    # The panel reaches from (44, 28) to (628, 170): 3.0 is at the top, 1.25 at the bottom, 2.0 at 4/7 of the way.
    assert line.attrib["points"] == "44,28 336,109 628,170"
    assert "loss: 1.25" in "".join(root.itertext())


def test_a_diverged_loss_leaves_a_gap_instead_of_breaking_the_picture() -> None:
    [(_, _, svg)] = pictures(curve_picture({"loss": [1.0, math.nan, math.inf, 3.0]}))
    line = ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    assert line.attrib["points"] == "44,170 628,28"


def test_names_that_look_like_markup_do_not_break_the_picture() -> None:
    [(_, _, svg)] = pictures(curve_teaser({"a<b&'c": [1.0, 2.0]}))
    assert "a<b&'c" in "".join(ElementTree.fromstring(svg).itertext())


@pytest.mark.parametrize("count", [1, 5, 40])
def test_an_image_teaser_is_shown_in_place_even_for_noise(count: int) -> None:
    text = image_teaser(noise(count))
    assert len(text) < INLINE_LIMIT
    [(_, mime, data)] = pictures(text)
    assert mime == "image/webp"
    height, width = decode_rgb(data).shape[:2]
    assert width > height * min(count, 6) * 0.8  # one row


def test_a_gallery_shows_each_group_under_its_name() -> None:
    images = noise(3)
    text = gallery({"roses": images[:2], "tul[i]ps": images[2:]})
    assert [alt for alt, _, _ in pictures(text)] == ["roses", "tulips"]
    assert "**roses**" in text


def test_a_gallery_makes_pictures_smaller_before_it_leaves_a_group_out() -> None:
    """Eight photos of each of five classes were too much for the fifth."""
    images = noise(8, side=72)
    text = gallery({f"class {i}": images for i in range(5)})
    assert [alt for alt, _, _ in pictures(text)] == [f"class {i}" for i in range(5)]
    assert len(text) <= 150_000
    sides = {decode_rgb(data).shape[:2] for _, _, data in pictures(text)}
    assert len(sides) == 1, "the pictures of all groups have one size"


def test_the_gallery_of_the_shared_flowers_shows_all_five_classes() -> None:
    folder = Path(__file__).parents[3] / "shared" / "flowers"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    text = gallery({path.name: [photo.read_bytes() for photo in sorted(path.iterdir())[:8]] for path in classes})
    assert [alt for alt, _, _ in pictures(text)] == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]


def test_a_gallery_of_very_many_groups_stays_small_and_counts_the_rest() -> None:
    images = noise(8)
    text = gallery({f"class {i}": images for i in range(200)})
    shown = len(pictures(text))
    assert 0 < shown < 200
    assert text.endswith(f"… and {200 - shown} more")
    assert len(text) < 200_000


def test_a_long_table_ends_with_a_count_of_what_was_left_out() -> None:
    value = table([{"shard": f"shard.{i:05}.mds", "samples": i} for i in range(MAX_TABLE_ROWS + 7)])
    assert len(value.records) == MAX_TABLE_ROWS + 1
    assert value.records[-1].data == {"shard": "and 7 more", "samples": "…"}


def test_a_table_keeps_the_types_of_its_columns() -> None:
    value = table([{"name": "roses", "images": 3, "share": 0.5, "ok": True}])
    assert [(c.name, c.type) for c in value.schema.columns] == [
        ("name", "string"), ("images", "int"), ("share", "float"), ("ok", "bool"),
    ]  # fmt: skip
    assert isinstance(value, dg.TableMetadataValue)
