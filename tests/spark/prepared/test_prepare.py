"""From files to prepared rows on real executors: right images, one pass, and bad files by policy."""

import hashlib
from collections import Counter

import pytest

from assets.drawing import draw_flower
from smalti.catalog import load_manifest, verify
from smalti.errors import BadImageError, StoreNotFound
from smalti.images import decode_rgb, probe_image
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.rows import Sharding, look_at, read_prepared, reshard_prepared
from smalti.spark.prepared.table import copy_parts, files_of, load_prepared, parts_of, prepared_files, read_part
from smalti.spark.prepared.update import update_prepared
from tests.spark.photos import encode, put

pytestmark = pytest.mark.spark


def test_every_image_becomes_a_small_jpeg_row(spark, flowers, tmp_path):
    options = PrepareOptions(size=24, validation_fraction=0.25, num_partitions=3)
    report = update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=options).table
    assert report.rows == 12
    assert report.bad == []
    assert report.counts == {
        "train": {"daisy": 3, "roses": 3, "tulips": 3},
        "validation": {"daisy": 1, "roses": 1, "tulips": 1},
    }
    frame = read_prepared(spark, tmp_path / "out")
    assert frame.columns == ["image", "label", "class_name", "width", "height", "split", "path"]
    rows = frame.collect()
    assert len({row["path"] for row in rows}) == 12
    for row in rows:
        header = probe_image(bytes(row["image"]))
        assert (header.format, header.width, header.height) == ("JPEG", 24, 24)
        assert (row["width"], row["height"]) == (24, 24)
        assert row["path"].startswith(f"{row['class_name']}/")
        assert row["class_name"] == ("daisy", "roses", "tulips")[row["label"]]
    assert [row["class_name"] for row in rows] != sorted(row["class_name"] for row in rows), "classes are mixed"


def test_the_same_folder_and_options_give_the_same_rows_whatever_the_cores(spark, flowers, tmp_path):
    folder = list_images(str(flowers))
    contents = []
    for parallelism in ("1", "4"):
        spark.conf.set("spark.sql.leafNodeDefaultParallelism", parallelism)
        try:
            options = PrepareOptions(size=16, num_partitions=3)
            update_prepared(spark, folder, tmp_path / parallelism, options=options)
            frame = read_prepared(spark, tmp_path / parallelism)
            contents.append(
                [
                    [(row["path"], hashlib.md5(row["image"]).hexdigest()) for row in part]
                    for part in frame.rdd.glom().collect()
                ]
            )
        finally:
            spark.conf.unset("spark.sql.leafNodeDefaultParallelism")
    assert contents[0] == contents[1]
    assert [len(part) for part in contents[0]] == [12]  # one task for three small parts


@pytest.fixture
def mixed(flowers):
    """Return a folder of twelve good photos, five good files of other kinds, and seven bad ones."""
    put(flowers / "daisy" / "grey.jpg", encode("JPEG", "L"))
    put(flowers / "daisy" / "cmyk.jpg", encode("JPEG", "CMYK"))
    put(flowers / "daisy" / "picture.png", encode("PNG", "RGBA"))
    put(flowers / "daisy" / "moving.gif", encode("GIF", "P"))
    put(flowers / "daisy" / "modern.webp", encode("WEBP", "RGB"))
    put(flowers / "roses" / "empty.jpg", b"")
    put(flowers / "roses" / "text.jpg", b"this is not a picture")
    put(flowers / "roses" / "cut.jpg", draw_flower("roses", number=9)[:3000])
    put(flowers / "tulips" / "page.jpg", b"<html>503 Service Unavailable</html>")
    put(flowers / "tulips" / "notes.dat", b"water twice a week")
    put(flowers / "tulips" / "scan.tif", encode("TIFF", "RGB"))
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    put(flowers / "tulips" / "bomb.png", bomb)
    return flowers


BAD = {
    "roses/cut.jpg": "truncated",
    "roses/empty.jpg": "zero bytes",
    "roses/text.jpg": "found text",
    "tulips/bomb.png": "3,600,000,000 pixels",
    "tulips/notes.dat": "found text",
    "tulips/page.jpg": "an HTML page",
    "tulips/scan.tif": "a TIFF image",
}


