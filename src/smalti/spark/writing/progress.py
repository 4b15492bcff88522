"""Progress of a Spark write: the tasks that are done, and at the end the version that was published.

Tasks are counted by Spark's status tracker or, on Spark Connect, by the progress that the server reports.
"""

import contextlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from smalti.catalog import Manifest
from smalti.format import ShardInfo
from smalti.writer.progress import ProgressLine
from smalti.writer.tables.plan import ProgressChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SILENT_SECONDS = 3.0  # a write that takes less shows nothing
_JOB_GROUP = "spark.jobGroup.id"


TaskCount = tuple[int, int]
"""Spark tasks of a write: those that are done, and those of the stages that Spark has planned so far."""


class Reporter:
    """The progress display of one write, used by the driver's thread and by a thread that counts tasks by `count`."""

    def __init__(self, place: str, count: Callable[[], TaskCount], stream: TextIO) -> None:
        self._place = place
        self._count = count
        self.line = ProgressLine(stream, silent_seconds=_SILENT_SECONDS)
        self.is_stopped = threading.Event()
        """Makes `watch` return."""

    def watch(self) -> None:
        """Show the tasks again and again until `is_stopped` is set. Blocks."""
        while not self.is_stopped.wait(self.line.wait_seconds):
            done, total = self._count()
            of = f"{done} of {total} tasks done, " if total else ""
            if not self.is_stopped.is_set():  # counting takes time: the write may have ended since
                self.line.show(f"{self._place}: {of}{self.line.elapsed_seconds:.0f} s")

    def finish(self, manifest: Manifest, shards: Sequence[ShardInfo]) -> None:
        """Show what was published, and nothing after it."""
        self.is_stopped.set()
        rows = sum(info.samples for info in shards)
        size = sum(file.num_bytes for info in shards for file in info.stored_files)
        self.line.close(
            f"{self._place}: version {manifest.version}, {rows:,} rows in {len(shards):,} shards of "
            f"{size / 1e6:,.1f} MB, {self.line.elapsed_seconds:.0f} s"
        )


@contextlib.contextmanager
def reporting(spark: "SparkSession", place: str, choice: ProgressChoice) -> Iterator[Reporter | None]:
    """Yield a reporter that shows the Spark tasks of the jobs that this thread starts inside the block.

    None if `choice` is False, or if it is True and the error stream is not a terminal.
    """
    stream = sys.stderr
    if choice is False or (choice is True and not stream.isatty()):
        yield None
        return
    with contextlib.ExitStack() as counting:
        reporter = Reporter(place, _count_tasks(spark, counting), stream)
        thread = threading.Thread(target=reporter.watch, name="smalti-progress", daemon=True)
        thread.start()
        try:
            yield reporter
        finally:
            reporter.is_stopped.set()
            thread.join()
            reporter.line.close()


def _count_tasks(spark: "SparkSession", counting: contextlib.ExitStack) -> Callable[[], TaskCount]:
    """Return a function that counts tasks until the end of `counting`.

    Classic Spark counts by job group: the caller's, less the jobs that it already contains, or a new one.
    """
    if not hasattr(spark, "_jsparkSession"):
        counts: dict[str, TaskCount] = {}

        def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG001, FBT001
            if listed := list(stages or ()):
                done_tasks = sum(stage.num_completed_tasks for stage in listed)
                counts[operation_id or ""] = done_tasks, sum(stage.num_tasks for stage in listed)

        if hasattr(spark, "registerProgressHandler"):  # Spark Connect before 4 has none: nothing is counted
            spark.registerProgressHandler(handler)
            counting.callback(spark.removeProgressHandler, handler)
        return lambda: (sum(done for done, _ in counts.values()), sum(total for _, total in counts.values()))
    context = spark.sparkContext
    callers_group = context.getLocalProperty(_JOB_GROUP)
    group = callers_group or f"smalti-{secrets.token_hex(8)}"
    tracker = context.statusTracker()
    if callers_group is None:
        context.setLocalProperty(_JOB_GROUP, group)
        counting.callback(context.setLocalProperty, _JOB_GROUP, None)
    before = set(tracker.getJobIdsForGroup(group))

    def count() -> TaskCount:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group) if job not in before]
        numbers = {number for job in jobs if job is not None for number in job.stageIds}
        stages = [stage for number in numbers if (stage := tracker.getStageInfo(number)) is not None]
        return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)

    return count
