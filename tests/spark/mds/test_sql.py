"""`format("mds")` in SQL, how Spark finds it, and what PySpark without such sources says."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import pyspark_mds
from smalti.catalog import load_manifest
from smalti.errors import MissingDependency
from smalti.spark import dataframe_to_mds, register
from smalti.spark.session import ARROW_BATCHES

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 4.0 or later")


@pytest.fixture
def photos(spark, tmp_path):
    """Return the place of a set of six rows, which the view `photos` shows."""
    rows = spark.range(6).selectExpr("id", "cast(id % 2 as int) label", "cast(concat('p', id) as binary) image")
    dataframe_to_mds(rows.coalesce(1), str(tmp_path / "photos"))
    options = f"path '{tmp_path / 'photos'}', sample_ids 'true'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW photos USING mds OPTIONS ({options})")
    return tmp_path / "photos"


@pytest.mark.spark
@pytest.mark.slow
def test_a_view_is_selected_from_and_joined_and_the_result_written_as_a_new_version(spark, photos):
    assert spark.sql("SELECT label, count(*), max(_sample_id) FROM photos GROUP BY label ORDER BY label").collect() == [
        (0, 3, 4),
        (1, 3, 5),
    ]
    spark.createDataFrame([(0, "cat"), (1, "dog")], "label int, name string").createOrReplaceTempView("classes")
    joined = spark.sql("SELECT id, label, image, name FROM photos JOIN classes USING (label)")
    dataframe_to_mds(joined, str(photos), mode="overwrite")
    assert load_manifest(photos).version == 2
    names = spark.read.format("mds").load(str(photos)).sort("id").select("id", "name", "image").collect()
    assert [tuple(row) for row in names] == [(n, ("cat", "dog")[n % 2], f"p{n}".encode()) for n in range(6)]


@pytest.mark.spark
@pytest.mark.slow
def test_a_table_of_a_catalog_is_refused_when_it_is_made_because_spark_drops_its_options(spark, photos):
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING mds OPTIONS"):
        spark.sql(f"CREATE TABLE lost USING mds OPTIONS (path '{photos}')")


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_gets_the_source_by_name_too(spark, photos):
    register(spark)
    assert spark.read.format("mds").load(str(photos)).count() == 6


@pytest.mark.spark
@pytest.mark.slow
def test_registration_limits_arrow_batches_unless_the_session_has_limits(spark):
    for name in ARROW_BATCHES:
        spark.conf.unset(name)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "77")
    register(spark)
    assert {name: spark.conf.get(name) for name in ARROW_BATCHES} == {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "77",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2m",
    }


def test_spark_finds_the_source_in_a_module_of_its_prefix():
    assert pyspark_mds.DefaultSource.name() == "mds"
    assert not hasattr(pyspark_mds, "OtherSource")


def test_the_module_that_spark_looks_at_imports_nothing_and_has_no_source_below_pyspark_4():
    program = (
        "import sys, pyspark_mds; print([name for name in sys.modules if name.startswith(('smalti', 'pyspark'))]);"
        "sys.modules['pyspark.sql.datasource'] = None; print(hasattr(pyspark_mds, 'DefaultSource'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.splitlines() == ["['pyspark_mds']", "False"]


def test_a_session_of_pyspark_3_says_what_to_do():
    with pytest.raises(MissingDependency, match=r"needs PySpark 4.0 or later, found .*smalti.spark.dataframe_to_mds"):
        register(SimpleNamespace())
