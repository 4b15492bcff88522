"""Metadata for the UI: short enough to be shown inline or bounded, complete, and true to the values."""

import base64
import math
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import dagster as dg
import numpy as np
import pytest

from smalti.images import Pixels, decode_rgb, encode_jpeg
from smalti.inspection.distributions import Histogram
from smalti.spark.profile import ImageSizes
from smalti_dagster.reports.curves import curve_picture, curve_teaser
from smalti_dagster.reports.evaluation import show_confusion
from smalti_dagster.reports.gallery import captioned, gallery, image_teaser, samples_per_class, thumbnails
from smalti_dagster.reports.pictures import INLINE_LIMIT, block_bars, class_bars, confusion_map, histograms
from smalti_dagster.reports.shown import show_classes, show_images, show_sizes, shown_again, throughput
from smalti_dagster.reports.tables import MAX_TABLE_ROWS, table, table_of_ends, table_of_facts

_DATA = re.compile(r"!\[([^\]]*)\]\(data:([a-z+/]+)(;base64)?,([^)]+)\)")
_SVG = "{http://www.w3.org/2000/svg}"
_LIMIT = 200_000  # characters of a materialisation


def pictures(markdown: str) -> list[tuple[str, str, bytes]]:
    """Alternative text, type and content of each picture."""
    found = _DATA.findall(markdown)
    return [(alt, mime, base64.b64decode(d) if coded else unquote(d).encode()) for alt, mime, coded, d in found]


def svg_of(markdown: str) -> ElementTree.Element:
    [(_, mime, svg)] = pictures(markdown)
    assert mime == "image/svg+xml"
    return ElementTree.fromstring(svg)


def texts(markdown: str) -> list[str]:
    """The texts of all pictures, in order."""
    return [
        "".join(each.itertext())
        for _, _, svg in pictures(markdown)
        for each in ElementTree.fromstring(svg).iter(f"{_SVG}text")
    ]


def strips(markdown: str) -> Iterator[Pixels]:
    """The rows of images in all pictures."""
    for _, _, svg in pictures(markdown):
        for image in ElementTree.fromstring(svg).iter(f"{_SVG}image"):
            yield decode_rgb(base64.b64decode(image.attrib["href"].split(",")[1]))


def noise(count: int, side: int = 64) -> list[bytes]:
    """The hardest pictures to make small."""
    rng = np.random.default_rng(3)
    return [encode_jpeg(rng.integers(0, 256, (side, side, 3), dtype=np.uint8), 90) for _ in range(count)]


# ---------------------------------------------------------------- curves


@pytest.mark.parametrize("epochs", [1, 2, 7, 300])
def test_a_curve_teaser_is_shown_in_place_for_any_number_of_epochs(epochs: int) -> None:
    series = {"loss": [2.0 / (1 + e) for e in range(epochs)], "accuracy": [e / epochs for e in range(epochs)]}
    text = curve_teaser(series)
    assert len(text) < INLINE_LIMIT
    assert len(svg_of(text).findall(f"{_SVG}polyline")) == 2


def test_a_curve_picture_has_every_point_and_the_last_value() -> None:
    root = svg_of(curve_picture({"loss": [3.0, 2.0, 1.25]}))
    line = root.find(f"{_SVG}polyline")
    assert line is not None
    # The panel reaches from (44, 28) to (628, 170): 3.0 is at the top, 1.25 at the bottom, 2.0 at 4/7 of the way.
    assert line.attrib["points"] == "44,28 336,109 628,170"
    assert "loss: 1.25" in "".join(root.itertext())


def test_earlier_runs_are_drawn_in_grey_behind_in_one_range_and_named_in_the_legend() -> None:
    text = curve_picture({"loss": [3.0, 1.0]}, {"run a": {"loss": [5.0, 2.0]}, "run b": {"accuracy": [0.5]}})
    earlier, own = svg_of(text).findall(f"{_SVG}polyline")
    # From 5.0 at the top (28) to 1.0 at the bottom (170): 3.0 is in the middle, 2.0 at three quarters.
    assert (earlier.attrib["points"], own.attrib["points"]) == ("44,28 628,134", "44,99 628,170")
    assert earlier.attrib["stroke"] == "#777"
    assert texts(text)[-2:] == ["run a", "run b"]


def test_an_earlier_run_of_fewer_epochs_ends_where_it_ended() -> None:
    text = curve_picture({"loss": [3.0, 2.0, 1.0]}, {"run a": {"loss": [3.0, 1.0]}})
    earlier, own = svg_of(text).findall(f"{_SVG}polyline")
    # The panel is 584 wide, so that the second of three epochs is at 44 + 292.
    assert (earlier.attrib["points"], own.attrib["points"]) == ("44,28 336,170", "44,28 336,99 628,170")
    assert "epoch 3" in texts(text)


