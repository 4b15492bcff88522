"""Source files that change while a write on Spark Connect reads them."""

import pytest

from smalti.spark.lineage import files_now
from tests.spark.writing.connect_program import run_on_connect


@pytest.mark.nightly  # beside test_fault_rows.py and mds/test_connect.py
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
def test_a13_on_spark_connect_files_that_change_while_the_job_runs_fail_it_and_the_version_before_stays(tmp_path):
    said, errors = run_on_connect("tests.spark.writing.changing_on_connect", tmp_path)
    assert len(said) == 10, errors
    assert said[:4] == ["nothing published", "nothing 400 rows", "came published", "came 400 rows"]
    name = "0 %41 {a}[b].parquet"
    assert said[4].startswith("replaced refused: source file ")
    assert f"/day=a b/{name} of " in said[4]
    assert " bytes was replaced by " in said[4]
    assert said[6].startswith("removed refused: source file ")
    assert f"/day=a b/{name} is gone since the DataFrame was made" in said[6]
    assert (said[5], said[7]) == ("replaced 7 rows", "removed 7 rows")
    assert said[8:] == ["listed 4 True", "without files []"]


def test_a_server_that_does_not_list_files_skips_the_check():
    from pyspark.errors import PySparkException

    class Refusing:
        def inputFiles(self):  # noqa: N802 -- Spark's name
            raise PySparkException("no access")

    assert files_now(Refusing()) is None
