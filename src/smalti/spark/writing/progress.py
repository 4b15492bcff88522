"""A progress line of a write on the error stream: tasks while they run, and what was published at the end.

It appears after some seconds, and by default only on a terminal. Tasks are counted by Spark's status tracker, or, on
Spark Connect, from the progress messages of the server.
"""

import contextlib
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from smalti.catalog import Manifest
from smalti.format import ShardInfo
from smalti.spark.writing.options import ProgressChoice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SILENT_SECONDS = 3.0  # before the first line; shorter writes show none
_TERMINAL_SECONDS = 0.5  # between two updates of the line
_LOG_SECONDS = 10.0  # between two lines of a stream that is no terminal
_GROUP = "spark.jobGroup.id"


@dataclass(frozen=True)
class TaskCount:
    """Spark tasks of a write."""

    done: int = 0
    total: int = 0
    """Tasks of the stages that Spark has planned so far."""


class Reporter:
    """A progress line; its `watch` runs in a thread of its own while the driver's thread writes."""

    def __init__(self, place: str, count: Callable[[], TaskCount], stream: TextIO) -> None:
        """Create the line; nothing is shown yet.

        Args:
            place: Where the rows are written to.
            count: Returns the tasks so far.
            stream: Where the line is shown; on a terminal it is updated in place.
        """
        self._place = place
        self._count = count
        self._stream = stream
        self._begin = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._width = 0

    def watch(self) -> None:
        """Show the tasks repeatedly until `stop`; blocks."""
        pause = _SILENT_SECONDS
        while not self._stop.wait(pause):
            tasks = self._count()
            of = f"{tasks.done} of {tasks.total} tasks done, " if tasks.total else ""
            with self._lock:
                if not self._stop.is_set():  # otherwise `finish` has shown the last line
                    self._show(f"{self._place}: {of}{self._seconds}")
            pause = _TERMINAL_SECONDS if self._stream.isatty() else _LOG_SECONDS

    def stop(self) -> None:
        """End `watch`."""
        self._stop.set()

    def finish(self, manifest: Manifest, shards: Sequence[ShardInfo]) -> None:
        """Show what was published, unless the write was too short to show anything."""
        with self._lock:
            self._stop.set()
        if time.monotonic() - self._begin >= _SILENT_SECONDS:
            rows = sum(info.samples for info in shards)
            size = sum(file.num_bytes for info in shards for file in info.stored_files)
            self._show(
                f"{self._place}: version {manifest.version}, {rows:,} rows in {len(shards):,} shards of "
                f"{size / 1e6:,.1f} MB, {self._seconds}"
            )

    @property
    def _seconds(self) -> str:
        return f"{time.monotonic() - self._begin:.0f} s"

    def _show(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the line on a terminal, so that later output starts on a new one."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()


@contextlib.contextmanager
def reporting(spark: "SparkSession", place: str, choice: ProgressChoice) -> Iterator[Reporter | None]:
    """Yield a progress line of the Spark jobs of this block; None if `choice` or the error stream rules it out."""
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
    """Count by job group: the caller's, if there is one, without its earlier jobs; otherwise a new one."""
    context = spark.sparkContext
    callers_group = context.getLocalProperty(_GROUP)
    group = callers_group or f"smalti-{secrets.token_hex(8)}"
    tracker = context.statusTracker()
    if callers_group is None:
        context.setLocalProperty(_GROUP, group)
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
            context.setLocalProperty(_GROUP, None)


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
