"""A data source that kills a process at a chosen step of a write, and the program whose driver is killed.

A file beside the set, `<set>.kill`, has the step and the victim; it becomes `<set>.killed` when that step is reached
for the first time. Victims are the Python worker of the step, or the JVM of the driver or executor above it.

    python -m tests.spark.mds.killing <master> write|stream <set>
"""

import os
import signal
import sys
from pathlib import Path

from smalti.catalog.manifest import INDEX
from smalti.spark import SparkOptions, build_session
from smalti.spark.mds.source import MDSDataSource
from smalti.spark.mds.writing import ShardSetStreamWriter, ShardSetWriter
from smalti.storage import LocalStore

STEPS = (
    "planned",
    "task-begins",
    "shard-stored",
    "task-ends",
    "commit-begins",
    "joined-stored",
    "before-header",
    "after-header",
    "before-index",
    "commit-ends",
)
ROWS_PER_FILE = 40
SMALL = {"size_limit": "2kb", "compression": "none"}


def reached(place, step):
    """Kill the victim if this is the step of the control file of the set at `place`, and nobody was killed yet."""
    control = Path(f"{place}.kill")
    try:
        wanted, victim = control.read_text().split()
        if wanted != step:
            return
        control.rename(f"{place}.killed")
    except FileNotFoundError:  # there is none, or another task was first
        return
    if victim == "jvm":
        os.kill(_jvm(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _jvm():
    """Return the JVM above this Python worker."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


class KillingStore(LocalStore):
    """A folder as a store, whose puts are steps."""

    def put(self, key, data):
        """Store an object."""
        super().put(key, data)
        if ".mds" in key:
            reached(self.url, "joined-stored" if "/joined-" in key else "shard-stored")

    def put_if_absent(self, key, data):
        """Store an object that is not there: the header of a version, which commits it."""
        is_header = key.startswith("_versions/0")
        if is_header:
            reached(self.url, "before-header")
        super().put_if_absent(key, data)
        if is_header:
            reached(self.url, "after-header")

    def put_if_match(self, key, data, etag):
        """Replace an object: the index file of the version before."""
        if key == INDEX:
            reached(self.url, "before-index")
        return super().put_if_match(key, data, etag)


class _Killing:
    """The steps of a writer, around those of the class that it is mixed into."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._store = KillingStore(self._store.url)
        reached(self._store.url, "planned")

    def write(self, iterator):
        reached(self._store.url, "task-begins")
        message = super().write(iterator)
        reached(self._store.url, "task-ends")
        return message

    def commit(self, *args):
        reached(self._store.url, "commit-begins")
        super().commit(*args)
        reached(self._store.url, "commit-ends")


class KillingWriter(_Killing, ShardSetWriter):
    """A writer of a query's rows that kills."""


class KillingStreamWriter(_Killing, ShardSetStreamWriter):
    """A writer of micro-batches that kills."""


class KillingSource(MDSDataSource):
    """`format("mds")` that kills, under a name of its own, because Spark finds the other one by itself."""

    @classmethod
    def name(cls):
        """Return the name that `format` takes."""
        return "mds_killing"

    def writer(self, schema, overwrite):
        """Return a writer that kills."""
        return KillingWriter(schema, self.options, overwrite=overwrite)

    def streamWriter(self, schema, overwrite):  # noqa: N802 -- of PySpark
        """Return a stream writer that kills."""
        return KillingStreamWriter(schema, self.options, overwrite=overwrite)


def write(spark, out, *, mode="append", write_id="one-write"):
    """Write 120 rows as one version: two partitions with shards of their own, ten whose shards are joined."""
    rows = spark.range(0, 100, 1, 2).union(spark.range(100, 3 * ROWS_PER_FILE, 1, 10))
    rows = rows.selectExpr("id", "repeat(id, 60) as text")
    rows.write.format("mds_killing").mode(mode).option("write_id", write_id).options(**SMALL).save(str(out))


def stream(spark, out, source):
    """Write every file of the source as a micro-batch of its own, until all are done; small shards are merged twice."""
    rows = spark.readStream.schema("id long, text string").option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        rows.repartition(16)
        .writeStream.format("mds_killing")
        .option("checkpointLocation", f"{out}.checkpoint")
        .options(**SMALL, compact_every=2)
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def main(master, kind, out, *rest):
    """Run the job once in a session of its own."""
    conf = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}  # those of the driver
    session = build_session(SparkOptions(master=master, driver_memory="512m", conf=conf))
    session.dataSource.register(KillingSource)
    {"write": write, "stream": stream}[kind](session, out, *rest)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
