"""The pieces of code of docs/spark.md and docs/resharding.md that no other test runs."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyspark
import pytest
from pyspark.sql import functions

import smalti
from smalti import StreamingDataLoader, StreamingDataset, history, open_dataset
from smalti.spark import dataframe_to_mds

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.spark, pytest.mark.slow]
needs_sources = pytest.mark.skipif(
    pyspark.__version__ < "4.1", reason="PySpark 4.1 has data sources in Python for streams"
)


@pytest.fixture
def run(spark, tmp_path, monkeypatch):
    """Return a function that runs the block of a page with a mark in it; all addresses are folders of the test."""
    monkeypatch.chdir(tmp_path)

    def run_block(page, mark, **names):
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
        [text] = [each for each in blocks if mark in each]
        text = re.sub(r"""(["'])(s3://bucket/|/data/|/|data/flowers/)(?=[a-z])""", rf"\1{tmp_path}/", text)
        names = {"spark": spark, "dataframe_to_mds": dataframe_to_mds, "out": str(tmp_path / "out"), **names}
        exec(compile(text, page, "exec"), names)
        return names

    return run_block


def test_a_frame_becomes_a_set(spark, run):
    assert run("spark.md", "manifest = dataframe_to_mds(df", df=spark.range(20))["manifest"].rows == 20


@needs_sources
def test_a_frame_is_written_and_read_by_the_source_and_by_sql(spark, run, tmp_path, capsys):
    df = spark.range(20).selectExpr("id", "if(id < 8, 'rose', 'daisy') as label")
    run("spark.md", '.option("compression", "zstd").save', df=df)
    assert run("spark.md", '.option("version", "1")')["flowers"].count() == 20
    run("spark.md", "CREATE TEMPORARY VIEW flowers")
    assert capsys.readouterr().out.count("|daisy|") == 2
    assert smalti.load_manifest(tmp_path / "flowers").rows == 21
    assert spark.table("flowers").count() == 20, "a view reads the version that was the newest when it was made"


@pytest.fixture
def events(spark, tmp_path):
    """Return a streaming frame with a micro-batch for each of two files of four rows."""
    spark.range(0, 8, 1, 2).write.json(str(tmp_path / "source"))
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "source"))


@needs_sources
@pytest.mark.torch
def test_a_stream_is_written_and_training_follows_it(run, events, tmp_path):
    query = run("spark.md", '"compact_every"', events=events)["query"]
    query.processAllAvailable()
    query.stop()
    assert [info.operation for info in history(tmp_path / "events")] == ["append", "append"]
    seen = []
    names = {"StreamingDataset": StreamingDataset, "StreamingDataLoader": StreamingDataLoader}
    run("spark.md", "for epoch in", train_step=lambda batch: seen.extend(batch["id"].tolist()), **names)
    assert sorted(seen) == sorted(3 * list(range(8)))


def test_batches_of_a_stream_are_written_by_the_function(run, events, tmp_path):
    out = tmp_path / "out"
    query = run("spark.md", "foreachBatch", events=events, name="events", folder=str(tmp_path / "checkpoint"))["query"]
    query.processAllAvailable()
    query.stop()
    assert smalti.load_manifest(out).rows == 8
    assert smalti.load_manifest(out).write_id == "events-1"


@needs_sources
def test_the_table_of_options_has_all_that_there_are():
    from smalti.spark.mds import source
    from smalti.spark.mds.writing import STREAM_OPTIONS, WRITE_OPTIONS

    page = (DOCS / "spark.md").read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    of = {
        kind: {
            name for names, kinds in rows if kind in kinds.strip().split(", ") for name in re.findall("`(.+?)`", names)
        }
        for kind in ("write", "stream", "read")
    }
    assert of["write"] == {*WRITE_OPTIONS, "storage.<name>"}
    assert of["stream"] == {*STREAM_OPTIONS, "storage.<name>"}
    assert of["read"] == {*source._OPTIONS, "storage.<name>"}


def test_a_transform_changes_images_on_their_way(spark, run, tmp_path, flowers):
    photos = [(path.read_bytes(), len(path.name)) for path in sorted(flowers.glob("roses/*.jpg"))]
    df = spark.createDataFrame(photos, "image binary, label int")
    run("spark.md", "def shrink(", df=df, pa=pa, shrink_jpeg=lambda data: data)
    assert open_dataset(tmp_path / "out")[0]["label"] == 5


def test_prepared_images_are_kept_read_by_spark_and_by_others(run, tmp_path, flowers):
    flowers.rename(tmp_path / "photos")
    names = run("spark.md", "update_prepared(spark", options=None)
    assert names["done"].prepared == 12
    assert names["frame"].count() == 12
    run_lines = run("spark.md", "duckdb.sql", prepared_files=names["prepared_files"], pyarrow=pa, duckdb=NoDuckDB())
    assert run_lines["table"].num_rows == 12


class NoDuckDB:
    """In place of a package that the tests do not install; test_prepared_update.py runs its line where it is."""

    def sql(self, query):
        assert query.startswith("FROM read_parquet([")


def test_a_folder_is_converted_again_and_gets_a_column(run, tmp_path, flowers):
    flowers.rename(tmp_path / "raw")
    assert run("resharding.md", "list_images, reshard_images")["manifest"].rows == 12
    run("resharding.md", "import add_columns", embed=lambda images: np.zeros((len(images), 512), np.float32))
    assert open_dataset(tmp_path / "shards", split="train")[0]["embedding"].shape == (512,)


def test_files_of_rows_are_converted_by_a_function(run, tmp_path):
    rows = tmp_path / "rows.json"
    rows.write_text("\n".join(json.dumps({"id": number}) for number in range(5)))
    listing = [(rows.as_uri().replace("file:///", "file:/"), rows.stat().st_size, "etag")]
    run("resharding.md", "reshard_files(spark", listing=listing, F=functions)
    assert [open_dataset(tmp_path / "out")[number]["id"] for number in range(5)] == [0, 1, 2, 3, 4]
