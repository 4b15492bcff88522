"""Functions of the user on executors that cannot import their modules: separate processes, and Spark Connect."""

import os
import socket
import subprocess
import sys

import pytest

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


def run(master, folder, **variables):
    return subprocess.run(
        [sys.executable, "-m", "tests.nightly.shipped", master, str(folder)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_executors_of_their_own_run_functions_of_modules_that_they_cannot_import(project):
    done = run("local-cluster[2,1,1024]", project)
    assert done.stdout.splitlines()[-1:] == ["[11, 21, 31, 41]"], done.stdout[-3000:] + done.stderr[-3000:]


def test_a_connect_server_runs_functions_of_modules_that_it_cannot_import(project):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"ready\n"
        done = run(f"sc://127.0.0.1:{port}", project)
        assert done.stdout.splitlines()[-1:] == ["[11, 21, 31, 41]"], done.stdout[-3000:] + done.stderr[-3000:]
    finally:
        server.stdin.close()
        server.wait(60)


SERVER = """
import os, sys
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
from pyspark.sql import SparkSession
from smalti.spark.session import detect_java
os.environ["JAVA_HOME"] = str(detect_java().home)
os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.port", sys.argv[1])
session = builder.getOrCreate()
session.range(1).count()
print("ready", flush=True)
sys.stdin.read()
session.stop()
"""
