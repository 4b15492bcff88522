"""A job whose driver or executor is killed; run as a program by test_fault_rows.

killed_driver <master> <out> <write id> before|after|executor
"""

import os
import signal
import sys
import time
from pathlib import Path

from smalti.catalog.manifest import header_key
from smalti.spark import SparkOptions, build_session, dataframe_to_mds
from smalti.storage import LocalStore


def die_at_the_commit(when):
    """Kill this process right before, or right after, the put that commits the version."""
    real = LocalStore.put_if_absent

    def put_if_absent(self, key, data):
        is_commit = key == header_key(1)
        if is_commit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, key, data)
        if is_commit:
            os.kill(os.getpid(), signal.SIGKILL)

    LocalStore.put_if_absent = put_if_absent


def parent_of(pid):
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of_this_worker():
    """Return the JVM above this Python worker: the executor."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = parent_of(pid)
    return pid


def has_both(out):
    """Return whether the first task is done, and the second has stored shards."""
    return Path(f"{out}.first-done").exists() and any(Path(out).rglob("00001-*/*.mds"))


def frame(session, out):
    """Return 2,000 rows in two partitions; the executor of the second is killed when shards of both are stored."""

    def kill_once(batches):
        from pyspark import TaskContext

        mark, task = Path(f"{out}.killed"), TaskContext.get().partitionId()
        for number, batch in enumerate(batches):
            yield batch
            if task == 1 and number == 5 and not mark.exists():
                deadline = time.monotonic() + 60
                while not has_both(out) and time.monotonic() < deadline:
                    time.sleep(0.05)
                mark.write_text(f"{executor_of_this_worker()} {has_both(out)}")
                os.kill(executor_of_this_worker(), signal.SIGKILL)
        if task == 0:
            Path(f"{out}.first-done").touch()

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows = session.range(0, 2000, 1, 2).selectExpr("id", "cast(repeat('x', 2000) as binary) as data")
    return rows.mapInArrow(kill_once, rows.schema)


def main(master, out, write_id, when):
    """Run the job, and print the number of rows that were published."""
    conf = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}  # those of the driver
    session = build_session(SparkOptions(master=master, driver_memory="512m", conf=conf))
    if when == "executor":
        rows = frame(session, out)
    else:
        die_at_the_commit(when)
        rows = session.range(0, 300, 1, 2)
    made = dataframe_to_mds(
        rows, out, write_id=write_id, compression=None, size_limit=1024 if when != "executor" else 20_000
    )
    sys.stdout.write(f"{made.rows} rows\n")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
