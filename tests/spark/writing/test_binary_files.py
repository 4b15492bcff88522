"""Folders of files: by `binaryFile` the rows are those that Spark gives, in its order; images are kept as they are."""

import re
from pathlib import Path

import pytest
from pyspark.sql import functions

from smalti import open_dataset
from smalti.catalog import load_manifest
from smalti.errors import BadImageError, CatalogError
from smalti.sources.image_folder import list_images
from smalti.spark import PrepareOptions, dataframe_to_mds, prepare_images, update_prepared
from smalti.spark.tasks import recipe_of
from smalti.spark.writing.dataframe import plan_frame, select_inputs
from smalti.writer.tables.plan import WriteOptions
from tests.spark.photos import encode, put

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
NAMES = ["a b.jpg", "c%20d.jpg", "e+f.jpg", "g%.jpg", "ü#?.jpg", "empty.jpg"]


@pytest.fixture
def files(spark, tmp_path):
    """Return the frame of a folder of files with awkward names; each holds its name, one is empty."""
    for name in NAMES:
        put(tmp_path / "k l" / name, b"" if name == "empty.jpg" else name.encode())
    return spark.read.format("binaryFile").load(str(tmp_path / "k l"))


def named(frame):
    return frame.withColumn("name", functions.element_at(functions.split("path", "/"), -1))


def queries(files):
    labels = files.sparkSession.createDataFrame([("a b.jpg", 1), ("e+f.jpg", 2), ("none.jpg", 3)], "name string, y int")
    files.createOrReplaceTempView("binary_files")
    return {
        "all columns, sorted": (files.orderBy("path"), "reject"),
        "twice, under other names": (files.orderBy("path").selectExpr("content AS a", "content AS b"), "reject"),
        "SQL": (files.sparkSession.sql("SELECT content FROM binary_files WHERE length > 5 ORDER BY path"), "reject"),
        "join": (named(files).join(labels, "name").select("content", "y").orderBy("y"), "reject"),
        "outer join": (labels.join(named(files), "name", "left").select("content", "y").orderBy("y"), "mask"),
        "filter of contents": (files.filter("content > 'c'").select("content"), "reject"),
    }


def check_query(frame, nulls, place):
    """Compare a set of these rows with the rows that Spark gives."""
    expected = [row.asDict() for row in frame.collect()]
    dataframe_to_mds(frame, place, nulls=nulls, progress=False)
    dataset = open_dataset(place)
    assert len(dataset) == len(expected)
    for number, row in enumerate(expected):
        found = dataset[number]
        for name in row.keys() & {"content", "a", "b", "length", "y"}:
            assert (found[name] or None) == (row[name] or None), (place.name, number, name)


def test_contents_under_other_names_are_those_that_spark_gives(files, tmp_path):
    frame = files.filter("length != 7").orderBy("path").selectExpr("content AS a", "length", "content AS b")
    check_query(frame, "reject", tmp_path / "out")


@pytest.mark.nightly
def test_rows_of_queries_over_files_are_those_that_spark_gives(files, tmp_path):
    for title, (frame, nulls) in queries(files).items():
        check_query(frame, nulls, tmp_path / title)


def test_folders_named_like_a_column_of_the_source_replace_it_as_in_spark(spark, tmp_path):
    put(tmp_path / "content" / "content=text" / "x", b"bytes of the file")
    frame = spark.read.format("binaryFile").load(str(tmp_path / "content")).select("content")
    dataframe_to_mds(frame, tmp_path / "out", progress=False)
    assert open_dataset(tmp_path / "out")[0] == {"content": "text"}


def num_tasks_of_a_write(spark, frame, out):
    context = spark.sparkContext
    context.setJobGroup(str(out), "the write")
    try:
        dataframe_to_mds(frame, out, progress=False)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    tracker = context.statusTracker()
    stages = [number for job in tracker.getJobIdsForGroup(str(out)) for number in tracker.getJobInfo(job).stageIds]
    return max(tracker.getStageInfo(number).numTasks for number in stages)


@pytest.fixture
def small_files(tmp_path):
    """Return a folder of 120 files, which Spark would divide into four tasks."""
    for number in range(120):
        put(tmp_path / "in" / f"{number:03}", f"{number}".encode() * (1 + number * 7 % 40))
    return tmp_path / "in"


def test_many_small_files_become_few_tasks_in_the_same_order(spark, small_files, tmp_path):
    frame = spark.read.format("binaryFile").load(str(small_files)).select("content")
    expected = [bytes(row["content"]) for row in frame.collect()]
    assert frame.rdd.getNumPartitions() == 4
    assert num_tasks_of_a_write(spark, frame, tmp_path / "out") == 2
    assert frame.rdd.getNumPartitions() == 4
    dataset = open_dataset(tmp_path / "out")
    assert [dataset[number]["content"] for number in range(120)] == expected


def test_the_small_files_of_a_table_become_few_tasks(spark, small_files, tmp_path):
    columns = "path string, modificationTime timestamp, length long, content binary"
    spark.sql(f"CREATE TABLE small_files ({columns}) USING binaryFile LOCATION '{small_files}'")
    try:
        assert num_tasks_of_a_write(spark, spark.table("small_files").select("content"), tmp_path / "out") == 2
    finally:
        spark.sql("DROP TABLE small_files")


