"""Progress of a Spark write: the tasks that are done, and at the end the version that was published.

Tasks are counted by Spark's status tracker or, on Spark Connect, by the progress that the server reports.
"""

import contextlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from smalti.catalog import Manifest
from smalti.format import ShardInfo
from smalti.writer.progress import ProgressLine
from smalti.writer.tables.plan import ProgressChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SILENT_SECONDS = 3.0  # a write that takes less shows nothing
_JOB_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskCount:
    """Spark tasks of a write."""

    done: int = 0
    total: int = 0
    """Tasks of the stages that Spark has planned so far."""


class Reporter:
    """The progress display of one write, used by the driver's thread and by a thread that counts tasks by `count`."""

    def __init__(self, place: str, count: Callable[[], TaskCount], stream: TextIO) -> None:
        self._place = place
        self._count = count
        self._line = ProgressLine(stream, silent_seconds=_SILENT_SECONDS)
        self._stop = threading.Event()

    def watch(self) -> None:
        """Show the tasks again and again until `stop` is called. Blocks."""
        while not self._stop.wait(self._line.wait_seconds):
            tasks = self._count()
            of = f"{tasks.done} of {tasks.total} tasks done, " if tasks.total else ""
            if not self._stop.is_set():  # counting takes time: the write may have ended since
                self._line.show(f"{self._place}: {of}{self._line.elapsed_seconds:.0f} s")

    def stop(self) -> None:
        """Make `watch` return."""
        self._stop.set()

    def finish(self, manifest: Manifest, shards: Sequence[ShardInfo]) -> None:
        """Show what was published, and nothing after it."""
        self.stop()
        rows = sum(info.samples for info in shards)
        size = sum(file.num_bytes for info in shards for file in info.stored_files)
        self._line.close(
            f"{self._place}: version {manifest.version}, {rows:,} rows in {len(shards):,} shards of "
            f"{size / 1e6:,.1f} MB, {self._line.elapsed_seconds:.0f} s"
        )

    def close(self) -> None:
        """End the line of a write that may have failed. Idempotent."""
        self._line.close()


@contextlib.contextmanager
def reporting(spark: "SparkSession", place: str, choice: ProgressChoice) -> Iterator[Reporter | None]:
    """Yield a reporter that shows the Spark tasks of this block.

    None if `choice` is False, or if it is True and the error stream is not a terminal.
    """
    stream = sys.stderr
    if choice is False or (choice is True and not stream.isatty()):
        yield None
        return
    with counting(spark) as count:
        reporter = Reporter(place, count, stream)
        thread = threading.Thread(target=reporter.watch, name="smalti-progress", daemon=True)
        thread.start()
        try:
            yield reporter
        finally:
            reporter.stop()
            thread.join()
            reporter.close()


@contextlib.contextmanager
def counting(spark: "SparkSession") -> Iterator[Callable[[], TaskCount]]:
    """Yield a function that counts the tasks of the jobs that this thread starts inside the block."""
    if hasattr(spark, "_jsparkSession"):
        with _counting_classic(spark) as count:
            yield count
    elif hasattr(spark, "registerProgressHandler"):
        with _counting_connect(spark) as count:
            yield count
    else:  # Spark Connect before 4
        yield TaskCount


@contextlib.contextmanager
def _counting_classic(spark: "SparkSession") -> Iterator[Callable[[], TaskCount]]:
    """Count by job group: the caller's, less the jobs that it already contains, or a new one for this block."""
    context = spark.sparkContext
    callers_group = context.getLocalProperty(_JOB_GROUP)
    group = callers_group or f"smalti-{secrets.token_hex(8)}"
    tracker = context.statusTracker()
    if callers_group is None:
        context.setLocalProperty(_JOB_GROUP, group)
    before = set(tracker.getJobIdsForGroup(group))

    def count() -> TaskCount:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group) if job not in before]
        numbers = {number for job in jobs if job is not None for number in job.stageIds}
        stages = [stage for number in numbers if (stage := tracker.getStageInfo(number)) is not None]
        return TaskCount(sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages))

    try:
        yield count
    finally:
        if callers_group is None:
            context.setLocalProperty(_JOB_GROUP, None)


@contextlib.contextmanager
def _counting_connect(spark: "SparkSession") -> Iterator[Callable[[], TaskCount]]:
    found: dict[str, TaskCount] = {}

    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG001, FBT001
        listed = list(stages or ())
        if listed:
            total = TaskCount(sum(s.num_completed_tasks for s in listed), sum(s.num_tasks for s in listed))
            found[operation_id or ""] = total

    spark.registerProgressHandler(handler)
    try:
        yield lambda: TaskCount(sum(c.done for c in found.values()), sum(c.total for c in found.values()))
    finally:
        spark.removeProgressHandler(handler)
