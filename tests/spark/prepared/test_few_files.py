"""An update by a few files is made without Spark, and gives the very rows that Spark gives."""

import pytest

from assets.flowers import draw_flower
from smalti.catalog import load_manifest, verify
from smalti.sources.image_folder import list_images
from smalti.spark.prepare import PrepareOptions
from smalti.spark.prepared.reshard import Sharding, look_at, reshard_prepared
from smalti.spark.prepared.update import update_prepared
from tests.spark.photos import put

pytestmark = pytest.mark.spark

OPTIONS = PrepareOptions(size=16, validation_fraction=0.25)
SHARDING = Sharding({"image": "jpeg", "label": "int", "width": None, "path": "str"}, size_limit="4kb")


def no_spark():
    raise AssertionError("Spark was started for a few files")


def run(spark, photos, root):
    table = update_prepared(spark, list_images(str(photos)), root / "prepared", options=OPTIONS).table
    done = reshard_prepared(spark, table, look_at(root / "shards"), SHARDING)
    assert verify(root / "shards").ok
    return table, done


def test_both_ways_give_the_same_rows(spark, flowers, tmp_path, monkeypatch):
    for name in ("here", "there"):
        table, done = run(spark, flowers, tmp_path / name)
        assert (table.rows, done.converted) == (12, 12)
    put(flowers / "daisy" / "0.jpg", draw_flower("daisy", number=77, size=(64, 48)))
    put(flowers / "asters" / "new.jpg", draw_flower("daisy", number=78, size=(50, 60)))  # all labels move
    (flowers / "roses" / "2.jpg").unlink()
    here, done_here = run(no_spark, flowers, tmp_path / "here")
    monkeypatch.setattr("smalti.spark.prepared.update._MAX_LOCAL_FILES", 0)
    monkeypatch.setattr("smalti.spark.prepared.rows._MAX_LOCAL_ROWS", 0)
    monkeypatch.setattr("smalti.spark.reshard._MAX_DRIVER_BYTES", 0)
    with pytest.raises(AssertionError, match="Spark was started"):
        run(no_spark, flowers, tmp_path / "there")
    there, done_there = run(spark, flowers, tmp_path / "there")
    assert here.digest == there.digest
    assert here.counts == there.counts
    assert (done_here.converted, done_here.manifest.rows) == (done_there.converted, 12)
    found = [load_manifest(tmp_path / name / "shards") for name in ("here", "there")]
    assert found[0].row_hash == found[1].row_hash != ""
    assert found[0].schema == found[1].schema