def test_a_setting_of_the_session_decides_how_files_are_divided(spark, small_files, tmp_path):
    spark.conf.set("spark.sql.files.openCostInBytes", 8 << 20)
    try:
        frame = spark.read.format("binaryFile").load(str(small_files)).select("content")
        assert num_tasks_of_a_write(spark, frame, tmp_path / "out") == 8
        assert spark.conf.get("spark.sql.files.openCostInBytes") == str(8 << 20)
    finally:
        spark.conf.unset("spark.sql.files.openCostInBytes")


def test_a_file_that_is_gone_when_it_is_read_is_an_error_with_its_path(spark, small_files, tmp_path):
    frame = spark.read.format("binaryFile").load(str(small_files)).select("content")
    (small_files / "007").unlink()
    with pytest.raises(CatalogError, match=r"in/007 is gone since the DataFrame was made"):
        dataframe_to_mds(frame, tmp_path / "out", progress=False)
    assert spark.conf.get("spark.sql.files.openCostInBytes", None) is None


def test_images_of_a_folder_are_written_as_they_are(spark, flowers, tmp_path):
    folder = list_images(str(flowers))
    frame = prepare_images(spark, folder, PrepareOptions(size=None, validation_fraction=0.25))
    dataframe_to_mds(frame, tmp_path / "out", partition_by="split", compression=None, progress=False)
    dataset = open_dataset(tmp_path / "out", split="train")
    assert len(dataset) == 9
    found = dataset[3]
    assert (found["width"], found["height"]) == (64, 48)
    assert folder.classes[found["label"]] == found["class_name"] == found["path"].split("/")[0]
    manifest = load_manifest(tmp_path / "out")
    assert manifest.schema.columns()["image"] == "jpeg"
    stored = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*.mds"))
    for file in folder.files:
        assert (flowers / file.path).read_bytes() in stored


def test_kept_files_of_several_formats_are_bytes_and_a_bad_one_is_named(spark, tmp_path):
    put(tmp_path / "in" / "a" / "1.jpg", encode("JPEG", "RGB"))
    put(tmp_path / "in" / "a" / "2.png", encode("PNG", "RGB"))
    options = PrepareOptions(size=None)
    dataframe_to_mds(prepare_images(spark, list_images(str(tmp_path / "in")), options), tmp_path / "out")
    assert load_manifest(tmp_path / "out").schema.columns()["image"] == "bytes"
    put(tmp_path / "in" / "b" / "bad.png", b"no image")
    folder = list_images(str(tmp_path / "in"))
    with pytest.raises(BadImageError, match=r"b/bad.png"):
        dataframe_to_mds(prepare_images(spark, folder, options), tmp_path / "other")
    skipping = PrepareOptions(size=None, on_bad_image="skip")
    dataframe_to_mds(prepare_images(spark, folder, skipping), tmp_path / "other")
    dataset = open_dataset(tmp_path / "other")
    assert sorted(dataset[number]["path"] for number in range(len(dataset))) == ["a/1.jpg", "a/2.png"]


def test_images_that_spark_keeps_are_not_read_again(spark, flowers):
    images = prepare_images(spark, list_images(str(flowers)), PrepareOptions(size=None))
    rows, _ = plan_frame(images.schema, WriteOptions())
    assert recipe_of(select_inputs(images, rows)) is not None
    images.cache()
    assert recipe_of(select_inputs(images, rows)) is None
    images.unpersist()
    assert recipe_of(select_inputs(images, rows)) is not None


def test_kept_files_that_are_cut_short_or_of_another_format_follow_the_policy(spark, tmp_path):
    good, source = encode("JPEG", "RGB"), tmp_path / "in"
    for name, content in {"good": good, "cut": good[:-2], "other": encode("PNG", "RGB")}.items():
        put(source / "a" / f"{name}.jpg", content)
    skipping = PrepareOptions(size=None, on_bad_image="skip")
    dataframe_to_mds(prepare_images(spark, list_images(str(source)), skipping), tmp_path / "out", progress=False)
    dataset = open_dataset(tmp_path / "out")
    assert [dataset[number]["path"] for number in range(len(dataset))] == ["a/good.jpg"]
    (source / "a" / "other.jpg").unlink()
    failing = prepare_images(spark, list_images(str(source)), PrepareOptions(size=None))
    with pytest.raises(BadImageError, match=r"a/cut.jpg"):
        dataframe_to_mds(failing, tmp_path / "other", progress=False)


def test_the_examples_of_the_page_write_what_they_say(spark, flowers, tmp_path):
    page = (ROOT / "docs" / "spark.md").read_text()
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "load(folder)" in block]
    blocks += [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "size=None" in block]
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        names = {"spark": spark, "folder": str(flowers), "out": str(tmp_path / str(number))}
        exec(block, {**names, "dataframe_to_mds": dataframe_to_mds})
    dataset = open_dataset(tmp_path / "0")
    assert {dataset[number]["label"] for number in range(12)} == {"daisy", "roses", "tulips"}
    assert len(open_dataset(tmp_path / "1", split="validation")) == 3


def test_an_update_of_prepared_images_needs_a_size(spark, flowers, tmp_path):
    with pytest.raises(ValueError, match=r"`size=None` keeps files as they are"):
        update_prepared(spark, list_images(str(flowers)), tmp_path / "out", options=PrepareOptions(size=None))