def test_the_axis_has_the_epochs_of_the_longest_run() -> None:
    text = curve_picture({"loss": [3.0, 1.0]}, {"run a": {"loss": [3.0, 2.0, 1.0]}})
    earlier, own = svg_of(text).findall(f"{_SVG}polyline")
    assert (earlier.attrib["points"], own.attrib["points"]) == ("44,28 336,99 628,170", "44,28 336,170")
    assert "epoch 3" in texts(text)


def test_the_curves_of_very_many_epochs_stay_small() -> None:
    series = {name: [math.sin(e) for e in range(50_000)] for name in ("a", "b", "c")}
    assert len(curve_picture(series, {f"run {n}": series for n in range(9)})) < 40_000


def test_a_diverged_loss_leaves_a_gap_instead_of_breaking_the_picture() -> None:
    line = svg_of(curve_picture({"loss": [1.0, math.nan, math.inf, 3.0]})).find(f"{_SVG}polyline")
    assert line is not None
    assert line.attrib["points"] == "44,170 628,28"


def test_names_that_look_like_markup_do_not_break_the_picture() -> None:
    assert "a<b&'c" in "".join(svg_of(curve_teaser({"a<b&'c": [1.0, 2.0]})).itertext())


# ---------------------------------------------------------------- images


@pytest.mark.parametrize("count", [1, 5, 40])
def test_an_image_teaser_is_shown_in_place_even_for_noise(count: int) -> None:
    text = image_teaser(thumbnails(noise(count)))
    assert len(text) < INLINE_LIMIT
    [(_, mime, data)] = pictures(text)
    assert mime == "image/webp"
    height, width = decode_rgb(data).shape[:2]
    assert width > height * min(count, 6) * 0.8  # one row


def test_a_gallery_shows_each_group_above_its_name() -> None:
    images = thumbnails(noise(3))
    text = gallery({"roses": images[:2], "tul[i]<p>s": images[2:], "empty": []})
    assert texts(text) == ["roses", "tul[i]<p>s"]
    assert len(pictures(text)) == 1


def test_the_gallery_of_the_shared_flowers_shows_all_five_classes() -> None:
    folder = Path(__file__).parents[3] / "shared" / "flowers"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    photos = {path.name: thumbnails([each.read_bytes() for each in sorted(path.iterdir())[:8]]) for path in classes}
    text = gallery(photos)
    assert texts(text) == ["daisy", "dandelion", "roses", "sunflowers", "tulips"]
    assert len(text) < 130_000
    assert min(row.shape[0] for row in strips(text)) > 56, "eight photos of five classes are shown well"


def test_a_gallery_of_500_classes_has_a_picture_of_each_page_by_page_and_stays_small() -> None:
    [image] = thumbnails(noise(1))
    groups = {f"class {number:03}": [np.roll(image, number, axis=1)] for number in range(500)}
    text = gallery(groups)
    assert texts(text) == list(groups)
    assert len(pictures(text)) == 5
    assert "**class 100 to class 199**" in text
    assert len(text) < 130_000


def test_a_gallery_counts_the_classes_that_do_not_fit_at_all() -> None:
    [image] = thumbnails(noise(1))
    text = gallery({f"class {number:04}": [image] for number in range(3000)})
    assert len(text) < 130_000
    assert text.endswith(f"… and {3000 - len(texts(text))} more")


@pytest.mark.parametrize(("classes", "each"), [(1, 8), (5, 8), (40, 4), (160, 1), (500, 1), (0, 8)])
def test_the_more_classes_the_fewer_samples_of_each(classes: int, each: int) -> None:
    assert samples_per_class(classes) == each


def test_captions_have_as_many_lines_as_they_are_given() -> None:
    text = captioned(thumbnails(noise(2)), ["roses\nnot tulips, 90%", "daisy"])
    assert texts(text) == ["roses", "not tulips, 90%", "daisy"]


def test_images_are_shown_again_as_they_were_without_being_read() -> None:
    shown = show_images({"daisy": noise(2)})
    facts = {name: value.value for name, value in shown.items() if isinstance(value, dg.MetadataValue)}
    assert shown_again(facts) == shown
    assert shown_again({"samples": "x"}) == {}, "one of them is missing"


# ---------------------------------------------------------------- numbers


def test_block_bars_are_as_high_as_their_counts() -> None:
    assert block_bars([0, 1, 4, 8]) == "▁▂▅█"
    assert block_bars([0, 0]) == "▁▁"
    assert block_bars([1, 1, 2, 2], width=2) == "▅█"


def test_a_histogram_picture_says_the_range_the_median_and_the_largest_bin() -> None:
    found = Histogram.of([1.0, 1.0, 2.0, 9.0])
    assert found is not None
    assert texts(histograms({"width": found})) == ["width", "1", "median 1.5, most 2", "9"]
    [bars] = [each for each in svg_of(histograms({"width": found})).iter(f"{_SVG}path") if "fill" in each.attrib]
    assert bars.attrib["d"].count("M") == 3


