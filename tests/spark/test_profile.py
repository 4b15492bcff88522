"""Statistics of the first rows of a DataFrame, and of images by what was noted when they were prepared."""

import math

import numpy as np
import pytest

from smalti.inspection.distributions import Histogram
from smalti.spark.prepared.rows import images_of_classes
from smalti.spark.prepared.table import FILES, load_prepared, store_files
from smalti.spark.profile import MAX_COLUMNS, image_sizes, profile_rows
from smalti.storage import LocalStore
from tests.spark.photos import put
from tests.spark.prepared.preparer import Preparer, photo

COLUMNS = "number double, text string, data binary, list array<int>, day date, `odd, name` struct<a: int>, empty int"


@pytest.mark.slow
@pytest.mark.spark
def test_columns_of_every_kind_are_profiled_by_value_or_by_length(spark):
    rows = [
        "(double('NaN'), 'bb', binary('x'), array(1, 2), date'2026-01-02', named_struct('a', 1), int(null))",
        "(2.5, 'a', binary('yy'), array(), date'2026-01-01', null, null)",
        "(-1.0, null, null, array(1), null, named_struct('a', 2), null)",
        "(null, 'cccc', binary(''), null, date'2026-01-03', named_struct('a', 3), null)",
    ]
    names = COLUMNS.replace("`odd, name`", "odd").split(", ")
    values = ", ".join(f"col{at} as {name.split(' ')[0]}" for at, name in enumerate(names, 1))
    frame = spark.sql(f"SELECT {values} FROM VALUES {', '.join(rows)}").withColumnRenamed("odd", "odd, `name`")
    found = profile_rows(frame, shown=1)
    assert (found.rows, found.is_complete, found.columns_left_out) == (4, True, 0)
    shown = [(each.name, each.nulls, each.low, each.high, each.measure) for each in found.columns]
    assert shown == [
        ("number", 0.25, "-1.0", "2.5", "value"),
        ("text", 0.25, "a", "cccc", "length"),
        ("data", 0.25, "0 bytes", "2 bytes", "length"),
        ("list", 0.25, "[]", "[1, 2]", "length"),
        ("day", 0.25, "2026-01-01", "2026-01-03", "value"),
        ("odd, `name`", 0.25, "", "", ""),
        ("empty", 1.0, "", "", "value"),
    ]
    lengths = found.columns[1].histogram
    assert lengths is not None
    assert (lengths.low, lengths.median, lengths.high, sum(lengths.counts)) == (1, 2, 4, 3)
    assert found.first[0]["data"] == "1 bytes"


@pytest.mark.slow
@pytest.mark.spark
def test_no_more_rows_columns_or_characters_are_read_than_are_shown(spark):
    frame = spark.range(50).selectExpr("repeat('x', 1000000) as text", *(f"id as c{n}" for n in range(MAX_COLUMNS + 4)))
    found = profile_rows(frame, rows=20)
    assert (found.rows, found.is_complete, found.columns_left_out) == (20, False, 5)
    assert len(found.first[0]["text"]) == 80
    assert found.columns[0].histogram == Histogram(1e6, 1e6, 1e6, (20,))


def test_a_histogram_counts_finite_values_and_divides_their_range():
    found = Histogram.of([0, 1, 2, 4, math.nan, math.inf], bins=4)
    assert found == Histogram(0, 4, 1.5, (1, 1, 1, 1))
    assert Histogram.of([]) is None
    assert Histogram.of([math.nan]) is None
    assert Histogram.of([1e308, -1e308]) == Histogram(-1e308, 1e308, 0, (2,))


# ---------------------------------------------------------------- images


@pytest.fixture
def preparer(tmp_path):
    """Twelve photos of 40 x 32 pixels of three classes, and a file that is no image."""
    for kind in ("daisy", "roses", "tulips"):
        for number in range(4):
            put(tmp_path / "photos" / kind / f"{number}.jpg", photo(kind, number))
    return Preparer(tmp_path / "photos", LocalStore(tmp_path / "prepared"))


def test_the_sizes_of_images_are_those_of_their_files_and_are_not_read_again(preparer):
    first = preparer.update()
    assert first.num_bytes == sum(file.stat().st_size for file in preparer.source.rglob("*.jpg"))
    put(preparer.source / "daisy" / "9.jpg", photo("daisy", 9))
    second = preparer.update()
    assert preparer.asked == ["daisy/9.jpg"]
    sizes = image_sizes(second.table)
    assert (sizes.widths.tolist(), sizes.heights.tolist(), sizes.num_unknown) == ([40] * 13, [32] * 13, 0)


def test_a_version_without_sizes_is_read_and_its_images_are_not_prepared_for_them(preparer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("smalti.spark.prepared.update.store_files", _store_without_sizes)
        preparer.update()
    table = load_prepared(preparer.store.url)
    assert image_sizes(table).num_unknown == 12
    put(preparer.source / "daisy" / "9.jpg", photo("daisy", 9))
    table = preparer.update().table
    assert preparer.asked == ["daisy/9.jpg"]
    sizes = image_sizes(table)
    assert (sizes.widths.tolist(), sizes.num_unknown) == ([40], 12)


def _store_without_sizes(store, write_id, files, recipe):
    """Store a table of files as releases before the sizes did."""
    return store_files(store, write_id, files.select(FILES.names[:-2]), recipe)


def test_a_few_images_of_every_class_are_read_from_few_parts(preparer):
    table = preparer.update().table
    found = images_of_classes(table, 2)
    assert {name: len(images) for name, images in found.items()} == {"daisy": 2, "roses": 2, "tulips": 2}
    assert images_of_classes(table, 9).keys() == found.keys()
    assert np.all([len(images) == 4 for images in images_of_classes(table, 9).values()])