def test_skip_leaves_bad_files_out_and_reports_each(spark, mixed, tmp_path):
    options = PrepareOptions(size=16, on_bad_image="skip")
    report = update_prepared(spark, list_images(str(mixed)), tmp_path / "out", options=options).table
    assert [path for path, _ in report.bad] == sorted(BAD)
    for path, reason in report.bad:
        assert BAD[path] in reason, path
    assert report.rows == 17
    assert report.bad == load_prepared(tmp_path / "out").bad
    rows = read_prepared(spark, tmp_path / "out").collect()
    assert Counter(row["class_name"] for row in rows) == {"daisy": 9, "roses": 4, "tulips": 4}
    assert all(decode_rgb(bytes(row["image"])).shape == (16, 16, 3) for row in rows)


def test_fail_names_every_bad_file_and_writes_nothing(spark, mixed, tmp_path):
    folder, options = list_images(str(mixed)), PrepareOptions(size=16)
    with pytest.raises(BadImageError) as caught:
        update_prepared(spark, folder, tmp_path / "out", options=options)
    message = str(caught.value)
    assert "7 of 24 files are not usable images" in message
    assert all(path in message for path in BAD)
    assert "java" not in message.lower()
    assert not list((tmp_path / "out").rglob("*.parquet"))
    with pytest.raises(StoreNotFound, match="holds no prepared images: check the address"):
        read_prepared(spark, tmp_path / "out")


def test_a_failed_write_leaves_the_earlier_one_as_it_was(spark, flowers, tmp_path):
    options = PrepareOptions(size=16)
    first = update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=options).table
    put(flowers / "roses" / "empty.jpg", b"")
    with pytest.raises(BadImageError, match=r"roses/empty\.jpg"):
        update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=options)
    assert load_prepared(tmp_path / "out").name == first.name
    assert read_prepared(spark, tmp_path / "out").count() == 12


def test_other_options_prepare_everything_again_and_earlier_versions_stay(spark, flowers, tmp_path):
    for size in (8, 16, 24):
        update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=PrepareOptions(size=size))
    assert {row["width"] for row in read_prepared(spark, tmp_path / "out").collect()} == {24}
    assert {row["width"] for row in read_prepared(spark, tmp_path / "out", version=1).collect()} == {8}


def test_the_parquet_is_plain_parquet_for_spark_itself(spark, flowers, tmp_path):
    update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=PrepareOptions(size=16))
    files = prepared_files(tmp_path / "out")
    frame = spark.read.parquet(*files.images).join(spark.read.parquet(files.labels), "path")
    assert frame.schema["image"].dataType.typeName() == "binary"
    plain = {row["path"]: (bytes(row["image"]), row["label"], row["split"]) for row in frame.collect()}
    wanted = read_prepared(spark, tmp_path / "out").collect()
    assert plain == {row["path"]: (bytes(row["image"]), row["label"], row["split"]) for row in wanted}


def test_rows_of_large_parts_are_copied_by_executors_without_the_others(spark, flowers, tmp_path, monkeypatch):
    monkeypatch.setattr("smalti.spark.prepared.table._MAX_DRIVER_BYTES", 0)
    options = PrepareOptions(size=16, num_partitions=2)
    table = update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=options).table
    rows = {row["path"]: bytes(row["image"]) for row in read_prepared(spark, tmp_path / "out").collect()}
    kept = {path for path in rows if not path.endswith("/1.jpg")}
    copies = [(part, sorted(kept)) for part in table.parts]
    answers = copy_parts(spark, table.store, "20260101t000000-0123456789abcdef", copies)
    assert set(files_of(answers)["path"].to_pylist()) == kept
    found = {
        row["path"]: row["image"]
        for part in parts_of(answers)
        for batch in read_part(table.store, part.raw.basename, rows)
        for row in batch.to_pylist()
    }
    assert found == {path: rows[path] for path in kept}


