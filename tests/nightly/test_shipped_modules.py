"""Functions of the user on executors that cannot import their modules: separate processes, and Spark Connect."""

import os
import subprocess
import sys

import pytest

from smalti.java import detect_java
from tests.spark.writing.connect_program import connect_turn

SECONDS = 240
TEXT = """
import pyarrow as pa
from pyspark.sql import functions
from mine.codes import code

def rows(spark):
    tens = functions.udf(lambda number: code(number) * 10, "long")
    return spark.range(4, numPartitions=2).select(tens("id").alias("number"))

def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"code": [code(number) for number in batch.column("number").to_pylist()]})
"""


@pytest.fixture
def project(tmp_path):
    """A package of the user's; its functions use another module of it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "text.py").write_text(TEXT)
    (tmp_path / "mine" / "codes.py").write_text("def code(number):\n    return number + 1\n")
    return tmp_path


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "connect"])
def test_executors_run_functions_of_modules_that_they_cannot_import(project, master):
    settings = {"JAVA_HOME": str(detect_java().home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with connect_turn():
        done = subprocess.run(
            [sys.executable, "-m", "tests.nightly.shipped", master, str(project)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.stdout.splitlines()[-1:] == ["[11, 21, 31, 41]"], done.stdout[-3000:] + done.stderr[-3000:]
    assert ("connect" in done.stdout) is (master == "connect")