def test_class_bars_are_stacked_by_split_largest_class_first() -> None:
    text = class_bars({"daisy": {"train": 1}, "roses": {"train": 6, "validation": 2}})
    assert texts(text) == ["train", "validation", "roses", "8", "daisy", "1"]
    widths = [each.attrib["width"] for each in svg_of(text).iter(f"{_SVG}rect")][3:]
    assert widths == ["315.0", "105.0", "52.5", "0.0"]


def test_very_many_classes_are_one_curve_that_names_the_ends_and_the_middle() -> None:
    text = class_bars({f"class {number}": {"train": 1000 - number} for number in range(501)})
    assert texts(text) == ["501 classes, by number of images", "class 0: 1000", "class 250: 750", "class 500: 500"]
    assert len(text) < 10_000


def test_the_table_of_very_many_classes_has_the_largest_and_the_smallest() -> None:
    shown = show_classes({f"class {number}": {"train": number + 1} for number in range(99)})["class_balance"]
    assert isinstance(shown, dg.TableMetadataValue)
    first = [record.data["class"] for record in shown.records]
    assert (first[0], first[15], first[-1], len(first)) == ("class 98", "… 69 more …", "class 0", MAX_TABLE_ROWS + 1)
    assert shown.records[0].data["share"] == "2.00%"  # 99 of 4950


def test_sizes_of_images_are_shown_with_their_aspect_ratio() -> None:
    sizes = ImageSizes(np.array([200, 400], np.int32), np.array([100, 100], np.int32), 0)
    rows = show_sizes([2000, 4000], sizes)["image_sizes"]
    assert isinstance(rows, dg.TableMetadataValue)
    assert [tuple(row.data.values())[:4] for row in rows.records] == [
        ("file (kB)", "2", "3", "4"), ("width (pixels)", "200", "300", "400"),
        ("height (pixels)", "100", "100", "100"), ("width / height", "2", "3", "4"),
    ]  # fmt: skip


def test_a_confusion_map_of_few_classes_has_the_numbers() -> None:
    text = confusion_map([[8, 2], [0, 5]], ["daisy", "roses"])
    assert texts(text)[1:] == ["daisy", "daisy", "8", "2", "roses", "roses", "5"]


def test_the_confusion_of_very_many_classes_stays_small() -> None:
    rng = np.random.default_rng(1)
    shown = show_confusion(rng.integers(0, 9, (500, 500)).tolist(), [f"class {number}" for number in range(500)])
    assert len(repr(shown)) < _LIMIT // 2
    assert "a square stands for 3 x 3 classes" in texts(shown["confusion_picture"].value)[1]  # type: ignore[union-attr]


def test_throughput_is_left_out_where_nothing_was_done() -> None:
    assert throughput(50, 4_000_000, 2.0) == {"rows_per_second": 25.0, "megabytes_per_second": 2.0}
    assert throughput(0, 0, 2.0) == {}


# ---------------------------------------------------------------- tables


def test_a_long_table_ends_with_a_count_of_what_was_left_out() -> None:
    value = table([{"shard": f"shard.{i:05}.mds", "samples": i} for i in range(MAX_TABLE_ROWS + 7)])
    assert len(value.records) == MAX_TABLE_ROWS + 1
    assert value.records[-1].data == {"shard": "and 7 more", "samples": "…"}


def test_a_table_of_the_first_records_counts_those_that_it_was_not_given() -> None:
    value = table([{"shard": i} for i in range(MAX_TABLE_ROWS)], total=1000)
    assert value.records[-1].data == {"shard": "and 970 more"}


def test_a_short_table_of_ends_is_the_whole_table() -> None:
    assert len(table_of_ends([{"class": i} for i in range(MAX_TABLE_ROWS)]).records) == MAX_TABLE_ROWS


def test_facts_of_two_things_are_a_table_with_a_column_for_each() -> None:
    shown = table_of_facts({"promoted": {"version": 3, "run": "b"}, "before": {"version": 2}})
    assert [column.name for column in shown.schema.columns] == ["", "promoted", "before"]
    assert [tuple(record.data.values()) for record in shown.records] == [("version", "3", "2"), ("run", "b", "")]


def test_a_table_keeps_the_types_of_its_columns() -> None:
    value = table([{"name": "roses", "images": 3, "share": 0.5, "ok": True}])
    assert [(c.name, c.type) for c in value.schema.columns] == [
        ("name", "string"), ("images", "int"), ("share", "float"), ("ok", "bool"),
    ]  # fmt: skip
    assert isinstance(value, dg.TableMetadataValue)
