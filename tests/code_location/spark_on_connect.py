"""A cancelled step on Spark Connect, in a process of its own: `python -m tests.code_location.spark_on_connect FOLDER`.

Prints what the server says about the job before and after.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import dagster as dg
from pyspark.sql import SparkSession

from smalti_dagster.resources.spark import SparkResource


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def main(folder: str) -> None:
    started, went_on = Path(folder) / "started", Path(folder) / "went_on"
    other = SparkSession.builder.remote("local[2]").getOrCreate()  # the server, and a session that is not the step's
    address = f"sc://127.0.0.1:{os.environ.get('SMALTI_CONNECT_PORT', '15002')}"
    print(type(other).__module__)

    def slow(batches):
        started.write_text("")
        for _ in range(40):
            time.sleep(0.5)
        went_on.write_text("")
        yield from batches

    @dg.asset
    def cancelled(spark: SparkResource) -> None:
        with spark.session() as session:
            print(session.getTags() != set())
            session.range(1).mapInArrow(slow, "id long").collect()

    def interrupt() -> None:
        wait_for(started)
        os.kill(os.getpid(), signal.SIGINT)  # as Dagster's Terminate does

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize(
            [cancelled],
            resources={"spark": SparkResource(master=address)},
            instance=instance,
            raise_on_error=False,
        )
    print(done.success)
    left = 0.0
    while time.monotonic() - began < 60 and not went_on.exists() and left < 25:
        time.sleep(0.5)
        left += 0.5
    print(went_on.exists())
    print(other.range(3).count(), other.getTags())
    other.stop()


if __name__ == "__main__":
    main(sys.argv[1])
