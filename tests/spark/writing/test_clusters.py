"""The whole way on every kind of session: executors of their own, Spark Connect, and a cluster of PySpark's scripts."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from smalti.spark.session import detect_java
from tests.spark.writing.connect_program import connect_turn

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(350)]

QUICK = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE = 60.0
WAY_SECONDS = 240.0
"""Of the program that goes the whole way; with the start of a cluster less than pytest waits for a test."""
WITHOUT_TORCH = '''
import sys

class Refuse:
    """Python as an executor has it where `smalti[spark]` is all that was installed."""
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "torchmetrics", "safetensors", "dagster"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
'''


def whole_way(master, flowers, out, *, conf=None, env=None):
    arguments = [master, str(flowers), str(out), json.dumps(QUICK | (conf or {}))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.writing.whole_way", *arguments],
        capture_output=True,
        text=True,
        timeout=WAY_SECONDS,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(env or {})},
        check=False,
    )
    return done.stdout.splitlines(), done.stderr[-3000:]


IMAGES = "12 rows in train, validation"
OPTIONS = ["40 rows, {'half': 'int64'}, 2 shards", "True"]
BATCHES = "batches are cut by bytes: True"
REFUSED = "SchemaError: Spark partition 0: column 'x'"


def test_the_whole_way_works_on_spark_connect(flowers, tmp_path):
    """Through a server; a typed error comes home."""
    with connect_turn():
        lines, errors = whole_way("connect", flowers, tmp_path / "out")
    assert lines[-5:-1] == [IMAGES, *OPTIONS, BATCHES], errors
    assert lines[-1].startswith(REFUSED), errors


@contextlib.contextmanager
def cluster(folder):
    """A master and a worker of Spark's standalone cluster, on ports of their own, ended with the block."""
    env = {**os.environ, "JAVA_HOME": str(detect_java().home), "SPARK_LOCAL_IP": "127.0.0.1",
           "SPARK_HOME": str(SPARK_HOME), "SPARK_NO_DAEMONIZE": "1", "SPARK_LOG_DIR": str(folder),
           "SPARK_PID_DIR": str(folder), "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}  # fmt: skip
    script, processes = str(SPARK_HOME / "sbin" / "spark-daemon.sh"), []

    def start(kind, *args):
        log = folder / f"{kind}.log"
        command = [
            "timeout",
            "300",
            "bash",
            script,
            "start",
            f"org.apache.spark.deploy.{kind.lower()}.{kind}",
            "1",
            *args,
        ]
        with log.open("wb") as out:
            processes.append(subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True))
        return log

    def told(log, pattern):
        end = time.monotonic() + DEADLINE
        while not (match := re.search(pattern, log.read_text())):
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        return match

    try:
        log = start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        address = told(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        start("Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g",
              "--work-dir", str(folder / "work"), address)  # fmt: skip
        told(log, r"Registering worker")
        yield address
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in processes:
            end(process)


def end(process):
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait(30)


def test_the_whole_way_works_on_a_standalone_cluster_whose_executors_have_no_torch(flowers, tmp_path):
    """Executors in JVMs of their own, of a cluster that PySpark's own script starts and ends; a typed error arrives."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_TORCH)
    conf = {
        "spark.executorEnv.PYTHONPATH": str(tmp_path / "site"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
    }
    with cluster(tmp_path) as master:
        lines, errors = whole_way(master, flowers, tmp_path / "out", conf=conf, env={"SPARK_LOCAL_IP": "127.0.0.1"})
        port = int(master.rpartition(":")[2])
    assert lines[-6:-1] == ["torch on executors: {False}", IMAGES, *OPTIONS, BATCHES], errors
    assert lines[-1].startswith(REFUSED), errors
    end = time.monotonic() + DEADLINE
    while answers(port):  # its JVM ends a moment after the script that started it
        assert time.monotonic() < end, "the master is gone"
        time.sleep(0.1)


def answers(port) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
