"""Source files that change while a write on Spark Connect reads them."""

import os
import subprocess
import sys

import pytest

from smalti.spark.connect_files import note_files, take_noted
from tests import turns


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.process
def test_a13_on_spark_connect_files_that_change_while_the_job_runs_end_it_and_the_version_before_stays(tmp_path):
    with turns.spark_connect():
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.changing_on_connect", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            check=False,
        )
    said = done.stdout.splitlines()
    assert len(said) == 10, done.stderr[-3000:]
    assert said[:4] == ["nothing published", "nothing 400 rows", "came published", "came 400 rows"]
    name = "0 %41 {a}[b].parquet"
    assert said[4].startswith("replaced refused: source file ")
    assert f"/day=a b/{name} of " in said[4]
    assert " bytes was replaced by " in said[4]
    assert said[6].startswith("removed refused: source file ")
    assert f"/day=a b/{name} is gone since the DataFrame was made" in said[6]
    assert (said[5], said[7]) == ("replaced 7 rows", "removed 7 rows")
    assert said[8:] == ["listed 4 True", "without files []"]


def test_a_server_that_does_not_list_files_leaves_nothing_noted():
    from pyspark.errors import PySparkException

    class Refusing:
        def inputFiles(self):  # noqa: N802 -- Spark's name
            raise PySparkException("no access")

    frame = Refusing()
    note_files(frame)
    assert take_noted(frame) is None
