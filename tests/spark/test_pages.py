"""The pieces of code of docs/spark.md, docs/resharding.md and docs/pipeline.md that no other test runs."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions

from smalti import open_dataset
from smalti.spark import dataframe_to_mds

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def run(spark, tmp_path, monkeypatch):
    """Return a function that runs the block of a page with a mark in it; all addresses are folders of the test."""
    monkeypatch.chdir(tmp_path)

    def run_block(page, mark, **names):
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
        [text] = [each for each in blocks if mark in each]
        text = re.sub(r'"(s3://bucket/|/data/|/|data/flowers/)(?=[a-z])', f'"{tmp_path}/', text)
        names = {"spark": spark, "dataframe_to_mds": dataframe_to_mds, "out": str(tmp_path / "out"), **names}
        exec(compile(text, page, "exec"), names)
        return names

    return run_block


def test_a_frame_becomes_a_set(spark, run):
    assert run("spark.md", "manifest = dataframe_to_mds(df", df=spark.range(20))["manifest"].rows == 20


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
    assert run("pipeline.md", "read_prepared(spark")["frame"].count() == 12


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