def test_a_folder_of_nothing_but_bad_files_is_an_error_even_with_skip(spark, tmp_path):
    put(tmp_path / "in" / "roses" / "empty.jpg", b"")
    folder, options = list_images(str(tmp_path / "in")), PrepareOptions(on_bad_image="skip")
    with pytest.raises(BadImageError, match="1 of 1 files are not usable"):
        update_prepared(spark, folder, tmp_path / "out", options=options)


def test_a_file_that_disappears_after_the_listing_is_no_bad_image(spark, flowers, tmp_path):
    """`skip` is for files that are no images, not for a store that loses them."""
    folder = list_images(str(flowers))
    (flowers / "roses" / "2.jpg").unlink()
    options = PrepareOptions(size=16, on_bad_image="skip")
    with pytest.raises(StoreNotFound, match=r"roses/2\.jpg"):
        update_prepared(spark, folder, tmp_path / "out", options=options)
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_file_that_changes_after_the_listing_is_reported(spark, flowers, tmp_path):
    folder = list_images(str(flowers))
    put(flowers / "roses" / "2.jpg", draw_flower("roses", number=77, size=(90, 90)))
    with pytest.raises(BadImageError, match=r"roses/2\.jpg: the file changed"):
        update_prepared(spark, folder, tmp_path / "out", options=PrepareOptions(size=16))


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"quality": 101},
        {"validation_fraction": 1.0},
        {"on_bad_image": "ignore"},
        {"num_partitions": 0},
    ],
)
def test_options_outside_their_ranges_are_refused(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`: expected"):
        PrepareOptions(**wrong)


@pytest.mark.slow
def test_five_hundred_real_photos_are_prepared(spark, shared, tmp_path):
    folder = list_images(str(shared / "flowers"))
    assert sum(folder.counts.values()) == 500
    options = PrepareOptions(size=96, validation_fraction=0.2)
    report = update_prepared(spark, folder, tmp_path / "out", options=options).table
    assert report.rows == 500
    assert report.counts["validation"] == dict.fromkeys(folder.classes, 20)
    rows = read_prepared(spark, tmp_path / "out").collect()
    assert {row["path"] for row in rows} == {file.path for file in folder.files}


FEW = PrepareOptions(size=16, validation_fraction=0.25)
SHARDING = Sharding({"image": "jpeg", "label": "int", "width": None, "path": "str"}, size_limit="4kb")


def no_spark():
    raise AssertionError("Spark was started for a few files")


def reshard(spark, photos, root):
    table = update_prepared(spark, list_images(str(photos)), root / "prepared", options=FEW).table
    done = reshard_prepared(spark, table, look_at(root / "shards"), SHARDING)
    assert verify(root / "shards").ok
    return table, done


def test_an_update_by_a_few_files_starts_no_spark_and_gives_the_rows_that_spark_gives(
    spark, flowers, tmp_path, monkeypatch
):
    for name in ("here", "there"):
        table, done = reshard(spark, flowers, tmp_path / name)
        assert (table.rows, done.converted) == (12, 12)
    put(flowers / "daisy" / "0.jpg", draw_flower("daisy", number=77, size=(64, 48)))
    put(flowers / "asters" / "new.jpg", draw_flower("daisy", number=78, size=(50, 60)))  # all labels move
    (flowers / "roses" / "2.jpg").unlink()
    here, done_here = reshard(no_spark, flowers, tmp_path / "here")
    monkeypatch.setattr("smalti.spark.prepared.update._MAX_LOCAL_FILES", 0)
    monkeypatch.setattr("smalti.spark.prepared.rows._MAX_LOCAL_ROWS", 0)
    monkeypatch.setattr("smalti.spark.reshard._MAX_DRIVER_BYTES", 0)
    with pytest.raises(AssertionError, match="Spark was started"):
        reshard(no_spark, flowers, tmp_path / "there")
    there, done_there = reshard(spark, flowers, tmp_path / "there")
    assert here.digest == there.digest
    assert here.counts == there.counts
    assert (done_here.converted, done_here.manifest.rows) == (done_there.converted, 12)
    found = [load_manifest(tmp_path / name / "shards") for name in ("here", "there")]
    assert found[0].row_hash == found[1].row_hash != ""
    assert found[0].schema == found[1].schema
