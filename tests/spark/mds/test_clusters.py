"""`format("mds")` on executors with processes of their own, a standalone cluster with S3, and Spark Connect."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", minversion="4.0")

import boto3

import smalti
from tests.spark.writing.connect_program import connect_turn
from tests.spark.writing.test_clusters import QUICK, cluster
from tests.storage.conftest import ACCESS, clean_environment, s3_server

__all__ = ["clean_environment", "s3_server"]
pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 800.0
"""Time limit of the program; with the start of a cluster it is below pytest's limit for a test."""
WRITTEN = range(30)
STREAMED = range(100, 130)


def run(master, place, folder, options=None, conf=None):
    """Run the program, and return the lines that it prints and the end of its errors."""
    arguments = [master, str(place), str(folder), json.dumps(options or {}), json.dumps(QUICK | (conf or {}))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.mds.everywhere", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    return done.stdout.splitlines(), done.stderr[-3000:]


def check_all(lines, errors):
    """Check that rows were written, streamed, replaced and read, and that a wrong value was refused by name."""
    expected = {"written": WRITTEN, "streamed": [*WRITTEN, *STREAMED], "replaced": range(3)}
    told = [" ".join([what, *map(str, ids), "as written: True"]) for what, ids in expected.items()]
    assert lines == [*told, "refused True", "append append append append overwrite"], errors


def test_executors_with_processes_of_their_own_write_stream_and_read(tmp_path):
    check_all(*run("local-cluster[2,1,1024]", tmp_path / "out", tmp_path))


@pytest.mark.nightly  # beside `test_executors_with_processes_of_their_own_write_stream_and_read`
def test_a_standalone_cluster_writes_streams_and_reads_in_s3(tmp_path, s3_server, clean_environment):
    """The options alone have address and keys: no environment has them."""
    key, password = ACCESS["AWS_ACCESS_KEY_ID"], ACCESS["AWS_SECRET_ACCESS_KEY"]
    client = boto3.client(
        "s3", endpoint_url=s3_server, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=password
    )
    bucket = f"b-{secrets.token_hex(6)}"
    client.create_bucket(Bucket=bucket)
    options = {"storage.endpoint_url": s3_server, "storage.key": key, "storage.secret": password}
    conf = {
        "spark.executorEnv.PYTHONPATH": str(Path(smalti.__file__).parents[1]),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
    }
    with cluster(tmp_path) as master:
        check_all(*run(master, f"s3://{bucket}/set", tmp_path, options, conf))


@pytest.mark.nightly  # beside test_connect.py, which does not stream
def test_spark_connect_writes_streams_and_reads(tmp_path):
    with connect_turn():
        check_all(*run("connect", tmp_path / "out", tmp_path))
