"""From images to shards on Spark Connect, and on a standalone cluster of PySpark's scripts."""

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

from smalti.java import detect_java
from tests.spark.writing.connect_program import connect_turn

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(350)]

QUICK = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
SPARK_HOME = Path(pyspark.__file__).parent
DEADLINE = 60.0
WAY_SECONDS = 240.0
"""Time limit of the program; with the start of a cluster it is below pytest's limit for a test."""
WITHOUT_TORCH = '''
import sys

class Refuse:
    """An import hook that imitates an executor with nothing but `smalti[spark]` installed."""
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "torchmetrics", "safetensors", "dagster"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
'''


def run_end_to_end(master, flowers, out, *, conf=None, env=None):
    arguments = [master, str(flowers), str(out), json.dumps(QUICK | (conf or {}))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.writing.end_to_end", *arguments],
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


@pytest.mark.nightly  # beside `test_connect_files.py` and a standalone cluster
def test_images_become_shards_on_spark_connect(flowers, tmp_path):
    """A server runs the jobs; an error of a task arrives with its type."""
    with connect_turn():
        lines, errors = run_end_to_end("connect", flowers, tmp_path / "out")
    assert lines[-5:-1] == [IMAGES, *OPTIONS, BATCHES], errors
    assert lines[-1].startswith(REFUSED), errors


@contextlib.contextmanager
def cluster(folder):
    """Run a master and a worker of Spark's standalone cluster, on free ports, inside the block."""
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

    def wait_for(log, pattern):
        end = time.monotonic() + DEADLINE
        while not (match := re.search(pattern, log.read_text())):
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.1)
        return match

    try:
        log = start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        address = wait_for(log, r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        start("Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "2", "--memory", "2g",
              "--work-dir", str(folder / "work"), address)  # fmt: skip
        wait_for(log, r"Registering worker")
        yield address
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in processes:
            end(process)


def end(process):
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait(60)


@pytest.mark.nightly  # a local cluster, whose executors are processes of their own too, is in several other tests
def test_images_become_shards_on_a_standalone_cluster_whose_executors_have_no_torch(flowers, tmp_path):
    """Executors have JVMs of their own, in a cluster of PySpark's own script; errors of tasks keep their type."""
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
        lines, errors = run_end_to_end(
            master, flowers, tmp_path / "out", conf=conf, env={"SPARK_LOCAL_IP": "127.0.0.1"}
        )
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
