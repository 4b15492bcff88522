"""`format("mds")` on Spark Connect."""

import pytest

from tests.spark.writing.connect_program import run_on_connect

pytest.importorskip("pyspark.sql.datasource", reason="PySpark 4.0 or later")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
def test_sets_are_read_and_written_on_spark_connect(tmp_path):
    said, errors = run_on_connect("tests.spark.mds.reading_on_connect", tmp_path)
    assert said == ["found 10", "registered [Row(id=8), Row(id=9)]", "appended 10 12"], errors
